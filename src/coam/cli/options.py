"""Options that several commands share, as annotated types: `device: Device = "auto"`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coam.errors import ConfigError

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MatcherModel = Annotated[str | None, typer.Option(help="A matcher model's name, or a .safetensors file.")]
Intrinsics = Annotated[
    Path | None,
    typer.Option(help="Known intrinsics: lines NAME MODEL WIDTH HEIGHT PARAMS (NAME * for all)."),
]


def check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Refuse an unknown choice before seconds are spent on loading what would refuse it."""
    if value is not None and value not in choices:
        raise ConfigError(f"{option} {value}: choose one of {', '.join(choices)}")

"""Options that several commands share, as annotated types: `device: Device = "auto"`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from coam.errors import ConfigError

Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
MatcherModel = Annotated[str | None, typer.Option(help="A matcher model's name, or a .safetensors file.")]
AllowUntrained = Annotated[
    bool,
    typer.Option(
        "--allow-untrained", help="Go on with a model that has no trained weights; it answers noise."
    ),
]
Intrinsics = Annotated[
    Path | None,
    typer.Option(help="Known intrinsics: lines NAME MODEL WIDTH HEIGHT PARAMS (NAME * for all)."),
]


def check_choice(option: str, value: str | None, choices: tuple[str, ...]) -> None:
    """Refuse an unknown choice before seconds are spent on loading what would refuse it."""
    if value is not None and value not in choices:
        raise ConfigError(f"{option} {value}: choose one of {', '.join(choices)}")


def require_trained(model: str | None, allow_untrained: bool = False) -> None:
    """Refuse the name of a model without trained weights: its answers are noise, and look like any other."""
    from coam.errors import WeightsError
    from coam.models.registry import MODELS, RECIPE_OF, packaged_weights

    if allow_untrained or model not in MODELS or packaged_weights(str(model)) is not None:
        return
    trained = ", ".join(name for name in MODELS if packaged_weights(name) is not None)
    raise WeightsError(
        f"{model} has no trained weights here, so its answers would be noise; choose one of {trained}, "
        "give a .safetensors file, train it "
        f"(coam train {RECIPE_OF.get(str(model), model)} --data ROOT -o RUN), "
        "or add --allow-untrained"
    )

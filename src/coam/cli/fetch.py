"""`coam fetch`: a model's file from an address, on request only, checked by its SHA-256."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coam.cli.options import AsJson
from coam.cli.printing import say
from coam.errors import ConfigError


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("fetch")(fetch_model)


def fetch_model(
    url: Annotated[str, typer.Argument(help="https:// address of a .safetensors file.")],
    sha256: Annotated[str, typer.Option(help="Its SHA-256, as its publisher states it.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    as_json: AsJson = False,
) -> None:
    """Fetch a model from elsewhere; then `--model FILE`. Nothing else in coam fetches models."""
    from coam.models.registry import load_model
    from coam.progress import stages
    from coam.store.download import fetch

    if output.suffix != ".safetensors":
        raise ConfigError(f"{output}: give a name that ends in .safetensors")
    with stages("fetching") as report:
        fetch(url, output, sha256, partial(report, "fetching"))
    file = load_model(output)  # says in one line if it is no model of ours
    if as_json:
        say(json.dumps({"file": str(output), "name": file.name, "architecture": file.architecture}))
        return
    say(f"{output}: {file.name} ({file.architecture}); use it with --model {output}")

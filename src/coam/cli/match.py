"""`coam match A B`: the matches of two photos."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coam.cli.outputs import DATA, PAGES, PICTURES, check_outputs, write_matches

if TYPE_CHECKING:
    from coam.types import Matches


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("match")(match)


def match(
    image0: Annotated[Path, typer.Argument(metavar="A", help="The first photo.")],
    image1: Annotated[Path, typer.Argument(metavar="B", help="The second photo.")],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output",
            "-o",
            help="A picture (.png, .jpg), page (.html) or data (.npz, .h5, .json); repeatable.",
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="A model's name, or a .safetensors file.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    resolution: Annotated[
        int | None, typer.Option(min=32, max=8192, help="Long side in pixels at which photos are matched.")
    ] = None,
    max_matches: Annotated[int | None, typer.Option(min=1, help="Keep the best so many.")] = None,
    min_score: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="Leave out matches below this score.")
    ] = None,
    preset: Annotated[str, typer.Option(help="default, or paper: exactly as published.")] = "default",
    looks: Annotated[
        str | None,
        typer.Option(help="once; align: again from one viewpoint; search: also other zooms and turns."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object.")] = False,
) -> None:
    """Match two photos; draw, save or print what corresponds."""
    outputs = check_outputs(output or [], [image0, image1], PICTURES + PAGES + DATA)

    from coam.images import load_image

    # Both are read before the model is loaded: what is wrong with them is known at once.
    loaded0, loaded1 = load_image(image0), load_image(image1)

    from coam.matcher import load_matcher

    given: dict[str, Any] = {
        "model": model, "resolution": resolution, "max_matches": max_matches, "min_score": min_score,
        "looks": looks,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    matcher = load_matcher(device=device, preset=preset, **options)
    matches = matcher.match(loaded0, loaded1)
    write_matches(matches, outputs, (image0.name, image1.name))
    summary = summarise(matches, image0, image1, outputs, str(matcher.device))
    print_summary(summary, as_json)


def summarise(
    matches: Matches, image0: Path | str, image1: Path | str, outputs: list[Path], device: str
) -> dict[str, Any]:
    """What is printed, as JSON values."""
    return {
        "image0": str(image0),
        "image1": str(image1),
        "size0": list(matches.size0),
        "size1": list(matches.size1),
        "matches": len(matches),
        "overlap": None if math.isnan(matches.overlap) else round(float(matches.overlap), 4),
        "looks": matches.meta.get("looks"),
        "seconds": matches.meta.get("seconds"),
        "model": matches.meta.get("model"),
        "trained": matches.meta.get("trained", True),
        "device": device,
        "outputs": [str(path) for path in outputs],
    }


def print_summary(summary: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or two or three lines for people."""
    if not summary["trained"]:
        typer.echo(f"warning: {summary['model']} is untrained, so its matches mean nothing", err=True)
    if as_json:
        typer.echo(json.dumps(summary))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False, soft_wrap=True)
    overlap = summary["overlap"]
    first = Text(f"{summary['matches']} matches", style="bold green" if summary["matches"] else "bold red")
    first.append(
        f" in {summary['seconds']:.2f} s on {summary['device']} with {summary['model']}", style="default"
    )
    console.print(first)
    if overlap is not None:
        verdict = "the same place" if overlap >= 0.5 else "probably not the same place"
        console.print(f"overlap {overlap:.2f}: {verdict}")
    for path in summary["outputs"]:
        console.print(Text(f"wrote {path}".encode("utf-8", "backslashreplace").decode("utf-8")))

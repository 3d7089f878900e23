"""`coam stylize VIEW STYLE`: the picture VIEW shows, in the light and colours of STYLE."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coam.cli.options import AllowUntrained, AsJson, Device, require_trained
from coam.cli.outputs import PICTURES, check_outputs
from coam.cli.printing import say

if TYPE_CHECKING:
    from coam.stylization import Stylized

LITTLE_SEEN = 1 / 3  # of VIEW: below, the user is warned


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("stylize")(stylize)


def stylize(
    view: Annotated[Path, typer.Argument(metavar="VIEW", help="The photo whose view is kept.")],
    style: Annotated[
        Path, typer.Argument(metavar="STYLE", help="A photo of the place in the wanted light and colours.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The picture to write (.png, .jpg, .webp).")],
    panel: Annotated[
        Path | None,
        typer.Option(help="Also write VIEW, STYLE, result, sampled image and confidence in one picture."),
    ] = None,
    strength: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="0: VIEW itself, 1: the full style.")
    ] = 1.0,
    force: Annotated[
        bool, typer.Option("--force", help="Go on even if the photos do not seem to show the same place.")
    ] = False,
    weights: Annotated[Path | None, typer.Option(help="A stylizer's .safetensors file.")] = None,
    model: Annotated[str | None, typer.Option(help="The matcher's model, or a .safetensors file.")] = None,
    device: Device = "auto",
    resolution: Annotated[
        int | None,
        typer.Option(
            min=64, max=4096, help="Long side in pixels at which the work is done.", show_default="768"
        ),
    ] = None,
    allow_untrained: AllowUntrained = False,
    as_json: AsJson = False,
) -> None:
    """Show VIEW in the style of STYLE. Both photos must show the same place."""
    inputs = [view, style]
    outputs = check_outputs([output, *([panel] if panel else [])], inputs, PICTURES)

    from coam.images import load_image

    # Both are read before torch and the models are loaded: what is wrong with them is known at once.
    loaded_view, loaded_style = load_image(view), load_image(style)

    from coam.stylization import load_stylizer

    require_trained(model, allow_untrained)
    given: dict[str, Any] = {"model": model, "resolution": resolution}
    options = {name: value for name, value in given.items() if value is not None}
    stylizer = load_stylizer(weights, device=device, **options)
    result = stylizer.stylize(loaded_view, loaded_style, strength, force)
    _write(result, output, panel)
    _print(result, view, style, outputs, str(stylizer.matcher.device), as_json)


def _write(result: Stylized, output: Path, panel: Path | None) -> None:
    from contextlib import ExitStack

    from PIL import Image

    from coam.store.atomic import atomic_write
    from coam.stylization.panel import draw_panel

    pictures = {output: Image.fromarray(result.picture)}
    if panel is not None:
        pictures[panel] = draw_panel(result)
    with ExitStack() as stack:
        for path, picture in pictures.items():
            picture.save(stack.enter_context(atomic_write(path)))


def _print(
    result: Stylized, view: Path, style: Path, outputs: list[Path], device: str, as_json: bool
) -> None:
    from coam.stylization.apply import LEAST_OVERLAP

    summary: dict[str, Any] = {
        "view": str(view),
        "style": str(style),
        "overlap": None if math.isnan(result.overlap) else round(result.overlap, 4),
        "confidence": round(float(result.confidence.mean()), 4),
        "seen": round(result.seen, 4),
        **result.meta,
        "device": device,
        "outputs": [str(path) for path in outputs],
    }
    if not result.meta["trained"]:
        say("warning: there is no trained stylizer here; the result is only a first guess", err=True)
    if result.overlap < LEAST_OVERLAP:
        say(f"warning: pair score {result.overlap:.2f}: the photos probably show different places", err=True)
    elif result.seen < LITTLE_SEEN:
        say(f"warning: STYLE shows only {result.seen:.0%} of VIEW; the rest is guessed", err=True)
    if as_json:
        say(json.dumps(summary))
        return
    say(f"stylized in {summary['seconds']:.1f} s on {device}, pair score {result.overlap:.2f}")
    say(f"{result.seen:.0%} of VIEW is seen in STYLE")
    for path in outputs:
        say(f"wrote {path}")

"""`coam match A B`: the matches of two photos."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Timer
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coam.cli.options import AsJson, Device, check_choice
from coam.cli.outputs import check_outputs, is_of_warp, match_endings, printable, write_matches
from coam.matching.settings import CHOICES, PRESETS, MatcherConfig

if TYPE_CHECKING:
    from coam.types import Matches

Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help="A picture (.png, .jpg), page (.html) or data (.npz, .h5, .json); of every pixel: .warp.npz, "
        ".flo, .flow.png (displacements as colours), .warped.png (B as A sees it); repeatable.",
    ),
]
TINY = 64  # pixels of the short side: below, a photo is warned about


def _setting(name: str, text: str, **more: Any) -> Any:
    """The option of a setting of the matcher; its help shows the matcher's own default."""
    return typer.Option(help=text, show_default=str(getattr(MatcherConfig, name)), **more)


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("match")(match)


def match(
    image0: Annotated[Path, typer.Argument(metavar="A", help="The first photo.")],
    image1: Annotated[Path, typer.Argument(metavar="B", help="The second photo.")],
    output: Outputs = None,
    model: Annotated[
        str | None,
        typer.Option(help="A model's name, or a .safetensors file.", show_default="cdunet-lite1"),
    ] = None,
    device: Device = "auto",
    resolution: Annotated[
        int | None,
        _setting("resolution", "Long side in pixels at which photos are matched.", min=32, max=8192),
    ] = None,
    max_matches: Annotated[int | None, _setting("max_matches", "Keep the best so many.", min=1)] = None,
    min_score: Annotated[
        float | None, _setting("min_score", "Leave out matches below this score.", min=0.0, max=1.0)
    ] = None,
    preset: Annotated[
        str,
        typer.Option(
            metavar="|".join(PRESETS), help="'paper': all settings as published; options here still count."
        ),
    ] = "default",
    looks: Annotated[
        str | None,
        _setting(
            "looks",
            "'once': one look. 'align': again from one viewpoint. 'search': the same, and other zooms and "
            "turns where nothing is found.",
            metavar="|".join(CHOICES["looks"]),
        ),
    ] = None,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="Match large photos at full resolution, tile by tile.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Match two photos; draw, save or print what corresponds."""
    check_choice("--preset", preset, tuple(PRESETS))
    check_choice("--looks", looks, CHOICES["looks"])
    outputs = check_outputs(output or [], [image0, image1], (*match_endings(), ".flo"))

    from coam.images import load_image

    # Both are read before torch and the model are loaded: what is wrong with them is known at once.
    loaded0, loaded1 = load_image(image0), load_image(image1)
    for path, (width, height) in ((image0, loaded0.size), (image1, loaded1.size)):
        if min(width, height) < TINY:
            line = f"warning: {path}: only {width} x {height} pixels; matches in so small a photo mean little"
            typer.echo(printable(line), err=True)

    from coam.matcher import load_matcher

    given: dict[str, Any] = {
        "model": model, "resolution": resolution, "max_matches": max_matches, "min_score": min_score,
        "looks": looks,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    matcher = load_matcher(device=device, preset=preset, **options)
    once = matcher.config.looks == "once"
    with patience("matching" if once else "looking again, as hard pairs need it (--looks once: one look)"):
        if tiles:
            most = {} if max_matches is None else {"max_matches": max_matches}
            matches = matcher.match_tiles(loaded0, loaded1, **most)
        else:
            matches = matcher.match(loaded0, loaded1)
        warp = matcher.warp(loaded0, loaded1) if any(map(is_of_warp, outputs)) else None
    write_matches(matches, outputs, (image0.name, image1.name), warp)
    if min_score is not None and len(matches) == 0:
        typer.echo(f"no match has a score of {min_score:g} or more; try a lower --min-score", err=True)
    summary = summarise(matches, image0, image1, outputs, str(matcher.device))
    print_summary(summary, as_json)


@contextmanager
def patience(message: str, after: float = 3.0) -> Iterator[None]:
    """Shows `message` on a terminal's stderr while the block runs, once it has run for `after` seconds."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    status = console.status(message)
    timer = Timer(after, status.start)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        status.stop()


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

    from coam.types import SAME_PLACE, matches_in_words

    console = Console(highlight=False, soft_wrap=True)
    overlap = summary["overlap"]
    count, looks = summary["matches"], summary["looks"]
    first = Text(matches_in_words(count), style="bold green" if count else "bold red")
    times = "" if looks is None else f", {looks} look{'' if looks == 1 else 's'},"
    rest = f" in {summary['seconds']:.2f} s{times} on {summary['device']} with {summary['model']}"
    first.append(rest, style="default")
    console.print(first)
    if overlap is None:
        console.print("overlap unknown: no pair score is calibrated for this model and preset")
    else:
        verdict = "the same place" if overlap >= SAME_PLACE else "probably not the same place"
        console.print(f"overlap {overlap:.2f}: {verdict}")
    for path in summary["outputs"]:
        console.print(Text(printable(f"wrote {path}")))

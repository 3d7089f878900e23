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

from coam.cli import match_many
from coam.cli.geometry import KINDS, geometry_lines, geometry_request
from coam.cli.options import AllowUntrained, AsJson, Device, check_choice, require_trained
from coam.cli.outputs import OVERLAYS, check_outputs, is_of_warp, match_endings, write_matches
from coam.cli.printing import say
from coam.errors import ConfigError, printable
from coam.matching.settings import CHOICES, PRESETS, MatcherConfig

if TYPE_CHECKING:
    from coam.images import LoadedImage
    from coam.types import Matches

Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help="A picture (.png, .jpg), page (.html) or data (.npz, .h5, .json); of every pixel: .warp.npz, "
        ".flo, .flow.png (displacements as colours), .warped.png (B as A sees it); repeatable. "
        "Of many pairs: a folder.",
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
    image0: Annotated[
        Path | None, typer.Argument(metavar="A", help="A photo; or a folder or video: each with each of B.")
    ] = None,
    image1: Annotated[
        Path | None, typer.Argument(metavar="B", help="The other photo, folder or video.")
    ] = None,
    output: Outputs = None,
    pairs: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Instead of A and B: a file with two paths a line, from its folder."
        ),
    ] = None,
    also: Annotated[
        list[str] | None,
        typer.Option(metavar="ENDING", help="Many pairs: png, html, json, h5 beside each .npz; repeatable."),
    ] = None,
    frames: Annotated[
        int | None, typer.Option(min=2, help="At most so many frames of a video.", show_default="150")
    ] = None,
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
            "'once': one look. 'align': again from one viewpoint. 'search': the same, and other views "
            "where nothing is found.",
            metavar="|".join(CHOICES["looks"]),
        ),
    ] = None,
    effort: Annotated[
        float | None,
        _setting("effort", "How long other views are searched: 1 is usual, 2 twice as long.", min=0.0),
    ] = None,
    tiles: Annotated[
        bool, typer.Option("--tiles", help="Match large photos at full resolution, tile by tile.")
    ] = False,
    strict: Annotated[
        bool, typer.Option("--strict", help="Leave with 1 where the photos do not show the same place.")
    ] = False,
    min_overlap: Annotated[
        float | None,
        typer.Option(
            min=0.0, max=1.0, help="The overlap from which --strict is content.", show_default="0.5"
        ),
    ] = None,
    allow_untrained: AllowUntrained = False,
    geometry: Annotated[
        str | None,
        typer.Option(
            metavar="|".join(KINDS), help="Estimate this from the matches too: printed, saved, inliers drawn."
        ),
    ] = None,
    threshold: Annotated[
        float | None,
        typer.Option(
            help="Largest distance of an inlier, in pixels.",
            min=0.01,
            show_default="3 for a homography, 1 otherwise",
        ),
    ] = None,
    estimator: Annotated[
        str | None,
        typer.Option(
            help="Robust estimator: auto, opencv, poselib, superansac.",
            show_default="auto: poselib, else opencv",
        ),
    ] = None,
    camera0: Annotated[
        str | None, typer.Option(help="Camera of A for a pose: FX,FY,CX,CY in pixels.")
    ] = None,
    camera1: Annotated[
        str | None, typer.Option(help="Camera of B for a pose: FX,FY,CX,CY in pixels.")
    ] = None,
    focal: Annotated[
        float | None,
        typer.Option(help="Focal length of both cameras in pixels.", min=1.0, show_default="from EXIF"),
    ] = None,
    overlay: Annotated[
        Path | None,
        typer.Option(help="A picture of B warped onto A by the homography; .gif flickers between them."),
    ] = None,
    mask0: Annotated[
        Path | None, typer.Option(help="A picture of A's size; where it is black, A is not used.")
    ] = None,
    mask1: Annotated[Path | None, typer.Option(help="The same for B.")] = None,
    as_json: AsJson = False,
) -> None:
    """Match two photos, or many pairs of them; draw, save or print what corresponds.

    Many pairs (--pairs, folders, videos) go on where a stopped run was.
    """
    check_choice("--preset", preset, tuple(PRESETS))
    check_choice("--looks", looks, CHOICES["looks"])
    from coam.images.mask import load_mask
    from coam.types import SAME_PLACE

    least = (SAME_PLACE if strict else None) if min_overlap is None else min_overlap
    many = match_many.is_many(pairs, image0, image1)
    request = geometry_request(geometry, threshold, estimator, (camera0, camera1), focal, overlay)
    if many:
        if request:
            raise ConfigError("--geometry and --overlay are for one pair; give two photos, A and B")
        if mask0 or mask1:
            raise ConfigError("--mask0 and --mask1 are for one pair; give two photos, A and B")
        folder, endings = match_many.check_folder_output(output or [], also or [])
        wanted = match_many.wanted_pairs(pairs, image0, image1, folder, frames)
    else:
        if image0 is None or image1 is None:
            raise ConfigError("give two photos, A and B, or --pairs FILE")
        inputs = [path for path in (image0, image1, mask0, mask1) if path is not None]
        outputs = check_outputs(output or [], inputs, (*match_endings(), ".flo"))
        overlays = check_outputs([overlay] if overlay else [], inputs, OVERLAYS)
        # Both are read before torch and the model are loaded: what is wrong with them is known at once.
        loaded0, loaded1 = read_both(image0, image1)
        usable0 = None if mask0 is None else load_mask(mask0, loaded0.size)
        usable1 = None if mask1 is None else load_mask(mask1, loaded1.size)
        cameras = request.camera_matrices((loaded0, loaded1), (image0, image1)) if request else []
    require_trained(model, allow_untrained)
    from coam.matcher import load_matcher

    given: dict[str, Any] = {
        "model": model, "resolution": resolution, "max_matches": max_matches, "min_score": min_score,
        "looks": looks, "effort": effort,
    }  # fmt: skip
    options = {name: value for name, value in given.items() if value is not None}
    matcher = load_matcher(device=device, preset=preset, **options)
    tiled: dict[str, Any] = {} if max_matches is None else {"max_matches": max_matches}
    if many:
        match_many.match_many(matcher, wanted, folder, endings, tiled if tiles else None, least, as_json)
        return
    assert image0 is not None
    assert image1 is not None
    hint = " (a hard pair is looked at again; --looks once: one look)"
    with patience("matching" + (hint if matcher.config.looks != "once" else "")):
        masks: dict[str, Any] = {"mask0": usable0, "mask1": usable1}
        if tiles:
            matches = matcher.match_tiles(loaded0, loaded1, **tiled, **masks)
        else:
            matches = matcher.match(loaded0, loaded1, **masks)
        warp = matcher.warp(loaded0, loaded1, **masks) if any(map(is_of_warp, outputs)) else None
    if least is not None and math.isnan(matches.overlap):
        raise ConfigError("--strict needs an overlap, and none is calibrated for this model and preset")
    found = request.fit(matches, cameras) if request else None
    if request:
        matches.meta["geometry"] = None if found is None else found.to_json()
    write_matches(matches, outputs, (image0.name, image1.name), warp, found, overlays)
    if min_score is not None and len(matches) == 0:
        say(f"no match has a score of {min_score:g} or more; try a lower --min-score", err=True)
    summary = summarise(matches, image0, image1, outputs + overlays, str(matcher.device))
    print_summary(summary, as_json)
    if least is not None and matches.overlap < least:
        say(f"overlap {matches.overlap:.2f} is below {least:g}", err=True)
        raise typer.Exit(1)  # scripts should notice; 2 is for mistakes of the user


def read_both(image0: Path, image1: Path) -> tuple[LoadedImage, LoadedImage]:
    """Both photos; a line warns of one that is too small to mean much."""
    from coam.images import load_image

    loaded = load_image(image0), load_image(image1)
    for path, (width, height) in ((image0, loaded[0].size), (image1, loaded[1].size)):
        if min(width, height) < TINY:
            line = f"warning: {path}: only {width} x {height} pixels; matches in so small a photo mean little"
            say(line, err=True)
    return loaded


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
    } | _geometry_summary(matches)


def _geometry_summary(matches: Matches) -> dict[str, Any]:
    if "geometry" not in matches.meta:
        return {}
    found = matches.meta["geometry"]
    return {"geometry": found and {name: value for name, value in found.items() if name != "inliers"}}


def print_summary(summary: dict[str, Any], as_json: bool) -> None:
    """One JSON object, or two or three lines for people."""
    if not summary["trained"]:
        say(f"warning: {summary['model']} is untrained, so its matches mean nothing", err=True)
    if as_json:
        say(json.dumps(summary))
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
    if "geometry" in summary:
        for line in geometry_lines(summary["geometry"]):
            console.print(Text(line))
    for path in summary["outputs"]:
        console.print(Text(printable(f"wrote {path}")))

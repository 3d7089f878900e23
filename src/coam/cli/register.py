"""`coam register MOVING FIXED`: one image laid onto another, or a folder of images onto one of them."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coam.cli.options import AllowUntrained, AsJson, Device, MatcherModel, check_choice, require_trained
from coam.cli.printing import say
from coam.errors import ConfigError

if TYPE_CHECKING:
    from coam.registration import Limits, RegisterOptions, Registration

REFUSED = 1  # exit code: not to be trusted; 2 is for mistakes of the user

Outputs = Annotated[
    list[Path] | None,
    typer.Option(
        "--output",
        "-o",
        help="MOVING on FIXED's grid (.tif, .png, .jpg), the registration (.json), a page (.html), pictures "
        "(.checker.png, .arrows.png, .before-after.png), ground control points (.points); repeatable. "
        "Of a folder: a folder.",
    ),
]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("register")(register_command)


def register_command(
    moving: Annotated[Path, typer.Argument(metavar="MOVING", help="The image to move; or a folder of them.")],
    fixed: Annotated[
        Path | None,
        typer.Argument(metavar="FIXED", help="The image to lie on; of a folder: its first by default."),
    ] = None,
    output: Outputs = None,
    model: Annotated[
        str,
        typer.Option(
            help="auto: the simplest that left-out matches bear out; translation, similarity, affine, "
            "homography, polynomial, spline, dense."
        ),
    ] = "auto",
    strict: Annotated[
        bool, typer.Option("--strict", help="Confidence .95, coverage .3 and 3 px are asked for.")
    ] = False,
    min_confidence: Annotated[
        float | None, typer.Option(min=0, max=1, help="Refuse below this probability.", show_default="0.8")
    ] = None,
    min_coverage: Annotated[
        float | None, typer.Option(min=0, max=1, help="Refuse below this share of the overlap borne out.")
    ] = None,
    max_error: Annotated[
        float | None,
        typer.Option(min=0, help="Refuse above this median miss of left-out matches, in pixels."),
    ] = None,
    force: Annotated[
        bool,
        typer.Option("--force", help="Write what was found even where it is refused; still leave with 1."),
    ] = False,
    bands: Annotated[
        str | None, typer.Option(help="Bands of MOVING to match by, one or three: 4,3,2 (the first is 1).")
    ] = None,
    fixed_bands: Annotated[str | None, typer.Option(help="The same for FIXED.")] = None,
    mask: Annotated[
        Path | None, typer.Option(help="A picture of MOVING's size; where it is black, it is not used.")
    ] = None,
    fixed_mask: Annotated[Path | None, typer.Option(help="The same for FIXED.")] = None,
    interpolation: Annotated[str, typer.Option(help="nearest, linear or cubic.")] = "cubic",
    fill: Annotated[
        float | None, typer.Option(help="Value where MOVING has nothing.", show_default="its nodata, or 0")
    ] = None,
    middle: Annotated[
        bool, typer.Option("--middle", help="Of a folder: onto the common middle of all, not onto one.")
    ] = False,
    keep_frame: Annotated[
        bool, typer.Option("--keep-frame", help="Of a folder: do not crop to the common part.")
    ] = False,
    matcher: MatcherModel = None,
    resolution: Annotated[
        int | None, typer.Option(min=64, max=8192, help="Long side at which images are matched.")
    ] = None,
    device: Device = "auto",
    allow_untrained: AllowUntrained = False,
    as_json: AsJson = False,
) -> None:
    """Lay one image onto another, across sensors and seasons; or refuse with a reason (exit code 1)."""
    from coam.registration.fitting import MODELS
    from coam.registration.pair import STRICT, Limits
    from coam.registration.resampling import INTERPOLATIONS, ResampleOptions

    check_choice("--model", model, MODELS)
    check_choice("--interpolation", interpolation, tuple(INTERPOLATIONS))
    base = STRICT if strict else Limits()
    limits = Limits(
        base.confidence if min_confidence is None else min_confidence,
        base.coverage if min_coverage is None else min_coverage,
        base.error if max_error is None else max_error,
    )
    options = _options(model, limits, bands, fixed_bands)
    resampling = ResampleOptions(interpolation=interpolation, fill=fill)
    matching = {"model": matcher, "device": device, "resolution": resolution, "allow": allow_untrained}
    if moving.is_dir():
        if mask or fixed_mask or force:
            raise ConfigError("--mask, --fixed-mask and --force are for one image; give MOVING and FIXED")
        _register_folder(moving, fixed, output, options, resampling, middle, keep_frame, matching, as_json)
        return
    if fixed is None:
        raise ConfigError("give two images, MOVING and FIXED, or a folder")
    if middle or keep_frame:
        raise ConfigError("--middle and --keep-frame are for a folder of images")
    _register_pair(
        moving, fixed, output or [], options, resampling, mask, fixed_mask, force, matching, as_json
    )


def _options(model: str, limits: Limits, bands: str | None, fixed_bands: str | None) -> RegisterOptions:
    from coam.registration.fitting import FitOptions
    from coam.registration.pair import RegisterOptions
    from coam.registration.rasters import DisplayOptions

    return RegisterOptions(
        fit=FitOptions(model=model),
        limits=limits,
        moving_display=DisplayOptions(bands=_bands(bands, "--bands")),
        fixed_display=DisplayOptions(bands=_bands(fixed_bands, "--fixed-bands")),
    )


def _bands(text: str | None, option: str) -> tuple[int, ...] | None:
    if text is None:
        return None
    words = text.split(",")
    if len(words) not in (1, 3) or not all(word.strip().isdigit() and int(word) > 0 for word in words):
        raise ConfigError(f"{option} {text}: give one band or three, as 4,3,2; the first is 1")
    return tuple(int(word) - 1 for word in words)


def _matcher(matching: dict[str, Any], **more: Any) -> Any:
    require_trained(matching["model"], matching["allow"])
    from coam.matcher import load_matcher
    from coam.models.registry import DEFAULT_MODEL

    given = {} if matching["resolution"] is None else {"resolution": matching["resolution"]}
    return load_matcher(matching["model"] or DEFAULT_MODEL, matching["device"], **given, **more)


def _register_pair(
    moving: Path,
    fixed: Path,
    outputs: list[Path],
    options: RegisterOptions,
    resampling: Any,
    mask: Path | None,
    fixed_mask: Path | None,
    force: bool,
    matching: dict[str, Any],
    as_json: bool,
) -> None:
    from coam.cli.match import patience
    from coam.cli.outputs import check_outputs
    from coam.images.mask import load_mask
    from coam.registration.outputs import KNOWN, require_writers, write_outputs
    from coam.registration.pair import find_registration
    from coam.registration.rasters import open_raster
    from coam.registration.result import RegistrationRefused

    inputs = [path for path in (moving, fixed, mask, fixed_mask) if path is not None]
    checked = check_outputs(outputs, inputs, KNOWN)
    require_writers(checked)
    rasters = [open_raster(path) for path in (moving, fixed)]
    masks = [
        None if given is None else load_mask(given, raster.size)
        for given, raster in zip((mask, fixed_mask), rasters, strict=True)
    ]
    masked = [open_raster(raster, each) for raster, each in zip(rasters, masks, strict=True)]
    matcher = _matcher(matching)
    try:
        with patience("registering"):
            found = find_registration(masked[0], masked[1], matcher, options)
    except RegistrationRefused as refused:
        _print_refusal(str(refused), as_json)
        raise typer.Exit(REFUSED) from refused
    if not found.refusal or force:
        from dataclasses import replace

        displays = (options.moving_display, options.fixed_display)
        drawn = replace(found, refusal="") if force else found
        write_outputs(drawn, rasters[0], rasters[1], checked, resampling, displays)
    _print(found, checked if not found.refusal or force else [], as_json)
    if found.refusal:
        raise typer.Exit(REFUSED)


def summary(found: Registration, outputs: list[Path]) -> dict[str, Any]:
    """What is printed, as JSON values."""
    import math

    quality = found.quality
    return {
        "kind": found.transform.kind,
        "matrix": found.transform.to_json()["matrix"],
        "why": found.why,
        "refusal": found.refusal,
        "confidence": round(quality.confidence, 4),
        "held_out_error": round(quality.held_out_error, 3) if math.isfinite(quality.held_out_error) else None,
        "held_out_p90": round(quality.held_out_p90, 3) if math.isfinite(quality.held_out_p90) else None,
        "inliers": quality.inliers,
        "inlier_share": round(quality.inlier_share, 4),
        "overlap": round(quality.overlap, 4),
        "coverage": round(quality.coverage, 4),
        "against": round(quality.against, 4) if math.isfinite(quality.against) else None,
        "uncertainty": round(quality.uncertainty, 3) if math.isfinite(quality.uncertainty) else None,
        "outputs": [str(path) for path in outputs],
    }


def _print(found: Registration, outputs: list[Path], as_json: bool) -> None:
    content = summary(found, outputs)
    if as_json:
        say(json.dumps(content))
        return
    for line in found.in_words():
        say(line)
    for path in content["outputs"]:
        say(f"wrote {path}")
    if found.refusal:
        say(f"refused: {found.refusal}", err=True)


def _print_refusal(reason: str, as_json: bool) -> None:
    if as_json:
        say(json.dumps({"kind": None, "refusal": reason, "confidence": 0.0, "outputs": []}))
    else:
        say(f"refused: {reason}", err=True)


def _register_folder(
    folder: Path,
    fixed: Path | None,
    output: list[Path] | None,
    options: RegisterOptions,
    resampling: Any,
    middle: bool,
    keep_frame: bool,
    matching: dict[str, Any],
    as_json: bool,
) -> None:
    if (
        not output
        or len(output) != 1
        or output[0].suffix.lower() in (".tif", ".png", ".jpg", ".json", ".html")
    ):
        raise ConfigError("give one folder for the registered images: --output FOLDER")
    if middle and fixed is not None:
        raise ConfigError("--middle takes the middle of all images; leave out FIXED")
    from coam.progress import stages
    from coam.registration.stack import StackOptions, register_folder

    matcher = _matcher(matching)
    stack = StackOptions(register=options, resample=resampling, middle=middle, crop=not keep_frame)
    with stages("registering", unit="images") as told:
        report = register_folder(folder, output[0], matcher, fixed, stack, partial(told, "registering"))
    left_out = [line for line in report if not line.kept]
    if as_json:
        from dataclasses import asdict

        say(json.dumps({"output": str(output[0]), "images": [asdict(line) for line in report]}))
    else:
        for line in left_out:
            say(f"left out: {line.photo} ({line.reason})")
        say(f"{output[0]}: {len(report) - len(left_out)} of {len(report)} images in one frame")
    if left_out:
        raise typer.Exit(REFUSED)

"""`coam localize MODEL QUERIES`: where were these photos taken?"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coam.cli.options import AllowUntrained, Device, Intrinsics, MatcherModel, require_trained
from coam.cli.outputs import check_outputs
from coam.cli.printing import say

if TYPE_CHECKING:
    from coam.sfm.localization.absolute_pose import Location


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("localize")(localize)


def localize(
    model_folder: Annotated[Path, typer.Argument(metavar="MODEL", help="A folder made by coam sfm.")],
    queries: Annotated[Path, typer.Argument(metavar="QUERIES", help="A photo or a folder of photos.")],
    output: Annotated[
        list[Path] | None,
        typer.Option(
            "--output", "-o", help="Poses as .txt (NAME QW QX QY QZ TX TY TZ) or .json; repeatable."
        ),
    ] = None,
    cameras: Intrinsics = None,
    photos: Annotated[
        Path | None, typer.Option(help="Where the model's photos are, if they were moved.")
    ] = None,
    model: MatcherModel = None,
    device: Device = "auto",
    max_matches: Annotated[
        int | None, typer.Option(min=16, help="Matches kept per pair; by default as for the model.")
    ] = None,
    neighbours: Annotated[int, typer.Option(min=1, help="Photos of the model matched with each query.")] = 15,
    hloc: Annotated[
        Path | None,
        typer.Option(help="Also write the matches as hloc's .h5 files, pairs and query list here."),
    ] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that locate queries.")] = 1,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or local.")] = None,
    gpus_per_worker: Annotated[
        float, typer.Option(min=0, help="With --ray: GPUs of each worker, 0.25 for four on one; 0: CPUs.")
    ] = 0.0,
    allow_untrained: AllowUntrained = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Locate photos in a model; a photo that cannot be located gets a reason instead of a wrong pose.

    Leaves with 1 where not one photo was located.
    """
    from coam.errors import DataError
    from coam.sfm.cameras import read_intrinsics_list
    from coam.sfm.colmap_model import require_pycolmap
    from coam.sfm.localization import localize as locating
    from coam.sfm.localization.absolute_pose import LocalizeOptions, locations_to_json
    from coam.sfm.model_folder import ModelFolder
    from coam.sfm.settings import warning_about_weights
    from coam.sfm.workers.choose import choose_workers
    from coam.store.atomic import check_folder

    require_pycolmap()
    outputs = check_outputs(output or [], [queries], (".txt", ".json"))
    for folder in (*(path.parent for path in outputs), *([] if hloc is None else [hloc])):
        check_folder(folder)
    if not queries.exists():
        raise DataError(f"{queries}: no such file or folder; give a photo or a folder of photos")
    ModelFolder(model_folder).require_model()
    given = read_intrinsics_list(cameras) if cameras is not None else None
    options = LocalizeOptions(neighbours=neighbours)
    require_trained(model, allow_untrained)
    load = loads_as_made(model_folder, model, device, max_matches)
    with closing(choose_workers(workers, ray, gpus_per_worker)) as crew:
        matcher = load()
        warning = warning_about_weights(model_folder, matcher)
        if warning:
            say(f"warning: {warning}", err=True)
        locations = locating.localize(
            model_folder, queries, matcher, given, photos, options, hloc, crew, load, not as_json
        )
    write_locations(locations, outputs)
    located = sum(location.pose is not None for location in locations)
    if as_json:
        say(json.dumps(locations_to_json(locations), indent=2))
    else:
        for location in locations:
            say(line_about(location))
        say(f"{located} of {len(locations)} photos located")
        for path in (*outputs, *([] if hloc is None else [hloc])):
            say(f"wrote {path}")
    if located == 0:
        say(f"{queries}: no photo was located; {hint(locations)}", err=True)
        raise typer.Exit(1)  # scripts should notice; 2 is for mistakes of the user


def loads_as_made(folder: Path, model: str | None, device: str, max_matches: int | None) -> Callable[[], Any]:
    """Makes the matcher with the settings that a model was made with: its grid positions are the model's."""
    from coam.cli import sfm
    from coam.models.registry import MODELS
    from coam.sfm.settings import read_settings

    made = read_settings(folder).get("matcher", {})
    settings = dict(made.get("settings", {})) | ({} if max_matches is None else {"max_matches": max_matches})
    known = made.get("model") if made.get("model") in MODELS else None
    return partial(sfm.load_for_sfm, model or known, device, settings)


def write_locations(locations: Sequence[Location], outputs: Sequence[Path]) -> None:
    """Poses as text, or everything as JSON, by ending: all files or none."""
    from coam.sfm.localization.absolute_pose import locations_to_json, write_poses
    from coam.store.atomic import atomic_write

    with ExitStack() as stack:
        for path in [stack.enter_context(atomic_write(output)) for output in outputs]:
            if path.suffix.lower() == ".txt":
                write_poses(locations, path)
            else:
                path.write_text(json.dumps(locations_to_json(locations), indent=2) + "\n")


def line_about(location: Location) -> str:
    """Where a photo was taken, or why that is not known."""
    if location.centre is None:
        return f"{location.name}: not located: {location.reason}"
    x, y, z = location.centre
    return (
        f"{location.name}: at {x:.4g} {y:.4g} {z:.4g}, {location.inliers} inliers of {location.lifted}, "
        f"confidence {location.confidence:.2f}, camera {location.intrinsics}"
    )


def hint(locations: Sequence[Location]) -> str:
    """What to do when no photo was located."""
    from coam.sfm.localization.absolute_pose import LocalizeOptions

    readable = [location for location in locations if location.camera]  # one that was not read has no camera
    if not readable:
        return "none can be read as a picture; the reasons are above"
    nearer = "photos nearer to those of the model are easier"
    if any(location.inliers >= LocalizeOptions.min_inliers for location in readable):
        return f"the reasons are above; {nearer}"  # much agrees, but in one spot or with a look-alike
    # Matches of a photo of elsewhere agree by chance: 5 of 45 of a motorcycle in the courtyard.
    elsewhere = f"{'it seems' if len(readable) == 1 else 'they seem'} to show another place than the model"
    return f"{elsewhere}; if not, {nearer}" if any(location.lifted for location in readable) else elsewhere

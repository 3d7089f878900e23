"""`coam localize MODEL QUERIES`: where were these photos taken?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer


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
    cameras: Annotated[
        Path | None,
        typer.Option(help="Known intrinsics: lines NAME MODEL WIDTH HEIGHT PARAMS (NAME * for all)."),
    ] = None,
    photos: Annotated[
        Path | None, typer.Option(help="Where the model's photos are, if they were moved.")
    ] = None,
    model: Annotated[str | None, typer.Option(help="A matcher model's name, or a .safetensors file.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, mps.")] = "auto",
    resolution: Annotated[
        int | None, typer.Option(min=32, max=8192, help="As the model was made with.")
    ] = None,
    max_matches: Annotated[int, typer.Option(min=16, help="Matches kept per pair.")] = 4096,
    neighbours: Annotated[int, typer.Option(min=1, help="Photos of the model matched with each query.")] = 15,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Locate photos in a model; a photo that cannot be located gets a reason instead of a wrong pose."""
    from coam.cli.sfm import load_for_sfm
    from coam.errors import ConfigError, DataError, MissingExtraError

    try:
        import pycolmap  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pycolmap", "sfm") from error

    from coam.sfm import localize as locating
    from coam.sfm.intrinsics import read_intrinsics_list
    from coam.sfm.journal import replacing

    for path in output or []:
        if path.suffix not in (".txt", ".json"):
            raise ConfigError(f"{path}: write poses to a .txt or .json file")
    if not (model_folder / "sparse").is_dir():
        raise DataError(
            f"{model_folder}: holds no finished model; make one with: coam sfm PHOTOS -o {model_folder}"
        )
    given = read_intrinsics_list(cameras) if cameras is not None else None
    matcher = load_for_sfm(model, device, resolution, max_matches)
    options = locating.LocalizeOptions(neighbours=neighbours)
    locations = locating.localize(model_folder, queries, matcher, given, photos, options)
    for path in output or []:
        if path.suffix == ".txt":
            locating.write_poses(locations, path)
        else:
            with replacing(path) as temporary:
                temporary.write_text(json.dumps(locating.locations_to_json(locations), indent=2) + "\n")
    if as_json:
        typer.echo(json.dumps(locating.locations_to_json(locations), indent=2))
        return
    for location in locations:
        if location.pose is None:
            typer.echo(f"{location.name}: not located: {location.reason}")
        else:
            x, y, z = location.pose[0].T @ -location.pose[1]
            typer.echo(
                f"{location.name}: at {x:.4g} {y:.4g} {z:.4g}, {location.inliers} inliers of "
                f"{location.lifted}, "
                f"confidence {location.confidence:.2f}"
            )
    located = sum(location.pose is not None for location in locations)
    typer.echo(f"{located} of {len(locations)} photos located")

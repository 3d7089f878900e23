"""`coam data ...`: make training data from aligned photos, photos, COLMAP models and RGB-D frames."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from coam.cli.options import AllowUntrained, AsJson, Device, MatcherModel, require_trained
from coam.cli.printing import say
from coam.errors import ConfigError
from coam.progress import stages


def register(app: typer.Typer) -> None:
    """Add the command group."""
    group = typer.Typer(
        no_args_is_help=True, help="Make training data from photos, COLMAP models, RGB-D frames."
    )
    group.command("align")(align)
    group.command("from-photos")(from_photos)
    group.command("pack-tracks")(pack_tracks_command)
    group.command("pack-rgbd")(pack_rgbd_command)
    app.add_typer(group, name="data")


def align(
    groups: Annotated[Path, typer.Argument(help="Folder of groups: GROUP/*.jpg, one camera at other times.")],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for the aligned groups, apart from GROUPS.")
    ],
    model: MatcherModel = None,
    device: Device = "auto",
    resolution: Annotated[int, typer.Option(min=64, help="Long side at which photos are matched.")] = 640,
    allow_untrained: AllowUntrained = False,
    as_json: AsJson = False,
) -> None:
    """Move photos of one spot onto each other. Run the same line again to go on after an interruption.

    Groups whose photos, model or resolution have changed since are done again; the rest is kept.
    """
    from statistics import median

    from coam.data.align import align_groups
    from coam.matcher import load_matcher
    from coam.models.registry import DEFAULT_MODEL

    require_trained(model, allow_untrained)
    matcher = load_matcher(model or DEFAULT_MODEL, device, resolution=resolution, looks="once")
    weights = {"model": matcher.file.name, "weights": matcher.file.sha256}
    with stages("preparing") as report:
        reports = align_groups(
            groups,
            output,
            matcher.match,
            weights | {"resolution": resolution},
            partial(report, "aligning"),
        )
    moved = [(name, photo) for name, lines in reports.items() for photo in lines[1:]]
    kept = [photo for _, photo in moved if photo.kept]
    left_out = [f"{name}/{photo.photo}" for name, photo in moved if not photo.kept]
    shift = median([photo.shift for photo in kept] or [0.0])
    residual = median([photo.residual for photo in kept] or [0.0])
    if as_json:
        say(
            json.dumps(
                {
                    "groups": len(reports),
                    "photos": len(moved) + len(reports),
                    "left_out": left_out,
                    "shift": shift,
                    "residual": residual,
                }
            )
        )
        return
    for name in left_out:
        say(f"left out: {name} (its matches with the first photo agree on no small motion)")
    say(
        f"{output}: {len(reports)} groups; {len(kept)} photos moved onto the first of their group "
        f"by {shift:.2f} px in the median; their matches agree to {residual:.2f} px; {len(left_out)} left out"
    )


def from_photos(
    photos: Annotated[Path, typer.Argument(help="Folder with overlapping photos of one place.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for the COLMAP model.")],
    cameras: Annotated[
        str, typer.Option(help="one: one camera took all; each: internet photos; auto: one if sizes agree.")
    ] = "auto",
    max_features: Annotated[int, typer.Option(min=100, help="SIFT features kept per photo.")] = 4000,
    threads: Annotated[int, typer.Option(help="-1: all cores.")] = -1,
    seed: Annotated[int, typer.Option(min=0, help="Seed of everything random.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Build a COLMAP model from photos by SIFT. Run the same line again to go on after an interruption."""
    from coam.errors import DataError
    from coam.sfm.colmap_model import read_model
    from coam.sfm.photos import read_photo_folder, require_enough_photos
    from coam.sfm.sift import SiftOptions, build_sift_models, photos_by_camera

    if cameras not in ("auto", "one", "each"):
        raise ConfigError(f"cameras is {cameras!r}; use auto, one or each")
    folder = read_photo_folder(photos)
    require_enough_photos(folder)
    total = len(folder.photos)
    one = cameras == "one" or (cameras == "auto" and len({photo.size for photo in folder.photos}) == 1)
    options = SiftOptions(
        max_features=max_features,
        max_image_size=1600,
        all_pairs_up_to=200,
        min_model_size=3,
        max_models=5,
        min_images=3,
        start_angles=(16.0, 4.0),  # a small angle only where a wide one fails
        threads=threads,
        seed=seed,
    )
    groups = photos_by_camera(folder.photos, "all" if one else "none")
    with stages("preparing") as report:
        places = build_sift_models(folder, output, groups, options, report)
    if not places:
        raise DataError(
            f"the photos in {photos} do not connect into a model; add photos that overlap by half or more"
        )
    rows = []
    for place in places:
        model = read_model(place)
        rows.append(
            {
                "folder": str(place),
                "images": model.num_reg_images(),
                "points": model.num_points3D(),
                "mean_track_length": float(model.compute_mean_track_length()),
                "reprojection_error": float(model.compute_mean_reprojection_error()),
            }
        )
    if as_json:
        say(json.dumps({"photos": total, "models": rows}))
        return
    for row in rows:
        say(
            f"{row['folder']}: {row['images']} of {total} photos, {row['points']} points, "
            f"track length {row['mean_track_length']:.1f}, error {row['reprojection_error']:.2f} px"
        )
    say(f"next: coam data pack-tracks {places[0]}={photos} -o tracks.safetensors")


def pack_tracks_command(
    scenes: Annotated[
        list[str], typer.Argument(help="MODEL=PHOTOS: a COLMAP or coam sfm folder and its photos.")
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    max_side: Annotated[int, typer.Option(min=64, help="Shrink photos with a longer side than this.")] = 1024,
    as_json: AsJson = False,
) -> None:
    """Pack COLMAP models and their photos into one file that `coam train` reads."""
    from coam.data.pack_tracks import TrackScene, pack_tracks

    listed = [_parse_scene(text) for text in scenes]
    with stages("preparing") as report:
        packed = pack_tracks(
            [TrackScene(name, model, photos) for name, model, photos in listed],
            _check_output(output),
            max_side,
            progress=partial(report, "packing"),
        )
    _say_packed(output, len(packed.names), len(packed.pairs), as_json)


def pack_rgbd_command(
    frames: Annotated[Path, typer.Argument(help="Folder with NAME.color.jpg, .depth.png, .pose.txt.")],
    output: Annotated[Path, typer.Option("--output", "-o", help="The .safetensors file to write.")],
    tracks: Annotated[
        Path | None, typer.Option(help="Packed tracks of the same colour photos: use their poses instead.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Pack RGB-D frames into one file that `coam train` reads."""
    from coam.data.pack_rgbd import pack_rgbd
    from coam.data.packed import PackedTracks

    better = PackedTracks.load(tracks) if tracks is not None else None
    with stages("preparing") as report:
        packed = pack_rgbd(
            frames,
            _check_output(output),
            tracks=better,
            progress=partial(report, "reading frames"),
        )
    _say_packed(output, len(packed.names), len(packed.pairs), as_json)


def _parse_scene(text: str) -> tuple[str, Path, Path]:
    """Name, model and photo folder from MODEL=PHOTOS; the scene is called like its photo folder."""
    model, separator, photos = text.partition("=")
    if not (separator and model and photos):
        raise ConfigError(f"{text!r} is not MODEL=PHOTOS, for example: model/sparse/0=photos")
    return Path(photos).resolve().name, Path(model), Path(photos)


def _check_output(path: Path) -> Path:
    if path.suffix != ".safetensors":
        raise ConfigError(f"{path} must end in .safetensors")
    return path


def _say_packed(output: Path, photos: int, pairs: int, as_json: bool) -> None:
    size = output.stat().st_size
    if as_json:
        say(json.dumps({"file": str(output), "photos": photos, "pairs": pairs, "bytes": size}))
    else:
        say(f"{output}: {photos} photos, {pairs} pair{'' if pairs == 1 else 's'}, {size / 1e6:.1f} MB")

"""`coam sfm PHOTOS -o MODEL`: photos to a 3D model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast, get_args

import typer

from coam.cli.options import AllowUntrained, Device, Intrinsics, MatcherModel, check_choice, require_trained
from coam.cli.printing import say


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("sfm")(sfm)


def sfm(
    photos: Annotated[
        Path,
        typer.Argument(
            metavar="PHOTOS", help="A folder of photos or videos of one place or object; or a video."
        ),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The model folder; run again to go on.")],
    model: MatcherModel = None,
    device: Device = "auto",
    resolution: Annotated[
        int | None, typer.Option(min=32, max=8192, help="Long side in pixels at which photos are matched.")
    ] = None,
    max_matches: Annotated[int, typer.Option(min=16, help="Matches kept per pair.")] = 4096,
    frames: Annotated[int, typer.Option(min=2, help="At most so many frames of a video.")] = 150,
    pairing: Annotated[
        str,
        typer.Option(help="auto, exhaustive, sequential or retrieval; with --reference also model or poses."),
    ] = "auto",
    pairs: Annotated[Path | None, typer.Option(help="A file with two photo names per line, instead.")] = None,
    neighbours: Annotated[
        int, typer.Option(min=1, help="Similar photos matched with each, by retrieval.")
    ] = 20,
    orientation: Annotated[
        str, typer.Option(help="auto (photos that lie on their side are found) or as-is.")
    ] = "auto",
    reference: Annotated[
        Path | None,
        typer.Option(help="A COLMAP model whose poses and cameras are kept: only points are made."),
    ] = None,
    tracks: Annotated[
        str, typer.Option(help="Sub-pixel tracks: quantised, merged, or refined in the photos.")
    ] = "refined",
    mapper: Annotated[str, typer.Option(help="incremental or global.")] = "incremental",
    mapper_threads: Annotated[
        int, typer.Option(min=1, help="More are quicker, but then two runs may differ by some points.")
    ] = 1,
    cameras: Intrinsics = None,
    camera_model: Annotated[
        str, typer.Option(help="COLMAP camera model where none is given.")
    ] = "SIMPLE_RADIAL",
    share_camera: Annotated[
        str, typer.Option(help="auto, all (one camera took every photo) or none.")
    ] = "auto",
    masks: Annotated[Path | None, typer.Option(help="A folder of NAME.png; black is not used.")] = None,
    workers: Annotated[int, typer.Option(min=1, help="Processes that match, verify and align.")] = 1,
    ray: Annotated[str | None, typer.Option(help="Address of a Ray cluster, or local.")] = None,
    gpus_per_worker: Annotated[
        float, typer.Option(min=0, help="With --ray: GPUs of each worker, 0.25 for four on one; 0: CPUs.")
    ] = 0.0,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Match again what other weights or settings have matched.")
    ] = False,
    dense: Annotated[bool, typer.Option("--dense", help="Also compute dense points: dense.ply.")] = False,
    dense_by: Annotated[
        str, typer.Option(help="With --dense: warps, or colmap (its stereo; a pycolmap with CUDA).")
    ] = "warps",
    until: Annotated[
        str, typer.Option(help="Stop after: pairs, matches, verification, tracks or model.")
    ] = "model",
    georeference: Annotated[
        bool,
        typer.Option("--georeference", help="Metres, east, north and up, by GPS positions in the photos."),
    ] = False,
    distances: Annotated[
        Path | None,
        typer.Option(help="Measured distances: lines PHOTO X Y LABEL, and A B METRES (labels or photos)."),
    ] = None,
    export: Annotated[
        list[str] | None,
        typer.Option(help="nerfstudio: also write MODEL/nerfstudio (transforms.json, undistorted photos)."),
    ] = None,
    hloc: Annotated[Path | None, typer.Option(help="Also write hloc's .h5 files and pairs.txt here.")] = None,
    allow_untrained: AllowUntrained = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print summary.json.")] = False,
) -> None:
    """Build a 3D model from a folder of photos; a killed run goes on where it was."""
    from coam.batch import with_frames
    from coam.errors import ConfigError
    from coam.images.folder import list_photos
    from coam.images.video import FrameOptions
    from coam.sfm.cameras import CameraChoice, Sharing, read_intrinsics_list
    from coam.sfm.colmap_model import require_pycolmap
    from coam.sfm.dense.colmap_stereo import require_dense_stereo
    from coam.sfm.dense.dense_points import DenseMethod, add_dense_points
    from coam.sfm.interchange.hloc import database_to_hloc
    from coam.sfm.interchange.nerfstudio import export_nerfstudio
    from coam.sfm.known_poses import triangulate_known_poses
    from coam.sfm.mapping.options import MapperName, MapperOptions
    from coam.sfm.model_folder import ModelFolder
    from coam.sfm.pairs import Pairing
    from coam.sfm.pipeline import Stage, reconstruct
    from coam.sfm.workers.choose import choose_workers
    from coam.sfm.workspace import Orientation, SfmOptions, Tracks, check_options, open_workspace
    from coam.store.atomic import check_folder

    require_pycolmap()
    check_choice("--tracks", tracks, get_args(Tracks))
    check_choice("--mapper", mapper, get_args(MapperName))
    check_choice("--share-camera", share_camera, get_args(Sharing))
    check_choice("--pairing", pairing, get_args(Pairing))
    check_choice("--orientation", orientation, get_args(Orientation))
    check_choice("--until", until, get_args(Stage))
    for name in export or []:
        check_choice("--export", name, ("nerfstudio",))
    check_choice("--dense-by", dense_by, get_args(DenseMethod))
    if dense and dense_by == "colmap":
        require_dense_stereo()
    if reference is not None and until != "model":
        raise ConfigError("--until is for models from photos alone; leave --reference or --until out")
    if reference is not None and cameras is not None:
        raise ConfigError("--reference has the cameras too; leave --cameras out")
    for folder in (output, hloc):
        if folder is not None:
            check_folder(folder)
    photos = with_frames(photos, output / "frames", FrameOptions(most=frames), shown=not as_json)
    list_photos(photos)  # a wrong folder is named before the model is loaded
    given = read_intrinsics_list(cameras) if cameras is not None else None
    options = SfmOptions(
        pairing=pairing,  # type: ignore[arg-type]
        pairs_file=None if pairs is None else str(pairs),
        neighbours=neighbours,
        orientation=orientation,  # type: ignore[arg-type]
        cameras=CameraChoice(camera_model, share_camera, given),  # type: ignore[arg-type]
        tracks=tracks,  # type: ignore[arg-type]
        mapper=MapperOptions(mapper=mapper, threads=mapper_threads),  # type: ignore[arg-type]
        georeference=georeference,
        distances=None if distances is None else str(distances),
        masks=None if masks is None else str(masks),
        workers=workers,
    )
    check_options(options, reference)
    require_trained(model, allow_untrained)
    settings = {"max_matches": max_matches} | ({} if resolution is None else {"resolution": resolution})
    load = partial(load_for_sfm, model, device, settings)
    crew = choose_workers(workers, ray, gpus_per_worker)

    def tell(line: str) -> None:
        if not as_json:
            say(line)

    try:
        with closing(crew):
            work = open_workspace(
                photos, output, load(), options, tell, not as_json, overwrite, reference, crew, load
            )
            stage = cast("Stage", until)
            summary = triangulate_known_poses(work) if reference is not None else reconstruct(work, stage)
            if dense and summary:
                by = cast("DenseMethod", dense_by)
                summary = add_dense_points(
                    output, photos, work.matcher, by, None, tell, not as_json, crew, load
                )
    except KeyboardInterrupt as error:
        from coam.cli import INTERRUPTED, fail

        fail("stopped; run the same line again to go on", INTERRUPTED, error)
    files = ModelFolder(output)
    if hloc is not None and files.database.is_file():
        database_to_hloc(files.database, hloc)
    if not summary:
        tell(f"stopped after {until}; run the same line without --until to go on")
        return
    report(summary, output, as_json)
    if export:
        tell(f"wrote {export_nerfstudio(files.model, photos, output / 'nerfstudio')}")


def load_for_sfm(model: str | None, device: str, settings: Mapping[str, Any]) -> Any:
    """The matcher of these settings (fields of `MatcherConfig`); also called in worker processes."""
    from coam.matcher import load_matcher
    from coam.models.registry import DEFAULT_MODEL

    # As `without_rematching`: tracks need the same grid positions in every pair, and are aligned themselves.
    once = {**settings, "looks": "once", "alignment": "none"}
    return load_matcher(model or DEFAULT_MODEL, device=device, **once)


def report(summary: Mapping[str, Any], output: Path, as_json: bool) -> None:
    """Say what came of it."""
    if as_json:
        say(json.dumps(summary, indent=2))
        return
    for line in summary["warnings"]:
        say(f"warning: {line}")
    say(
        f"{summary['registered_images']} of {summary['photos']} photos registered, "
        f"{summary['sparse_points']} points, "
        f"track length {summary['mean_track_length']:.2f}, reprojection error "
        f"{summary['mean_reprojection_error']:.2f} px"
        + (f", {summary['dense_points']} dense points" if isinstance(summary["dense_points"], int) else "")
    )
    say(f"wrote {output} (open {output / 'model.html'} in a browser)")

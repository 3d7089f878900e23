"""A COLMAP model from a folder of photos, by SIFT alone: training data where nothing but photos is at hand.

Every stage keeps what an earlier, killed run has finished: features and matches live in `database.db` inside the
output folder, and the model itself is written under a temporary name and renamed when it is whole.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coam.errors import ConfigError, DataError, MissingExtraError

PHOTO_ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}
MODEL_FOLDER = "sparse"
DATABASE_NAME = "database.db"
Progress = Callable[[str, int, int], None]  # stage name, done, total


@dataclass(frozen=True)
class PhotoModelOptions:
    """How photos become a model."""

    max_features: int = 4000  # SIFT features kept per photo
    max_image_size: int = 1600  # longer side in pixels at which features are found
    min_model_images: int = 3  # models with fewer photos are dropped
    sequential_above: int = 200  # with more photos than this, match neighbours in name order instead of all pairs
    sequential_overlap: int = 15  # neighbours on each side in that case
    cameras: str = "auto"  # "one": one camera took all photos; "each": internet photos; "auto": one if sizes agree
    threads: int = -1  # -1: all cores
    seed: int = 0


@dataclass(frozen=True)
class PhotoModelSummary:
    """What one model of the folder holds; `folder` is a COLMAP model that pycolmap and `pack_tracks` read."""

    folder: Path
    images: int
    points: int
    mean_track_length: float
    reprojection_error: float  # pixels


def _ignore_progress(stage: str, done: int, total: int) -> None:
    del stage, done, total


def list_photos(folder: str | Path) -> list[str]:
    """Names, sorted, of the photos in `folder`; refuses a folder with fewer than two."""
    folder = Path(folder)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; give the folder that holds the photos")
    names = sorted(p.name for p in folder.iterdir() if p.suffix.lower() in PHOTO_ENDINGS)
    if len(names) < 2:
        raise DataError(f"{folder} holds {len(names)} photo(s); at least 2 overlapping photos are needed")
    return names


def build_photo_model(
    photos: str | Path,
    output: str | Path,
    options: PhotoModelOptions = PhotoModelOptions(),
    progress: Progress = _ignore_progress,
) -> list[PhotoModelSummary]:
    """Reconstruct `photos` into `output`/sparse/0, 1, ... (largest first) and say what was found.

    A finished output is only read again. Raises `DataError` when the photos do not connect.
    """
    pycolmap = _import_pycolmap()
    if options.cameras not in ("auto", "one", "each"):
        raise ConfigError(f"cameras is {options.cameras!r}; use auto, one or each")
    photos, output = Path(photos), Path(output)
    names = list_photos(photos)
    finished = output / MODEL_FOLDER
    if not finished.is_dir():
        output.mkdir(parents=True, exist_ok=True)
        database = output / DATABASE_NAME
        pycolmap.set_random_seed(options.seed)
        _extract(pycolmap, photos, names, database, options, progress)
        _match(pycolmap, names, database, options, progress)
        _map(pycolmap, photos, names, database, finished, options, progress)
    return [_summarise(pycolmap, folder) for folder in sorted(finished.iterdir(), key=lambda p: int(p.name))]


def _import_pycolmap() -> Any:
    try:
        import pycolmap
    except ImportError as error:
        raise MissingExtraError("pycolmap", "sfm") from error
    return pycolmap


def _share_one_camera(photos: Path, names: list[str]) -> bool:
    """Photos of one size are taken to come from one camera; mixed sizes get a camera each."""
    from PIL import Image

    sizes = set()
    for name in names:
        with Image.open(photos / name) as image:
            sizes.add(image.size)
    return len(sizes) == 1


def _extract(
    pycolmap: Any, photos: Path, names: list[str], database: Path, options: PhotoModelOptions, progress: Progress
) -> None:
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.num_threads = options.threads
    extraction.max_image_size = options.max_image_size
    extraction.use_gpu = False
    extraction.sift.max_num_features = options.max_features
    one = options.cameras == "one" or (options.cameras == "auto" and _share_one_camera(photos, names))
    mode = pycolmap.CameraMode.SINGLE if one else pycolmap.CameraMode.PER_IMAGE
    reader = pycolmap.ImageReaderOptions(camera_model="SIMPLE_RADIAL")
    _watch(
        lambda: pycolmap.extract_features(
            database, photos, names, mode, reader, extraction, device=pycolmap.Device.cpu
        ),
        lambda: progress("features", _count_rows(database, "descriptors"), len(names)),
    )


def _match(
    pycolmap: Any, names: list[str], database: Path, options: PhotoModelOptions, progress: Progress
) -> None:
    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads = options.threads
    matching.use_gpu = False
    if len(names) <= options.sequential_above:
        total = len(names) * (len(names) - 1) // 2
        pairing = pycolmap.ExhaustivePairingOptions()
        pairing.block_size = 12  # small blocks are committed more often: a killed run loses little
        match = pycolmap.match_exhaustive
    else:
        total = len(names) * options.sequential_overlap
        pairing = pycolmap.SequentialPairingOptions()
        pairing.overlap = options.sequential_overlap
        match = pycolmap.match_sequential
    _watch(
        lambda: match(database, matching, pairing, device=pycolmap.Device.cpu),
        lambda: progress("matching", _count_rows(database, "two_view_geometries"), total),
    )


def _map(
    pycolmap: Any,
    photos: Path,
    names: list[str],
    database: Path,
    finished: Path,
    options: PhotoModelOptions,
    progress: Progress,
) -> None:
    mapping = pycolmap.IncrementalPipelineOptions()
    mapping.num_threads = options.threads
    mapping.random_seed = options.seed
    mapping.min_model_size = options.min_model_images
    mapping.extract_colors = False
    registered = 2

    def count_one() -> None:
        nonlocal registered
        registered = min(registered + 1, len(names))
        progress("reconstruction", registered, len(names))

    raw = finished.with_name(f"{MODEL_FOLDER}.{os.getpid()}.raw")
    raw.mkdir()
    try:
        models = pycolmap.incremental_mapping(database, photos, raw, mapping, next_image_callback=count_one)
    finally:
        shutil.rmtree(raw, ignore_errors=True)
    models = [m for m in models.values() if m.num_reg_images() >= options.min_model_images]
    if not models:
        raise DataError(
            f"the photos in {photos} do not connect into a model; add photos that overlap by half or more"
        )
    temporary = finished.with_name(f"{MODEL_FOLDER}.{os.getpid()}.tmp")
    for index, model in enumerate(sorted(models, key=lambda m: -m.num_reg_images())):
        (temporary / str(index)).mkdir(parents=True)
        model.write(temporary / str(index))
    temporary.rename(finished)


def _summarise(pycolmap: Any, folder: Path) -> PhotoModelSummary:
    model = pycolmap.Reconstruction(folder)
    return PhotoModelSummary(
        folder=folder,
        images=model.num_reg_images(),
        points=model.num_points3D(),
        mean_track_length=float(model.compute_mean_track_length()),
        reprojection_error=float(model.compute_mean_reprojection_error()),
    )


def _watch(work: Callable[[], object], report: Callable[[], None], seconds: float = 1.0) -> None:
    """Run `work` in a thread, calling `report` while it lasts and once after; hand on what it raises."""
    failure: list[BaseException] = []

    def guarded() -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - handed on below, in the caller's thread
            failure.append(error)

    thread = threading.Thread(target=guarded, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(seconds)
        report()
    if failure:
        raise failure[0]


def _count_rows(database: Path, table: str) -> int:
    """Finished rows of a COLMAP table; 0 while the database does not exist yet or is busy."""
    if not database.exists():
        return 0
    try:
        with sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=0.2) as connection:
            return int(connection.execute(f"SELECT COUNT(*) FROM {table}").fetchone()[0])
    except sqlite3.Error:
        return 0

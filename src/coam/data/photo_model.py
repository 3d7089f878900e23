"""A COLMAP model from a folder of photos, by SIFT alone: training data where nothing but photos is at hand.

Every stage keeps what an earlier, killed run has finished: features and matches live in `database.db` inside
the output folder, and the model itself is written under a temporary name and renamed when it is whole.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from coam.errors import ConfigError, DataError, MissingExtraError

PHOTO_ENDINGS = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"}
MODEL_FOLDER = "sparse"
DATABASE_NAME = "database.db"
_PHOTOS_AT_ONCE = (
    16  # work is handed to COLMAP in parts: a bar can move, and a killed run loses one part only
)
_PAIRS_AT_ONCE = 200
_START_ANGLES = (16.0, 4.0)  # degrees between the first two photos; a small angle only where a wide one fails
Progress = Callable[[str, int, int], None]  # stage name, done, total


@dataclass(frozen=True)
class PhotoModelOptions:
    """How photos become a model."""

    max_features: int = 4000  # SIFT features kept per photo
    max_image_size: int = 1600  # longer side in pixels at which features are found
    min_model_images: int = 3  # models with fewer photos are dropped
    max_models: int = 5  # photos that do not connect with the others may form models of their own
    all_pairs_up_to: int = (
        200  # with more photos than this, pairs are neighbours in name order and random ones
    )
    neighbours: int = 15  # neighbours on each side in that case
    peak_threshold: float = 0.0067  # SIFT's contrast threshold; lower finds more features in flat texture
    cameras: str = (
        "auto"  # "one": one camera took all photos; "each": internet photos; "auto": one if sizes agree
    )
    threads: int = -1  # -1: all cores
    seed: int = 0


DEFAULT_OPTIONS = PhotoModelOptions()


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
    options: PhotoModelOptions = DEFAULT_OPTIONS,
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
        with _quiet(pycolmap):
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


@contextmanager
def _quiet(pycolmap: Any) -> Iterator[None]:
    """COLMAP's log off the terminal: progress and errors are told by us."""
    before = pycolmap.logging.minloglevel
    pycolmap.logging.minloglevel = 3
    try:
        yield
    finally:
        pycolmap.logging.minloglevel = before


def _share_one_camera(photos: Path, names: list[str]) -> bool:
    """Photos of one size are taken to come from one camera; mixed sizes get a camera each."""
    from PIL import Image

    sizes = set()
    for name in names:
        with Image.open(photos / name) as image:
            sizes.add(image.size)
    return len(sizes) == 1


def _extract(
    pycolmap: Any,
    photos: Path,
    names: list[str],
    database: Path,
    options: PhotoModelOptions,
    progress: Progress,
) -> None:
    extraction = pycolmap.FeatureExtractionOptions()
    extraction.num_threads = options.threads
    extraction.max_image_size = options.max_image_size
    extraction.use_gpu = False
    extraction.sift.max_num_features = options.max_features
    extraction.sift.peak_threshold = options.peak_threshold
    one = options.cameras == "one" or (options.cameras == "auto" and _share_one_camera(photos, names))
    mode = pycolmap.CameraMode.SINGLE if one else pycolmap.CameraMode.PER_IMAGE
    reader = pycolmap.ImageReaderOptions(camera_model="SIMPLE_RADIAL")
    for start in range(0, len(names), _PHOTOS_AT_ONCE):
        if one and start > 0:  # every call would start a camera of its own
            with pycolmap.Database.open(database) as opened:
                reader.existing_camera_id = opened.read_all_cameras()[0].camera_id
        part = names[start : start + _PHOTOS_AT_ONCE]
        pycolmap.extract_features(
            database, photos, part, mode, reader, extraction, device=pycolmap.Device.cpu
        )
        progress("features", start + len(part), len(names))


def _match(
    pycolmap: Any, names: list[str], database: Path, options: PhotoModelOptions, progress: Progress
) -> None:
    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads = options.threads
    matching.use_gpu = False
    pairs = propose_pairs(names, options)
    for start in range(0, len(pairs), _PAIRS_AT_ONCE):
        part = pairs[start : start + _PAIRS_AT_ONCE]
        with tempfile.TemporaryDirectory() as folder:
            listed = Path(folder) / "pairs.txt"
            listed.write_text("".join(f"{a} {b}\n" for a, b in part))
            pairing = pycolmap.ImportedPairingOptions(match_list_path=listed)
            pycolmap.match_image_pairs(database, matching, pairing, device=pycolmap.Device.cpu)
        progress("matching", start + len(part), len(pairs))


def propose_pairs(names: list[str], options: PhotoModelOptions) -> list[tuple[str, str]]:
    """All pairs of few photos; of many, neighbours in name order and as many random pairs again."""
    if len(names) <= options.all_pairs_up_to:
        return list(combinations(names, 2))
    chosen = {
        (i, j) for i in range(len(names)) for j in range(i + 1, min(i + 1 + options.neighbours, len(names)))
    }
    random = Random(options.seed)
    most = min(2 * len(chosen), len(names) * (len(names) - 1) // 2)
    while len(chosen) < most:
        i, j = sorted(random.sample(range(len(names)), 2))
        chosen.add((i, j))
    return [(names[i], names[j]) for i, j in sorted(chosen)]


def _map(
    pycolmap: Any,
    photos: Path,
    names: list[str],
    database: Path,
    finished: Path,
    options: PhotoModelOptions,
    progress: Progress,
) -> None:
    registered = 2

    def count_one() -> None:
        nonlocal registered
        registered = min(registered + 1, len(names))
        progress("reconstruction", registered, len(names))

    models: list[Any] = []
    for start_angle in _START_ANGLES:
        mapping = pycolmap.IncrementalPipelineOptions()
        mapping.num_threads = options.threads
        mapping.random_seed = options.seed
        mapping.min_model_size = options.min_model_images
        mapping.extract_colors = False
        mapping.max_num_models = options.max_models
        mapping.mapper.init_min_tri_angle = start_angle
        with tempfile.TemporaryDirectory() as folder:  # COLMAP writes there too; we keep what it gives back
            found = pycolmap.incremental_mapping(
                database, photos, folder, mapping, next_image_callback=count_one
            )
        models = [
            m
            for m in found.values()
            if m.num_reg_images() >= options.min_model_images and m.num_points3D() > 0
        ]
        if models:
            break
    else:
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

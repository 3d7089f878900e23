"""COLMAP models by SIFT: COLMAP's own features, matching and incremental mapper.

The baseline that ours is measured against, and training data where nothing but photos is at hand. Every stage
keeps what an earlier, killed run has finished: features and matches live in `database.db` of the output
folder, and its models appear as a whole.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from random import Random
from typing import Any

from coam.sfm.cameras import CameraChoice, Sharing, make_cameras
from coam.sfm.colmap_model import quiet_colmap, require_pycolmap
from coam.sfm.photos import Photo, PhotoFolder
from coam.store.atomic import atomic_folder

PHOTOS_AT_ONCE = 16  # work is handed to COLMAP in parts: a bar can move, and a killed run loses one part only
PAIRS_AT_ONCE = 200
Progress = Callable[[str, int, int], None]  # stage name, done, total


@dataclass(frozen=True)
class SiftOptions:
    """How photos become models by SIFT; the defaults are COLMAP's own, with exhaustive matching."""

    max_features: int = 8192  # SIFT features kept per photo
    max_image_size: int = (
        -1
    )  # longer side in pixels at which features are found; -1: as large as COLMAP takes
    all_pairs_up_to: int | None = None  # photos; with more, pairs are neighbours by name and random ones
    neighbours: int = 15  # neighbours on each side in that case
    min_model_size: int = 10  # photos: smaller models beside a larger one are dropped
    max_models: int = 50  # photos that do not connect with the others may form models of their own
    min_images: int = 1  # photos that a model must have; where none has, the next start angle is tried
    start_angles: tuple[float, ...] = (16.0,)  # degrees between the rays of the initial pair
    threads: int = -1  # -1: all cores; with more than one, two runs may differ by some points
    seed: int = 0


def photos_by_camera(photos: Sequence[Photo], sharing: Sharing = "auto") -> list[list[str]]:
    """Names of the photos that share a camera: without that SIFT's focal lengths drift."""
    return make_cameras(photos, CameraChoice(sharing=sharing)).names_by_camera()


def build_sift_models(
    photos: PhotoFolder,
    output: str | Path,
    groups: Sequence[Sequence[str]],
    options: SiftOptions | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> list[Path]:
    """Reconstruct photos into `output`/sparse/0, 1, ...; gives these folders, largest model first.

    groups: the names of the photos that share a camera, see `photos_by_camera`. A finished output is not
    computed again. No folder, and nothing written, where the photos do not connect.
    """
    require_pycolmap()
    import pycolmap

    options, finished = options or SiftOptions(), Path(output) / "sparse"
    if not finished.is_dir():
        finished.parent.mkdir(parents=True, exist_ok=True)
        database = finished.with_name("database.db")
        quiet_colmap()
        pycolmap.set_random_seed(options.seed)
        _extract(database, photos, groups, options, progress)
        _match(database, photos.names, options, progress)
        models = _map(database, photos, options, progress)
        if not models:
            return []
        with atomic_folder(finished) as temporary:
            for index, model in enumerate(models):
                (temporary / str(index)).mkdir()
                model.write(temporary / str(index))
    return sorted(finished.iterdir(), key=lambda path: int(path.name))


def _extract(
    database: Path,
    photos: PhotoFolder,
    groups: Sequence[Sequence[str]],
    options: SiftOptions,
    progress: Progress,
) -> None:
    """Features of all photos, those that are in the database already left out."""
    import pycolmap

    extraction = pycolmap.FeatureExtractionOptions()
    extraction.num_threads = options.threads
    extraction.max_image_size = options.max_image_size
    extraction.sift.max_num_features = options.max_features
    done = 0
    for names in groups:
        for begin in range(0, len(names), PHOTOS_AT_ONCE):
            part = list(names[begin : begin + PHOTOS_AT_ONCE])
            reader = pycolmap.ImageReaderOptions(camera_model="SIMPLE_RADIAL")
            reader.existing_camera_id = _camera_of(database, names)
            single = pycolmap.CameraMode.SINGLE
            pycolmap.extract_features(database, photos.root, part, single, reader, extraction)
            done += len(part)
            progress("features", done, len(photos.names))


def _camera_of(database: Path, names: Sequence[str]) -> int:
    """Id of the group's camera in the database (each call would make a new one), or -1."""
    import pycolmap

    with pycolmap.Database.open(database) as opened:
        wanted = set(names)
        return next((image.camera_id for image in opened.read_all_images() if image.name in wanted), -1)


def _match(database: Path, names: Sequence[str], options: SiftOptions, progress: Progress) -> None:
    """Matches and two-view geometries of all pairs, those that are in the database already left out."""
    import pycolmap

    matching = pycolmap.FeatureMatchingOptions()
    matching.num_threads = options.threads
    pairs = sift_pairs(names, options)
    for begin in range(0, len(pairs), PAIRS_AT_ONCE):
        part = pairs[begin : begin + PAIRS_AT_ONCE]
        with tempfile.TemporaryDirectory(prefix="coam-") as folder:
            listed = Path(folder) / "pairs.txt"
            listed.write_text("".join(f"{a} {b}\n" for a, b in part))
            pycolmap.match_image_pairs(
                database, matching, pycolmap.ImportedPairingOptions(match_list_path=listed)
            )
        progress("matching", begin + len(part), len(pairs))


def sift_pairs(names: Sequence[str], options: SiftOptions) -> list[tuple[str, str]]:
    """All pairs of few photos; of many, neighbours in name order and as many random pairs again."""
    if options.all_pairs_up_to is None or len(names) <= options.all_pairs_up_to:
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


def _map(database: Path, photos: PhotoFolder, options: SiftOptions, progress: Progress) -> list[Any]:
    """Models (pycolmap reconstructions), largest first, by incremental mapping."""
    import pycolmap

    registered, total = 2, len(photos.names)

    def count_one() -> None:
        nonlocal registered
        registered = min(registered + 1, total)
        progress("reconstruction", registered, total)

    for angle in options.start_angles:
        mapping = pycolmap.IncrementalPipelineOptions()
        mapping.num_threads = options.threads
        mapping.random_seed = options.seed
        mapping.min_model_size = options.min_model_size
        mapping.max_num_models = options.max_models
        mapping.mapper.init_min_tri_angle = angle
        mapping.extract_colors = False
        with tempfile.TemporaryDirectory(prefix="coam-") as folder:  # COLMAP writes its own copies there
            found = pycolmap.incremental_mapping(
                database, photos.root, folder, mapping, next_image_callback=count_one
            )
        models = [m for m in found.values() if m.num_reg_images() >= options.min_images and m.num_points3D()]
        if models:
            return sorted(models, key=lambda model: -model.num_reg_images())
    return []

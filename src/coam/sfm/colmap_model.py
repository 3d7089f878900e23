"""What a COLMAP reconstruction says: poses, covisibility, figures."""

from __future__ import annotations

from collections import Counter
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import DataError, MissingExtraError
from coam.geometry.alignment import Pose
from coam.sfm.colmap_binaries import check_binaries


def require_pycolmap() -> None:
    """One line that names the extra to install where pycolmap is missing."""
    try:
        import pycolmap  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("pycolmap", "sfm") from error


def quiet_colmap() -> None:
    """COLMAP writes pages to the terminal; errors are enough."""
    import pycolmap

    pycolmap.logging.alsologtostderr = False
    pycolmap.logging.stderrthreshold = pycolmap.logging.Level.FATAL.value
    pycolmap.logging.minloglevel = pycolmap.logging.Level.FATAL.value


def pipeline_options(seed: int, threads: int = 1) -> Any:
    """COLMAP's settings of incremental mapping; points are coloured by `model_files`, from upright photos."""
    import pycolmap

    return pycolmap.IncrementalPipelineOptions(random_seed=seed, num_threads=threads, extract_colors=False)


def read_model(folder: str | Path) -> Any:
    """The pycolmap reconstruction of a COLMAP model folder, text or binary."""
    import pycolmap

    try:
        check_binaries(Path(folder))
        return pycolmap.Reconstruction(Path(folder))
    except Exception as error:  # pycolmap raises plain errors of several kinds
        damage = f" ({error})" if isinstance(error, ValueError) and "damaged" in str(error) else ""
        raise DataError(
            f"{folder}: holds no COLMAP model{damage}; give a folder with cameras, images and points3D"
        ) from error


def registered_images(model: Any) -> dict[str, Any]:
    """The registered images of a pycolmap reconstruction by name."""
    return {image.name: image for image in map(model.image, model.reg_image_ids())}


def model_poses(model: Any) -> dict[str, Pose]:
    """Camera-from-world poses of the registered photos of a pycolmap reconstruction."""
    return {name: as_pose(image.cam_from_world()) for name, image in registered_images(model).items()}


def as_pose(rigid: Any) -> Pose:
    """Rotation (3, 3) and translation (3,) of a pycolmap Rigid3d."""
    return np.asarray(rigid.rotation.matrix(), np.float64), np.asarray(rigid.translation, np.float64)


def covisibility(model: Any) -> dict[tuple[int, int], int]:
    """Number of common 3D points of every pair of images (ids, smaller first) that has any."""
    seen = (sorted({e.image_id for e in point.track.elements}) for point in model.points3D.values())
    return Counter(pair for images in seen for pair in combinations(images, 2))


def model_figures(model: Any = None) -> dict[str, Any]:
    """The five figures of the paper's tables, of a model (default: none could be built); `dense` adds one."""
    import pycolmap

    model = model or pycolmap.Reconstruction()
    return {
        "registered_images": model.num_reg_images(),
        "sparse_points": model.num_points3D(),
        "mean_track_length": round(float(model.compute_mean_track_length()), 4),
        "mean_reprojection_error": round(float(model.compute_mean_reprojection_error()), 4),
        "dense_points": "not computed",
    }

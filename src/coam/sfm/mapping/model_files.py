"""Files of a finished model: COLMAP's own, points for any viewer, a page, and dense points (on CUDA)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import ConfigError, DataError
from coam.geometry.coordinates import from_colmap
from coam.images import load_image
from coam.sfm.colmap_model import as_pose, registered_images
from coam.sfm.model_folder import ModelFolder
from coam.sfm.photos import PhotoFolder
from coam.store.atomic import atomic_folder, atomic_write, write_text
from coam.store.documents import write_sealed_json


def write_models(models: Sequence[Any], photos: PhotoFolder, target: Path) -> None:
    """Write models into the folders 0, 1, ... of `target`: binary, text and PLY, points coloured."""
    with atomic_folder(target) as temporary:
        for index, model in enumerate(models):
            colour_points(model, photos)
            place = temporary / str(index)
            (place / "text").mkdir(parents=True)
            model.write(place)
            model.write_text(place / "text")
            model.export_PLY(place / "points.ply")


def colour_points(model: Any, photos: PhotoFolder) -> None:
    """Give every 3D point the mean colour of its observations."""
    seen: list[int] = []
    colours = []
    for name, image in registered_images(model).items():
        rgb, observed = load_image(photos.path(name)).rgb, image.get_observation_points2D()
        xy = np.rint(from_colmap(np.array([point.xy for point in observed]).reshape(-1, 2))).astype(int)
        x, y = np.clip(xy, 0, np.array(rgb.shape[1::-1]) - 1).T
        seen += [point.point3D_id for point in observed]
        colours.append(rgb[y, x])
    points, place = np.unique(seen, return_inverse=True)
    total = np.zeros((len(points), 3))
    np.add.at(total, place, np.concatenate(colours))
    for point, colour in zip(points, total / np.bincount(place)[:, None], strict=True):
        model.point3D(point).color = np.rint(colour).astype(np.uint8)


def write_model_page(model: Any, path: Path) -> None:
    """Point cloud and cameras of a model as a page for any browser."""
    from coam.viz import scene_page

    ordered = [point for _, point in sorted(model.points3D.items())]  # the same page for the same model
    points = np.array([point.xyz for point in ordered]).reshape(-1, 3)
    colours = np.array([point.color for point in ordered], np.uint8).reshape(-1, 3)
    write_text(path, scene_page(points, colours, scene_cameras(model)))


def scene_cameras(model: Any) -> list[tuple[Any, ...]]:
    """Registered cameras as `coam.viz.scene_page` takes them."""
    return [
        (
            image.name,
            *as_pose(image.cam_from_world()),
            image.camera.mean_focal_length(),
            image.camera.width,
            image.camera.height,
        )
        for image in map(model.image, sorted(model.reg_image_ids()))
    ]


def require_dense_stereo() -> None:
    """One line where this pycolmap cannot compute dense points; call it before hours of matching."""
    import pycolmap

    if not pycolmap.has_cuda:
        raise ConfigError(
            "--dense needs a pycolmap with CUDA, and this one has none; install pycolmap-cuda12 in its "
            "place, or leave --dense out"
        )


def add_dense_points(output: str | Path, photos: str | Path) -> dict[str, Any]:
    """Dense points of the largest model of a finished model folder; gives its summary with their number.

    Writes sparse/0/dense.ply, so that a model that is built again loses the dense points of the old one. The
    workspace with the depth maps, dense/, is removed at the end.
    """
    require_dense_stereo()
    import pycolmap

    files = ModelFolder(output)
    summary = files.read_summary()
    if summary is None:
        raise DataError(f"{files.summary}: is missing or damaged; run the same command again")
    target = files.model / "dense.ply"
    if isinstance(summary["dense_points"], int) and target.is_file():
        return summary
    workspace = prepare_workspace(files.model, Path(photos), files.dense)
    pycolmap.patch_match_stereo(workspace)
    fusion = pycolmap.StereoFusionOptions()
    fusion.min_num_pixels = min(fusion.min_num_pixels, summary["registered_images"])
    fused = pycolmap.stereo_fusion(workspace / "fused.ply", workspace, options=fusion, output_type="ply")
    with atomic_write(target) as temporary:
        shutil.move(workspace / "fused.ply", temporary)
    summary["dense_points"] = fused.num_points3D()
    summary["files"] = files.checksums()
    write_sealed_json(files.summary, summary)
    shutil.rmtree(workspace, ignore_errors=True)
    return summary


def prepare_workspace(model: Path, photos: Path, workspace: Path) -> Path:
    """Photos of a model without distortion, as COLMAP's stereo wants them; gives `workspace`.

    Photos are written upright first: the model's are, and COLMAP does not turn them by their EXIF.
    """
    import pycolmap
    from PIL import Image

    shutil.rmtree(workspace, ignore_errors=True)  # of a killed run
    upright = workspace / "upright"
    for name in registered_images(pycolmap.Reconstruction(model)):
        (upright / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(load_image(photos / name).rgb).save(upright / name, quality=95)
    pycolmap.undistort_images(workspace, model, upright)
    shutil.rmtree(upright)
    return workspace

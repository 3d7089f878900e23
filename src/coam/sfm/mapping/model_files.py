"""Files of a finished model: COLMAP's own, points for any viewer, a page."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coam.geometry.coordinates import from_colmap
from coam.images import load_image
from coam.sfm.colmap_model import as_pose, registered_images
from coam.sfm.photos import PhotoFolder
from coam.store.atomic import atomic_folder, write_text


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

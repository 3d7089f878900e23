"""What a finished model leaves in its folder: COLMAP files, points for any viewer, and a page."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coam.sfm.journal import replacing
from coam.sfm.mapping import colour_points
from coam.sfm.photos import PhotoFolder


def write_models(models: Sequence[Any], folder: PhotoFolder, output: Path) -> None:
    """sparse/0, sparse/1, ...: binary, text and PLY."""
    from coam.images import load_image

    target = output / "sparse"
    if target.exists():  # a rename cannot replace a folder that is not empty
        old = output / f".sparse-old.{os.getpid()}-0.tmp"
        shutil.rmtree(old, ignore_errors=True)
        target.rename(old)
        shutil.rmtree(old, ignore_errors=True)
    with replacing(target) as temporary:
        temporary.mkdir()
        for index, model in enumerate(models):
            colour_points(model, lambda name: load_image(folder.path(name)).rgb)
            place = temporary / str(index)
            (place / "text").mkdir(parents=True)
            model.write(place)
            model.write_text(place / "text")
            model.export_PLY(place / "points.ply")


def write_model_page(models: Sequence[Any], path: Path, say: Callable[[str], None]) -> None:
    """model.html of the largest model."""
    if not models:
        return
    try:
        from coam.viz import scene_page
    except ImportError:
        say("model.html was not written: coam.viz has no scene_page")
        return
    model = models[0]
    points = np.array([point.xyz for point in model.points3D.values()]).reshape(-1, 3)
    colours = np.array([point.color for point in model.points3D.values()], np.uint8).reshape(-1, 3)
    with replacing(path) as temporary:
        temporary.write_text(scene_page(points, colours, scene_cameras(model)))


def scene_cameras(model: Any) -> list[tuple[Any, ...]]:
    """Registered cameras as `coam.viz.scene_page` takes them."""
    cameras = []
    for image_id in sorted(model.reg_image_ids()):
        image = model.image(image_id)
        pose, camera = image.cam_from_world(), image.camera
        rotation, translation = np.asarray(pose.rotation.matrix()), np.asarray(pose.translation)
        cameras.append(
            (image.name, rotation, translation, camera.mean_focal_length(), camera.width, camera.height)
        )
    return cameras

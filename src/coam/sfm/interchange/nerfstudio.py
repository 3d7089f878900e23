"""A model for nerfstudio, and for whatever else learns radiance fields or splats from posed photos.

The folder holds images/ without distortion, transforms.json with their cameras, and sparse_pc.ply with the
points. Poses are world-from-camera with the axes of OpenGL (x right, y up, looking along -z), in the model's
own world; the principal point counts from the corner of the first pixel, as COLMAP's does.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from coam.sfm.colmap_model import as_pose, read_model, registered_images
from coam.sfm.dense.undistorted import undistort_photos
from coam.store.atomic import atomic_folder, write_json

POINTS = "sparse_pc.ply"


def export_nerfstudio(model: Path, photos: Path, target: Path, size: int | None = None) -> Path:
    """Write the folder `target` from a COLMAP model and the folder of its photos; gives the folder.

    size: long side in pixels to which larger photos are shrunk.
    """
    with atomic_folder(target) as temporary:
        undistort_photos(model, photos, temporary, size)
        flat = read_model(temporary / "sparse")
        frames = [_frame(name, image) for name, image in sorted(registered_images(flat).items())]
        flat.export_PLY(temporary / POINTS)
        for entry in temporary.iterdir():
            if entry.name not in ("images", POINTS):
                shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        content = {"camera_model": "PINHOLE", "ply_file_path": POINTS, "frames": frames}
        write_json(temporary / "transforms.json", content)
    return target


def _frame(name: str, image: Any) -> dict[str, Any]:
    rotation, translation = as_pose(image.cam_from_world())
    world_from_camera = np.eye(4)
    world_from_camera[:3, :3] = rotation.T * np.array(
        [1.0, -1.0, -1.0]
    )  # y down and z ahead become up and back
    world_from_camera[:3, 3] = -rotation.T @ translation
    focal_x, focal_y, centre_x, centre_y = (float(value) for value in image.camera.params)
    return {
        "file_path": f"images/{name}",
        "fl_x": focal_x,
        "fl_y": focal_y,
        "cx": centre_x,
        "cy": centre_y,
        "w": int(image.camera.width),
        "h": int(image.camera.height),
        "transform_matrix": world_from_camera.tolist(),
    }

"""MegaDepth in its exact published layout, made of rendered views."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
from PIL import Image

from support.rendered_world import camera_pose, render

CAMERA = np.array([[150.0, 0, 99.5], [0, 150.0, 79.5], [0, 0, 1]])  # our pixels
WIDTH, HEIGHT = 200, 160
POSES = [camera_pose((-0.4, 0, 0), 3.0), camera_pose((0.3, 0.1, 0), -4.0), camera_pose((0.9, 0, 0.4), -12.0)]


def write_scene(root: Path, scene: str, photo_scale: int = 1, angle: float = 10.0) -> None:
    """Three rendered views and a fourth without depth, as D2-Net's preprocessing writes them.

    angle: degrees that the file says are between the axes of any two; they are not measured again.
    """
    photos = Path("Undistorted_SfM") / scene / "images"
    depths = Path("phoenix/S6/zl548/MegaDepth_v1") / scene / "dense0" / "depths"
    for folder in (photos, depths, Path("scene_info")):
        (root / folder).mkdir(parents=True, exist_ok=True)
    colmap_camera = CAMERA.copy()
    colmap_camera[:2, 2] += 0.5
    for index, pose in enumerate(POSES):
        colour, depth = render(pose, CAMERA, WIDTH, HEIGHT)
        picture = Image.fromarray(colour)
        picture = picture.resize((WIDTH * photo_scale, HEIGHT * photo_scale), Image.Resampling.BICUBIC)
        picture.save(root / photos / f"{index}.png")
        with h5py.File(root / depths / f"{index}.h5", "w") as file:
            file["depth"] = depth
    overlap = np.full((4, 4), 0.6)
    overlap[0, 2] = overlap[2, 0] = 0.15  # below the default bound
    np.savez(
        root / "scene_info" / f"{scene}.0.npz",
        image_paths=np.array([*(str(photos / f"{k}.png") for k in range(3)), None], dtype=object),
        depth_paths=np.array([*(str(depths / f"{k}.h5") for k in range(3)), None], dtype=object),
        intrinsics=object_array([colmap_camera] * 3 + [None]),
        poses=object_array([np.vstack([p, [0, 0, 0, 1]]) for p in POSES] + [None]),
        points3D_id_to_2D=np.array([{1: [0.5, 0.5]}] * 4, dtype=object),
        overlap_matrix=overlap,
        scale_ratio_matrix=np.ones((4, 4)),
        angles=np.full((4, 4), angle),
    )


def object_array(values: list[object]) -> np.ndarray:
    array = np.empty(len(values), dtype=object)
    array[:] = values
    return array

"""A folder of rendered RGB-D frames with known truth."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image

from support.rendered_world import camera_pose, render

CAMERA = np.array([[150.0, 0, 99.5], [0, 150.0, 79.5], [0, 0, 1]])
WIDTH, HEIGHT = 200, 160
POSES = [
    camera_pose((-0.5, 0, 0), 4.0),
    camera_pose((0.2, 0.05, 0.2), -2.0),
    camera_pose((0.8, 0, 0), -9.0),
    camera_pose((0.0, 0, 0), 110.0),  # looks away from everything
]


def write_frames(folder: Path) -> None:
    folder.mkdir()
    np.savetxt(folder / "intrinsics.txt", CAMERA)
    for index, pose in enumerate(POSES):
        colour, depth = render(pose, CAMERA, WIDTH, HEIGHT)
        Image.fromarray(colour).save(folder / f"{index}.color.jpg", quality=95)
        steps = np.where((depth > 0) & (depth < 60), np.rint(depth * 1000), 65535).astype(np.uint16)
        Image.fromarray(steps).save(folder / f"{index}.depth.png")
        np.savetxt(folder / f"{index}.pose.txt", np.linalg.inv(np.vstack([pose, [0, 0, 0, 1]])))

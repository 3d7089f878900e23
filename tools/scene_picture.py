"""A reconstruction as a picture: the point cloud and the cameras, seen from before them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.types import Size
from coam.viz.colours import ACCENT, ByteImage
from coam.viz.scene import EDGES, SceneCamera, upright_scene

BACKGROUND = (21, 24, 29)


def draw_scene(
    points: npt.ArrayLike,
    colours: npt.ArrayLike,
    cameras: Sequence[SceneCamera | tuple[Any, ...]],
    *,
    size: Size = (1200, 800),
    yaw: float = 25.0,
    pitch: float = 15.0,
    distance: float | None = None,
    point_radius: int | None = None,
) -> Image.Image:
    """The scene as a picture of `size`, from `yaw` degrees right of and `pitch` above the cameras' mean view.

    distance: of the viewer, in radii of the scene (default: so that points and cameras are in view).
    point_radius: in pixels (default: by the number of points).
    """
    scene = upright_scene(points, colours, cameras)
    distance = scene.distance if distance is None else distance
    if point_radius is None:
        point_radius = 1 if len(scene.points) > 20_000 else 2
    view = _look_from(np.radians(yaw), np.radians(pitch))
    canvas = np.full((size[1], size[0], 3), BACKGROUND, dtype=np.uint8)
    pixels, depth = _project(scene.points @ view.T, distance, size)
    _splat(canvas, pixels, depth, scene.colours, point_radius)
    layer = canvas.copy()
    corners, corner_depth = _project(scene.frusta.reshape(-1, 3) @ view.T, distance, size)
    for index in range(len(scene.frusta)):
        for start, end in EDGES + 6 * index:
            if corner_depth[[start, end]].min() > 0.05 and np.abs(corners[[start, end]]).max() < 1e5:
                first, last = (tuple(int(v) for v in np.rint(corners[k] * 16)) for k in (start, end))
                cv2.line(layer, first, last, ACCENT, 1, cv2.LINE_AA, 4)
    return Image.fromarray(np.asarray(cv2.addWeighted(layer, 0.8, canvas, 0.2, 0), dtype=np.uint8))


def _look_from(yaw: float, pitch: float) -> npt.NDArray[np.float64]:
    """Rotation (3, 3) from the upright frame to a viewer who looks along -z."""
    around = np.array([[np.cos(yaw), 0, -np.sin(yaw)], [0, 1, 0], [np.sin(yaw), 0, np.cos(yaw)]])
    tilt = np.array([[1, 0, 0], [0, np.cos(pitch), -np.sin(pitch)], [0, np.sin(pitch), np.cos(pitch)]])
    return np.asarray(tilt @ around)


def _project(
    xyz: npt.NDArray[Any], distance: float, size: Size
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """Pixels (N, 2) and depths (N,) of `xyz` (N, 3) in the viewer's frame, `distance` before the viewer."""
    depth = distance - xyz[:, 2].astype(np.float64)
    focal = 1.2 * min(size)
    safe = np.where(depth > 0.05, depth, np.inf)
    return np.stack(
        [size[0] / 2 + focal * xyz[:, 0] / safe, size[1] / 2 - focal * xyz[:, 1] / safe], axis=-1
    ), depth


def _splat(
    canvas: ByteImage,
    pixels: npt.NDArray[np.float64],
    depth: npt.NDArray[np.float64],
    colours: ByteImage,
    radius: int,
) -> None:
    """Paint small squares, far ones first, so that near ones cover them."""
    height, width = canvas.shape[:2]
    on_canvas = (pixels >= -radius).all(axis=1) & (pixels < (width + radius, height + radius)).all(axis=1)
    inside = on_canvas & (depth > 0.05)
    order = np.flatnonzero(inside)[np.argsort(-depth[inside], kind="stable")]
    column, row = np.rint(pixels[order]).astype(np.int64).T
    offsets = range(-radius + 1, radius + 1) if radius > 0 else (0,)
    for dy in offsets:
        for dx in offsets:
            x, y = column + dx, row + dy
            good = (x >= 0) & (x < width) & (y >= 0) & (y < height)
            canvas[y[good], x[good]] = colours[order[good]]

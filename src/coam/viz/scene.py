"""A reconstruction to look at: points and cameras, as a picture and as a self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import DataError
from coam.types import FloatArray, Size
from coam.viz.colours import ACCENT, ByteImage
from coam.viz.html import base64_array, fill_page

MOST_POINTS = 500_000
_BACKGROUND = (21, 24, 29)
_UNKNOWN_COLOUR = (170, 180, 195)
_FRUSTUM_DEPTH = 0.09  # of the scene's radius
_PAIRS = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (5, 1), (5, 2)])


class SceneCamera(NamedTuple):
    """A photo's camera: `rotation` (3, 3) and `translation` (3,) camera-from-world, `focal` in pixels."""

    name: str
    rotation: npt.NDArray[Any]
    translation: npt.NDArray[Any]
    focal: float
    width: int
    height: int


@dataclass(frozen=True)
class UprightScene:
    """The scene turned upright (y up, the cameras look along -z), centred, and scaled to radius 1."""

    points: FloatArray  # (N, 3)
    colours: ByteImage  # (N, 3)
    frusta: (
        FloatArray  # (M, 6, 3): centre, the four corners of the picture from top left clockwise, a top mark
    )
    names: list[str]  # M
    distance: float  # from which the points and most cameras are in view


def upright_scene(
    points: npt.ArrayLike, colours: npt.ArrayLike, cameras: Sequence[SceneCamera | tuple[Any, ...]]
) -> UprightScene:
    """Bring `points` (N, 3) with `colours` (N, 3) bytes, and `cameras`, into a frame that is good to look at.

    Up is against the mean of the cameras' y axes: people hold cameras level. Distant stray points do not
    count for centre and scale. Of more than `MOST_POINTS` points a random choice is kept, always the same.
    """
    xyz = np.asarray(points, dtype=np.float64).reshape(-1, 3)
    rgb = np.asarray(colours, dtype=np.uint8).reshape(-1, 3)
    if len(xyz) != len(rgb):
        raise DataError(f"there are {len(xyz)} points but {len(rgb)} colours; give one colour per point")
    finite = np.isfinite(xyz).all(axis=1)
    xyz, rgb = xyz[finite], rgb[finite]
    if len(xyz) > MOST_POINTS:
        kept = np.sort(np.random.default_rng(0).choice(len(xyz), MOST_POINTS, replace=False))
        xyz, rgb = xyz[kept], rgb[kept]
    if len(rgb) and not rgb.any():
        rgb = np.full_like(rgb, _UNKNOWN_COLOUR)  # COLMAP writes black where no colours were extracted
    views = [SceneCamera(*camera) for camera in cameras]
    rotations = np.array([view.rotation for view in views], dtype=np.float64).reshape(-1, 3, 3)
    translations = np.array([view.translation for view in views], dtype=np.float64).reshape(-1, 3)
    if not (np.isfinite(rotations).all() and np.isfinite(translations).all()):
        raise DataError("a camera pose holds nan or infinity; leave out photos that were not registered")
    centres = -np.einsum("nji,nj->ni", rotations, translations)
    turn = _upright_rotation(rotations)
    middle, radius = _middle_and_radius(xyz if len(xyz) else centres)
    frusta = np.array(
        [_frustum(view, centre, radius) for view, centre in zip(views, centres, strict=True)]
    ).reshape(-1, 6, 3)
    placed = ((frusta - middle) / radius) @ turn.T
    reach = float(np.percentile(np.linalg.norm(placed[:, 0], axis=1), 80)) if len(views) else 1.0
    return UprightScene(
        (((xyz - middle) / radius) @ turn.T).astype(np.float32),
        rgb,
        placed.astype(np.float32),
        [view.name for view in views],
        float(np.clip(1.6 * reach, 2.6, 5.0)),
    )


def scene_page(
    points: npt.ArrayLike,
    colours: npt.ArrayLike,
    cameras: Sequence[SceneCamera | tuple[Any, ...]],
    *,
    title: str = "reconstruction",
) -> str:
    """A self-contained HTML page: orbit, zoom and pan around `points` (N, 3) and `cameras`, mouse or touch.

    colours: (N, 3) bytes. cameras: (name, rotation, translation, focal, width, height), camera-from-world.
    """
    scene = upright_scene(points, colours, cameras)
    data = {
        "title": title,
        "count": len(scene.points),
        "points": base64_array(scene.points),  # (N, 3) float32
        "colours": base64_array(scene.colours),  # (N, 3) uint8
        "names": scene.names,
        "frusta": base64_array(scene.frusta),  # (M, 6, 3) float32
        "distance": scene.distance,
        "edges": _PAIRS.tolist(),
        "accent": [channel / 255 for channel in ACCENT],
    }
    return fill_page("scene.html", title, data)


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
    canvas = np.full((size[1], size[0], 3), _BACKGROUND, dtype=np.uint8)
    pixels, depth = _project(scene.points @ view.T, distance, size)
    _splat(canvas, pixels, depth, scene.colours, point_radius)
    layer = canvas.copy()
    corners, corner_depth = _project(scene.frusta.reshape(-1, 3) @ view.T, distance, size)
    for index in range(len(scene.frusta)):
        for start, end in _PAIRS + 6 * index:
            if corner_depth[[start, end]].min() > 0.05 and np.abs(corners[[start, end]]).max() < 1e5:
                first, last = (tuple(int(v) for v in np.rint(corners[k] * 16)) for k in (start, end))
                cv2.line(layer, first, last, ACCENT, 1, cv2.LINE_AA, 4)
    return Image.fromarray(np.asarray(cv2.addWeighted(layer, 0.8, canvas, 0.2, 0), dtype=np.uint8))


def _upright_rotation(rotations: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """World to upright frame, (3, 3), from the cameras' rotations (M, 3, 3)."""
    if len(rotations) == 0:
        return np.diag([1.0, -1.0, -1.0])
    up = -rotations[:, 1].mean(
        axis=0
    )  # row 1 of camera-from-world is the camera's y axis (down) in the world
    if np.linalg.norm(up) < 1e-6:
        up = -rotations[0, 1]
    up = up / np.linalg.norm(up)
    back = -rotations[:, 2].mean(axis=0)
    back = back - up * (back @ up)
    if np.linalg.norm(back) < 0.1:  # cameras all around: no common direction; take the first one's
        back = -rotations[0, 2] + up * (rotations[0, 2] @ up)
    if np.linalg.norm(back) < 1e-6:
        back = np.cross(up, np.eye(3)[np.argmin(np.abs(up))])
    back = back / np.linalg.norm(back)
    return np.stack([np.cross(up, back), up, back])


def _middle_and_radius(xyz: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float64], float]:
    if len(xyz) == 0:
        return np.zeros(3), 1.0
    middle = np.median(xyz, axis=0)
    radius = float(np.percentile(np.linalg.norm(xyz - middle, axis=1), 90))
    return middle, radius if radius > 1e-12 else 1.0


def _frustum(view: SceneCamera, centre: npt.NDArray[np.float64], radius: float) -> npt.NDArray[np.float64]:
    """The pyramid (6, 3) of a camera in the world: centre, corners, and a mark above the top edge."""
    depth = _FRUSTUM_DEPTH * radius
    x, y = depth * view.width / view.focal / 2, depth * view.height / view.focal / 2
    corners = np.array(
        [(0, 0, 0), (-x, -y, depth), (x, -y, depth), (x, y, depth), (-x, y, depth), (0, -1.4 * y, depth)]
    )
    return np.asarray(corners @ np.asarray(view.rotation, dtype=np.float64) + centre)


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

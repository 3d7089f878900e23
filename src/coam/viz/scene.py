"""A reconstruction, point cloud and cameras, as a self-contained page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.types import FloatArray
from coam.viz.canvas import fitted, resize
from coam.viz.colours import ACCENT, CORRECT, ByteImage
from coam.viz.html import base64_array, fill_page, photo_uri

MOST_POINTS = 1_000_000
PHOTO_SIDE = 480  # pixels of the long side of photos in their frusta
_UNKNOWN_COLOUR = (170, 180, 195)
_FRUSTUM_DEPTH = 0.09  # of the scene's radius
# of a frustum, between its points: the pyramid, and the mark above the top edge
EDGES = np.array([(0, 1), (0, 2), (0, 3), (0, 4), (1, 2), (2, 3), (3, 4), (4, 1), (5, 1), (5, 2)])


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
    frusta: FloatArray  # (M, 6, 3): centre, the picture's corners from top left clockwise, a top mark
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
    photos: Sequence[ByteImage | None] = (),
    located: Sequence[str] = (),
) -> str:
    """A self-contained HTML page: orbit, zoom and pan around `points` (N, 3) and `cameras`, mouse or touch.

    colours: (N, 3) bytes. cameras: (name, rotation, translation, focal, width, height), camera-from-world.
    photos: the cameras' pictures (H, W, 3), shown in their frusta and on a click; None: has none.
    located: names of cameras that were added to the model afterwards; they have another colour.
    """
    if photos and len(photos) != len(cameras):
        raise DataError(
            f"there are {len(cameras)} cameras but {len(photos)} photos; give one photo per camera"
        )
    scene = upright_scene(points, colours, cameras)
    # In random order, so that any beginning shows the whole: while the view moves, pages draw what they can.
    order = np.random.default_rng(0).permutation(len(scene.points))
    data = {
        "title": title,
        "count": len(scene.points),
        "points": base64_array(scene.points[order]),  # (N, 3) float32
        "colours": base64_array(scene.colours[order]),  # (N, 3) uint8
        "names": scene.names,
        "frusta": base64_array(scene.frusta),  # (M, 6, 3) float32
        "distance": scene.distance,
        "edges": EDGES.tolist(),
        "accent": [channel / 255 for channel in ACCENT],
        "photos": [None if photo is None else _small_uri(photo) for photo in photos],
        "located": [name in set(located) for name in scene.names],
        "locatedColour": [channel / 255 for channel in CORRECT],
    }
    return fill_page("scene.html", title, data)


def _small_uri(photo: ByteImage) -> str:
    height, width = photo.shape[:2]
    return photo_uri(resize(photo, fitted((width, height), min(PHOTO_SIDE, max(width, height)))), 80)


def _upright_rotation(rotations: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """World to upright frame, (3, 3), from the cameras' rotations (M, 3, 3)."""
    if len(rotations) == 0:
        return np.diag([1.0, -1.0, -1.0])
    up = -rotations[:, 1].mean(axis=0)  # row 1 of camera-from-world: the camera's y axis (down) in the world
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

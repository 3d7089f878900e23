"""Views of photos through homographies: zoomed, turned, or warped to the viewpoint of the other photo.

A network matches what differs by about two zooms and forty degrees. What it is shown of a photo is a view;
points found in views are mapped back, so whoever uses matches never sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coam.geometry.homography import apply_homography, depth_under, resize_matrix
from coam.images import RGB
from coam.images.resize import MOST_UPSCALED, MULTIPLE, as_tensor
from coam.models.outputs import EncodedImage
from coam.types import Size

Array = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]  # left, top, right, bottom


@dataclass(frozen=True)
class View:
    """What a network is shown of a photo: `size` (width, height) pixels through `photo_from_view` (3, 3)."""

    photo_from_view: Array
    size: Size


class EncodedViews:
    """Views of one photo, rendered and encoded once each."""

    def __init__(self, rgb: RGB, encode: Callable[[Tensor], EncodedImage]) -> None:
        self._rgb, self._encode = rgb, encode
        self._known: dict[tuple[bytes, Size], EncodedImage] = {}

    def __getitem__(self, view: View) -> EncodedImage:
        key = (view.photo_from_view.tobytes(), view.size)
        if key not in self._known:
            self._known[key] = self._encode(as_tensor(render_view(self._rgb, view)))
        return self._known[key]


class ViewPair(NamedTuple):
    """A view of each photo of a pair."""

    view0: View
    view1: View


@dataclass(frozen=True)
class ViewOptions:
    """Which views are shown, and how."""

    search_resolution: int = 480  # pixels, long side at which zooms and turns are tried: enough to tell
    search_zooms: tuple[float, ...] = (0.5, 0.25)  # of one photo against the other
    oversampling: float = 2.0  # view pixels per pixel of the coarser photo: there is no more to see beyond
    margin: float = 0.05  # of the common part, kept around it
    smallest_part: float = 16.0  # pixels: a smaller common part is not shown


def whole_view(size: Size, resolution: float, turns: int = 0) -> View:
    """All of a photo of `size`, its long side `resolution` pixels, turned counter-clockwise by quarters."""
    width, height = size
    scale = min(resolution / max(size), MOST_UPSCALED)
    shape = _network_size(width * scale, height * scale)
    matrix = resize_matrix((width / shape[0], height / shape[1]))
    for _ in range(turns % 4):
        # The pixel (x, y) of a picture turned once comes from (w - 1 - y, x) of the one before, w wide.
        matrix = matrix @ np.array([[0.0, -1.0, shape[0] - 1.0], [1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        shape = (shape[1], shape[0])
    return View(matrix, shape)


def search_views(size0: Size, size1: Size, resolution: int, options: ViewOptions) -> Iterator[ViewPair]:
    """Test-time augmentation for hard pairs: either photo smaller than the other, and photo 1 turned."""
    side = min(resolution, options.search_resolution)
    for zoom in options.search_zooms:
        yield ViewPair(whole_view(size0, side), whole_view(size1, side * zoom))
        yield ViewPair(whole_view(size0, side * zoom), whole_view(size1, side))
    for turns in (1, 2, 3):
        yield ViewPair(whole_view(size0, side), whole_view(size1, side, turns))


def aligned_views(
    homography: Array, size0: Size, size1: Size, resolution: int, options: ViewOptions
) -> ViewPair | None:
    """Both photos as photo 0 sees what they have in common; None where that is next to nothing.

    homography (3, 3): photo 0 -> photo 1.
    """
    box = common_part(homography, size0, size1, options)
    if box is None:
        return None
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    zoom = _local_scale(homography, np.array([(left + right) / 2, (top + bottom) / 2]))
    scale = min(resolution / max(width, height), options.oversampling * min(1.0, zoom))
    size = _network_size(width * scale, height * scale)
    shift = np.array([[1.0, 0.0, left], [0.0, 1.0, top], [0.0, 0.0, 1.0]])
    photo0_from_view = shift @ resize_matrix((width / size[0], height / size[1]))
    return ViewPair(View(photo0_from_view, size), View(homography @ photo0_from_view, size))


def common_part(homography: Array, size0: Size, size1: Size, options: ViewOptions) -> Box | None:
    """The box of photo 0 that photo 1 shows as well, with a margin; None where it is too small."""
    x, y = np.meshgrid(np.linspace(0, size0[0] - 1, 64), np.linspace(0, size0[1] - 1, 64))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    mapped = apply_homography(homography, points)
    seen = (mapped >= -0.5).all(axis=1) & (mapped <= np.asarray(size1) - 0.5).all(axis=1)
    seen &= depth_under(homography, points) > 0
    if seen.sum() < 16:
        return None
    low, high = points[seen].min(axis=0), points[seen].max(axis=0)
    margin = options.margin * (high - low)
    low, high = np.maximum(low - margin, 0), np.minimum(high + margin, np.asarray(size0) - 1.0)
    if (high - low).min() < options.smallest_part:
        return None
    return float(low[0]), float(low[1]), float(high[0]), float(high[1])


def render_view(rgb: RGB, view: View) -> RGB:
    """The picture (h, w, 3) of a photo (H, W, 3) in a view; black where the photo ends."""
    import cv2

    height, width = rgb.shape[:2]
    photo_from_view = view.photo_from_view
    shrink = _local_scale(photo_from_view, (np.asarray(view.size, dtype=np.float64) - 1) / 2)
    if shrink > 1:  # area means first: the warp itself only looks at four neighbours
        small = (max(1, round(width / shrink)), max(1, round(height / shrink)))
        rgb = np.asarray(cv2.resize(rgb, small, interpolation=cv2.INTER_AREA), dtype=np.uint8)
        photo_from_view = resize_matrix((small[0] / width, small[1] / height)) @ photo_from_view
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    return np.asarray(cv2.warpPerspective(rgb, photo_from_view, view.size, flags=flags), dtype=np.uint8)


def _local_scale(homography: Array, point: Array) -> float:
    """How many pixels a homography makes of one at a point (2,): the root of its area factor."""
    around = point + np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5]])
    origin, right, below = apply_homography(homography, around)
    (a, b), (c, d) = (right - origin) * 2, (below - origin) * 2
    area = abs(a * d - b * c)
    return math.sqrt(area) if math.isfinite(area) and area > 0 else 1.0


def _network_size(width: float, height: float) -> Size:
    return max(1, round(width / MULTIPLE)) * MULTIPLE, max(1, round(height / MULTIPLE)) * MULTIPLE

"""Views of photos: zoomed, turned, tilted, in another light, or warped to the viewpoint of the other photo.

A network matches what differs by about two zooms and forty degrees. What it is shown of a photo is a view;
points found in views are mapped back, so whoever uses matches never sees them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.backends.batches import split_encoded
from coam.geometry.coordinates import point_grid
from coam.geometry.homography import apply_homography, depth_under, resize_matrix
from coam.images import RGB
from coam.images.resize import MOST_UPSCALED, MULTIPLE, as_tensor
from coam.matcher.lights import USUAL_LIGHTS, Light, LightOptions, relight
from coam.models.outputs import EncodedImage
from coam.types import Size

Array = npt.NDArray[np.float64]
Box = tuple[float, float, float, float]  # left, top, right, bottom

MOST_FINER = 6  # times: pictures drawn larger before area means
FINE_ENOUGH = 0.5  # photo pixels beyond one per drawn pixel: no more than a bilinear warp may skip


@dataclass(frozen=True)
class Change:
    """How a photo is shown otherwise than it was taken: an affine map and a light."""

    zoom: float = 1.0  # times as large
    turn: float = 0.0  # degrees, counter-clockwise
    tilt: float = 1.0  # times as narrow, as a wall is seen from arccos(1 / tilt) aside
    direction: float = 0.0  # degrees from the x axis towards y: along which it is narrow
    light: Light = "as taken"


AS_TAKEN = Change()


@dataclass(frozen=True)
class View:
    """What a network is shown of a photo: `size` (width, height) pixels through `photo_from_view` (3, 3)."""

    photo_from_view: Array
    size: Size
    light: Light = "as taken"


class EncodedViews:
    """Views of one photo, rendered and encoded once each."""

    def __init__(
        self, rgb: RGB, encode: Callable[[Tensor], EncodedImage], lights: LightOptions = USUAL_LIGHTS
    ) -> None:
        self._rgb, self._encode, self._lights = rgb, encode, lights
        self._known: dict[tuple[bytes, Size, Light], EncodedImage] = {}

    def __getitem__(self, view: View) -> EncodedImage:
        for task in self.waiting([view]):
            task()
        return self._known[_key(view)]

    def waiting(self, views: Iterable[View]) -> list[Callable[[], None]]:
        """Tasks that encode those that are not yet, views of one size as one batch."""
        groups: dict[Size, dict[tuple[bytes, Size, Light], View]] = {}
        for view in views:
            if _key(view) not in self._known:
                groups.setdefault(view.size, {})[_key(view)] = view
        return [partial(self._encode_batch, group) for group in groups.values()]

    def _encode_batch(self, group: dict[tuple[bytes, Size, Light], View]) -> None:
        pictures = [
            relight(render_view(self._rgb, view), view.light, self._lights) for view in group.values()
        ]
        batch = self._encode(torch.cat([as_tensor(picture) for picture in pictures]))
        self._known.update(zip(group, split_encoded(batch), strict=True))


def _key(view: View) -> tuple[bytes, Size, Light]:
    return view.photo_from_view.tobytes(), view.size, view.light


class ViewPair(NamedTuple):
    """A view of each photo of a pair."""

    view0: View
    view1: View


@dataclass(frozen=True)
class ViewOptions:
    """How views are shown."""

    oversampling: float = 2.0  # view pixels per pixel of the coarser photo: there is no more to see beyond
    margin: float = 0.05  # of the common part, kept around it
    smallest_part: float = 16.0  # pixels: a smaller common part is not shown
    lights: LightOptions = field(default_factory=LightOptions)


def changed_view(size: Size, resolution: float, change: Change = AS_TAKEN) -> View:
    """All of a photo of `size`, its long side `resolution` pixels before it is changed."""
    scale = min(resolution / max(size), MOST_UPSCALED) * change.zoom
    along = _rotation(change.direction)
    # Image rows run down: counter-clockwise to the eye is a negative angle here.
    matrix = _rotation(-change.turn) @ along @ np.diag([1 / change.tilt, 1.0]) @ along.T * scale
    corners = np.array([[0, 0], [size[0], 0], [0, size[1]], [size[0], size[1]]]) @ matrix.T
    low, high = corners.min(axis=0), corners.max(axis=0)
    shape = _network_size(*(high - low))
    matrix = np.diag(np.asarray(shape) / (high - low)) @ matrix
    view_from_photo = np.eye(3)
    view_from_photo[:2, :2] = matrix
    # Centres on centres; pixel centres are half a pixel beyond the corner from which corners are measured.
    view_from_photo[:2, 2] = (np.asarray(shape) - 1) / 2 - matrix @ (np.asarray(size) - 1) / 2
    return View(np.asarray(np.linalg.inv(view_from_photo), dtype=np.float64), shape, change.light)


def aligned_views(
    homography: Array,
    size0: Size,
    size1: Size,
    resolution: int,
    options: ViewOptions,
    lights: tuple[Light, Light] = ("as taken", "as taken"),
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
    return ViewPair(
        View(photo0_from_view, size, lights[0]), View(homography @ photo0_from_view, size, lights[1])
    )


def common_part(homography: Array, size0: Size, size1: Size, options: ViewOptions) -> Box | None:
    """The box of photo 0 that photo 1 shows as well, with a margin; None where it is too small."""
    points = point_grid(size0, 64)
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
    """The picture (h, w, 3) of a photo (H, W, 3) in a view, as it was taken; black where the photo ends."""
    import cv2

    height, width = rgb.shape[:2]
    photo_from_view = view.photo_from_view
    least, most = _photo_pixels(photo_from_view, (np.asarray(view.size, dtype=np.float64) - 1) / 2)
    if least > 1:  # area means first: the warp itself only looks at four neighbours
        small = (max(1, round(width / least)), max(1, round(height / least)))
        rgb = np.asarray(cv2.resize(rgb, small, interpolation=cv2.INTER_AREA), dtype=np.uint8)
        photo_from_view = resize_matrix((small[0] / width, small[1] / height)) @ photo_from_view
    # What is narrow in one direction only is shown larger, and narrowed by area means afterwards.
    finer = min(MOST_FINER, math.ceil(most / max(least, 1.0) - FINE_ENOUGH))
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    if finer <= 1:
        return np.asarray(cv2.warpPerspective(rgb, photo_from_view, view.size, flags=flags), dtype=np.uint8)
    from_fine = photo_from_view @ np.linalg.inv(resize_matrix((finer, finer)))
    fine = cv2.warpPerspective(rgb, from_fine, (view.size[0] * finer, view.size[1] * finer), flags=flags)
    return np.asarray(cv2.resize(fine, view.size, interpolation=cv2.INTER_AREA), dtype=np.uint8)


def _jacobian(homography: Array, point: Array) -> Array:
    """The derivative (2, 2) of a homography at a point (2,); the unit matrix where it has none."""
    around = point + np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5]])
    origin, right, below = apply_homography(homography, around)
    jacobian = np.column_stack([right - origin, below - origin]) * 2
    return jacobian if np.isfinite(jacobian).all() else np.eye(2)


def _photo_pixels(homography: Array, point: Array) -> tuple[float, float]:
    """How many pixels a homography makes of one at a point (2,), in the directions of the fewest and most."""
    most, least = np.linalg.svd(_jacobian(homography, point), compute_uv=False)
    return float(least), float(most)


def _local_scale(homography: Array, point: Array) -> float:
    """How many pixels a homography makes of one at a point (2,): the root of its area factor."""
    area = abs(np.linalg.det(_jacobian(homography, point)))
    return math.sqrt(area) if area > 0 else 1.0


def _rotation(degrees: float) -> Array:
    cosine, sine = math.cos(math.radians(degrees)), math.sin(math.radians(degrees))
    return np.array([[cosine, -sine], [sine, cosine]])


def _network_size(width: float, height: float) -> Size:
    return max(1, round(width / MULTIPLE)) * MULTIPLE, max(1, round(height / MULTIPLE)) * MULTIPLE

"""Looking at a pair more than once.

A network finds what differs by about two zooms and forty degrees. So when a first look finds nothing, photos
are shown at other zooms and turned; and when a look finds the rough geometry, both photos are shown once more
from one viewpoint, cut to what they have in common, where matches are easier to find and more exact.

All of these are pairs of views: pictures of the photos through homographies. Points found in views are mapped
back, so whoever uses matches never sees them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from coam.geometry.homography import apply_homography, resize_matrix
from coam.geometry.parallax import off_plane
from coam.geometry.robust import RansacOptions, estimate_fundamental, estimate_homography
from coam.images import RGB
from coam.resizing import MOST_UPSCALED
from coam.types import FloatArray, Matches, Size

Array = npt.NDArray[np.float64]

MULTIPLE = 32  # sides of views, as of all pictures that a network is shown
SEARCH_RESOLUTION = 480  # long side at which zooms and turns are tried: enough to find out which is right
SEARCH_ZOOMS = (0.5, 0.25)  # of one photo against the other
TOLERANCE = 0.006  # of the long side: how far a match may lie from the common homography
EPIPOLAR_TOLERANCE = 0.002  # of the long side: how far from its epipolar line
CHANCE_SHARE = 0.05  # of wrong matches lie on their epipolar line all the same
JUDGED = 1000  # the best so many matches decide
FEWEST_AGREEING = 15  # matches on one homography: chance agreements are at most about six
FOUND_SHARE = 0.12  # of the matches: fewer agree on something wrong, too
SURE_SHARE = 0.3  # of the matches: a search that ends with fewer has found nothing for certain
FOUND_OVERLAP = 0.5  # probability: below, what agrees may be a repeated detail
PLANAR_SHARE = 0.93  # near the plane, of the matches that fit two views at all: below, the scene has depth
SETTLED_SHARE = 0.9  # of the matches
MOST_ALIGNED = 3  # looks from one viewpoint: each starts from a better estimate
LARGE_ZOOM, LARGE_TURN = 1.4, 20.0  # a scene with depth is looked at again beyond these (degrees)
FINEST = 2.0  # view pixels per pixel of the coarser photo: there is no more to see beyond
HEAD_START = 1.1  # of the second look: where as many agree in both, its matches are the more exact ones
APART = 0.01  # of the long side: this near to a match of the plane, the plane is what is seen
MARGIN = 0.05  # of the common part, kept around it


@dataclass(frozen=True)
class View:
    """What a network is shown of a photo: `size` (width, height) pixels through `photo_from_view` (3, 3)."""

    photo_from_view: Array
    size: Size


class Look(NamedTuple):
    """A view of each photo of a pair."""

    view0: View
    view1: View


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


def search_looks(size0: Size, size1: Size, resolution: int) -> Iterator[Look]:
    """Either photo smaller than the other, and photo 1 turned."""
    side = min(resolution, SEARCH_RESOLUTION)
    for zoom in SEARCH_ZOOMS:
        yield Look(whole_view(size0, side), whole_view(size1, side * zoom))
        yield Look(whole_view(size0, side * zoom), whole_view(size1, side))
    for turns in (1, 2, 3):
        yield Look(whole_view(size0, side), whole_view(size1, side, turns))


@dataclass(frozen=True)
class Sighting:
    """What a look has found, and the plane on which most of it lies."""

    matches: Matches
    homography: Array | None  # (3, 3) photo 0 -> photo 1; None: no more agree than chance would make agree
    agreeing: int = 0  # of the best `JUDGED` matches, those on that plane
    is_planar: bool = False  # those are nearly all that fit two views of one scene

    @property
    def share(self) -> float:
        """Of the judged matches those that agree."""
        return self.agreeing / max(1, min(JUDGED, len(self.matches)))

    @property
    def is_found(self) -> bool:
        """There is no need to search elsewhere. An unknown overlap (nan) is no objection."""
        return self.share >= FOUND_SHARE and not self.matches.overlap < FOUND_OVERLAP

    @property
    def is_settled(self) -> bool:
        """One more look would bring nothing new."""
        return self.share >= SETTLED_SHARE

    def trusted_after(self, first: Matches) -> Matches:
        """Its matches; of many looks one may seem right by chance, so what few agree on is not believed."""
        if self.matches is first or self.share >= SURE_SHARE or math.isnan(first.overlap):
            return self.matches
        return replace(self.matches, overlap=min(self.matches.overlap, first.overlap))

    def or_better(self, other: Sighting, head_start: float = 1.0) -> Sighting:
        """The one of which more matches agree (a sum of scores is unreliable on hard pairs)."""
        return other if other.agreeing * head_start > self.agreeing else self


def judge(matches: Matches) -> Sighting:
    """Find the plane on which most matches lie."""
    options = RansacOptions(threshold=TOLERANCE * max(matches.size1), confidence=0.9999, max_iterations=3000)
    best = matches.top(JUDGED)
    model = estimate_homography(best.points0, best.points1, options)
    if model is None or model.inliers.sum() < FEWEST_AGREEING:
        return Sighting(matches, None)
    # A plane that both cameras see from one side is neither mirrored nor partly behind one of them.
    depth = _depth(model.matrix, best.points0[model.inliers])
    matrix = model.matrix * np.sign(depth[0])
    if (depth * depth[0] <= 0).any() or np.linalg.det(matrix) <= 0:
        return Sighting(matches, None)
    error = np.linalg.norm(apply_homography(matrix, best.points0) - best.points1, axis=1)
    near = (error <= 2 * options.threshold).sum()  # a rough estimate of a plane still is one
    return Sighting(matches, matrix, int(model.inliers.sum()), bool(near >= PLANAR_SHARE * _consistent(best)))


def _consistent(matches: Matches) -> float:
    """How many matches fit two views of one scene, whatever its depth, beyond those that do by chance."""
    options = RansacOptions(
        threshold=EPIPOLAR_TOLERANCE * max(matches.size1), confidence=0.9999, max_iterations=3000
    )
    model = estimate_fundamental(matches.points0, matches.points1, options)
    return 0.0 if model is None else float(model.inliers.sum()) - CHANCE_SHARE * len(matches)


def aligned_look(sighting: Sighting, resolution: int) -> Look | None:
    """Both photos as photo 0 sees what they have in common; None where one more look brings nothing."""
    matches, matrix = sighting.matches, sighting.homography
    if matrix is None:
        return None
    # To one plane of many its matches would crowd; only zoom and turn hold for all of the scene.
    if not sighting.is_planar:
        matrix = _similarity(matches)
        if matrix is None or not _is_large(matrix):
            return None
    box = _common_part(matrix, matches.size0, matches.size1)
    return None if box is None else _look_at(box, matrix, resolution)


def nearest_ids(matches: Matches) -> npt.NDArray[np.int64]:
    """Grid positions of photo 1 that lie nearest to the matches: what a further look names them by."""
    assert matches.grid1 is not None
    return matches.grid1.nearest(matches.points1)


def with_depth(best: Sighting, first: Matches) -> Matches:
    """Matches of a look at one plane, and those of the first look that show what lies before and behind it.

    Two cameras that see one plane only could stand in two ways; a look from one viewpoint at the plane leaves
    little else. A quarter of the matches at most make room for it.
    """
    if best.homography is None or not best.is_planar:
        return best.matches
    first = first.select(_apart_from_plane(first, best))
    long_side = max(first.size1)
    agreeing = off_plane(
        first.points0,
        first.points1,
        best.homography,
        TOLERANCE * long_side,
        EPIPOLAR_TOLERANCE * long_side,
        FEWEST_AGREEING,
        CHANCE_SHARE,
    )
    if len(agreeing) == 0:
        return best.matches
    beyond = first.select(agreeing).top(len(best.matches) // 4)
    kept = best.matches.top(len(best.matches) - len(beyond))
    both = replace(
        kept,
        points0=np.concatenate([kept.points0, beyond.points0]),
        points1=np.concatenate([kept.points1, beyond.points1]),
        scores=np.concatenate([kept.scores, beyond.scores]),
        ids0=np.concatenate([kept.ids0, beyond.ids0]),
        ids1=np.concatenate([kept.ids1, nearest_ids(beyond)]),
    )
    return both.select(np.argsort(-both.scores, kind="stable"))


def _apart_from_plane(first: Matches, best: Sighting) -> npt.NDArray[np.bool_]:
    """Which matches (N,) may show something before or behind the plane of `best`.

    The plane would be seen at their places in both photos, but was not matched there: something hides it.
    Where it was matched, or is out of sight, it is rather a look-alike part of the plane that is wrong.
    """
    assert best.homography is not None
    apart = np.ones(len(first), dtype=np.bool_)
    sides = (
        (first.points0, best.matches.points0, best.homography, first.size0, first.size1),
        (first.points1, best.matches.points1, np.linalg.inv(best.homography), first.size1, first.size0),
    )
    for points, on_plane, matrix, own_size, other_size in sides:
        seen = apply_homography(matrix, points)
        apart &= ((seen >= 0) & (seen <= np.asarray(other_size) - 1)).all(axis=1)
        apart &= _gap_to_nearest(points, on_plane) > APART * max(own_size)
    return apart


def _gap_to_nearest(points: FloatArray, others: FloatArray) -> npt.NDArray[np.float32]:
    """Distance (N,) of each of points (N, 2) to the nearest of others (M, 2); infinite if there are none."""
    (x, y), (other_x, other_y) = (np.asarray(p, dtype=np.float32).reshape(-1, 2).T for p in (points, others))
    squared = np.square(x[:, None] - other_x) + np.square(y[:, None] - other_y)  # 15 times as fast as a norm
    gap: npt.NDArray[np.float32] = np.sqrt(squared.min(axis=1, initial=np.inf))
    return gap


def show(rgb: RGB, view: View) -> RGB:
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


def _look_at(box: tuple[float, float, float, float], matrix: Array, resolution: int) -> Look:
    """Views of the part (left, top, right, bottom) of photo 0 and of what `matrix` says it is in photo 1."""
    left, top, right, bottom = box
    width, height = right - left, bottom - top
    zoom = _local_scale(matrix, np.array([(left + right) / 2, (top + bottom) / 2]))
    scale = min(resolution / max(width, height), FINEST * min(1.0, zoom))
    size = _network_size(width * scale, height * scale)
    shift = np.array([[1.0, 0.0, left], [0.0, 1.0, top], [0.0, 0.0, 1.0]])
    photo0_from_view = shift @ resize_matrix((width / size[0], height / size[1]))
    return Look(View(photo0_from_view, size), View(matrix @ photo0_from_view, size))


def _common_part(matrix: Array, size0: Size, size1: Size) -> tuple[float, float, float, float] | None:
    """Left, top, right, bottom of what photo 1 shows of photo 0; None where that is next to nothing."""
    x, y = np.meshgrid(np.linspace(0, size0[0] - 1, 64), np.linspace(0, size0[1] - 1, 64))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    mapped = apply_homography(matrix, points)
    seen = (mapped >= -0.5).all(axis=1) & (mapped <= np.asarray(size1) - 0.5).all(axis=1)
    seen &= _depth(matrix, points) > 0
    if seen.sum() < 16:
        return None
    low, high = points[seen].min(axis=0), points[seen].max(axis=0)
    margin = MARGIN * (high - low)
    low, high = np.maximum(low - margin, 0), np.minimum(high + margin, np.asarray(size0) - 1.0)
    return None if (high - low).min() < MULTIPLE / 2 else (*low.tolist(), *high.tolist())


def _similarity(matches: Matches) -> Array | None:
    """Zoom, turn and shift (3, 3) that most matches share roughly."""
    import cv2

    best = matches.top(1000)
    cv2.setRNGSeed(0)
    matrix, _ = cv2.estimateAffinePartial2D(
        best.points0, best.points1, ransacReprojThreshold=8 * TOLERANCE * max(matches.size1)
    )
    return None if matrix is None else np.vstack([matrix, [0.0, 0.0, 1.0]])


def _is_large(similarity: Array) -> bool:
    zoom = math.hypot(similarity[0, 0], similarity[1, 0])
    turn = math.degrees(math.atan2(similarity[1, 0], similarity[0, 0]))
    return max(zoom, 1 / max(zoom, 1e-9)) > LARGE_ZOOM or abs(turn) > LARGE_TURN


def _depth(matrix: Array, points: npt.NDArray[np.floating]) -> Array:
    """Third coordinate (N,) of mapped points; its sign says on which side of infinity they are."""
    return np.asarray(points @ matrix[2, :2] + matrix[2, 2], dtype=np.float64)


def _local_scale(matrix: Array, point: Array) -> float:
    """How many pixels a homography makes of one at a point (2,): the root of its area factor."""
    around = point + np.array([[0.0, 0.0], [0.5, 0.0], [0.0, 0.5]])
    origin, right, below = apply_homography(matrix, around)
    (a, b), (c, d) = (right - origin) * 2, (below - origin) * 2
    area = abs(a * d - b * c)
    return math.sqrt(area) if math.isfinite(area) and area > 0 else 1.0


def _network_size(width: float, height: float) -> Size:
    return max(1, round(width / MULTIPLE)) * MULTIPLE, max(1, round(height / MULTIPLE)) * MULTIPLE

"""The depth map of a view: what its neighbours' warps agree on, then aligned in the photos.

Warps say where a place is to a pixel or so, whatever the light; photos of the same light say it to a tenth.
So depth is moved, a fraction of a pixel at a time, to where patches of the neighbours look most like the
view's own (zero-mean normalised cross-correlation). Patches are taken through the depth map itself, so they
lie on the surface as it slants.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from coam.sfm.dense.pair_depth import EpipolarMotion, PairDepth
from coam.sfm.dense.views import View
from coam.store.archives import read_plain_npz
from coam.store.atomic import atomic_write
from coam.types import FloatArray
from coam.warp.field import map_positions


@dataclass(frozen=True)
class DepthMap:
    """Inverse depth (h, w) along the optical axis, 0 where unknown, and the normals of the surface."""

    inverse_depth: FloatArray
    normals: FloatArray  # (h, w, 3) in world coordinates, towards the camera; 0 where unknown

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """(h, w)."""
        return self.inverse_depth > 0


@dataclass(frozen=True)
class AgreementOptions:
    """When neighbours' depths are one. Chosen on the courtyard."""

    radius: float = 2.0  # pixels of a neighbour: its depth and another that lie closer are one
    least: int = 2  # neighbours that must agree ...
    least_of_two: int = 1  # ... where a view has no more than two


@dataclass(frozen=True)
class AlignmentOptions:
    """How depth is aligned in the photos. Chosen on the courtyard."""

    sources: int = 4  # neighbours whose patches are compared
    best: float = 0.5  # share of them that counts: the others may not see the place
    window: int = 7  # pixels, squared, of a patch
    steps: tuple[float, ...] = (0.75, 0.25)  # pixels, of each round
    reach: int = 4  # steps to either side that are tried in a round
    spread: tuple[int, ...] = (4, 12, 28)  # pixels to all four sides, from which depth is taken over ...
    lead: float = 0.1  # ... where it makes patches so much more alike: beside an edge warps move as one
    min_likeness: float = 0.5  # correlation from which a patch is believed
    grow: int = 6  # pixels around known depth in which more may be found ...
    min_grown_likeness: float = 0.8  # ... where patches are as alike as this
    median: int = 5  # pixels, squared, over which a round's depth is smoothed
    flat: float = 2.0  # grey levels of 255: patches that vary less (sky) say nothing, and have no depth


def agreed_depth(pair_depths: Sequence[PairDepth], options: AgreementOptions) -> FloatArray:
    """Inverse depth (h, w), 0 where unknown: of every pixel the value that most certainty supports.

    Of the depths of all neighbours the best supported is taken, and averaged with those that support it.
    """
    depths = np.stack([depth.inverse_depth for depth in pair_depths])
    speeds = np.nan_to_num(np.stack([depth.speed for depth in pair_depths]))
    weights = np.stack([depth.weight for depth in pair_depths])
    least = options.least if len(pair_depths) > 2 else options.least_of_two
    best = np.zeros(depths.shape[1:], np.float32)
    best_support = np.zeros_like(best)
    for candidate in depths:
        # NaN compares as false: what says nothing supports nothing
        with np.errstate(invalid="ignore"):
            agree = np.abs(depths - candidate) * speeds < options.radius
        support = (agree * weights).sum(axis=0)
        exact = np.where(agree, weights * speeds**2, 0.0)
        mean = (exact * np.nan_to_num(depths)).sum(axis=0) / np.maximum(exact.sum(axis=0), 1e-30)
        better = (support > best_support) & (agree.sum(axis=0) >= least)
        best = np.where(better, mean, best)
        best_support = np.where(better, support, best_support)
    return np.asarray(best, np.float32)


def enlarged(inverse_depth: FloatArray, shape: tuple[int, int]) -> FloatArray:
    """Inverse depth at `shape` (h, w): interpolated on a surface, the nearest value at its edges."""
    size = (shape[1], shape[0])
    known = (inverse_depth > 0).astype(np.float32)
    filled, _ = filled_from_nearest(inverse_depth)
    smooth = cv2.resize(filled, size, interpolation=cv2.INTER_LINEAR)
    nearest = cv2.resize(filled, size, interpolation=cv2.INTER_NEAREST)
    edge = np.abs(smooth - nearest) > 0.03 * nearest
    values = np.where(edge, nearest, smooth)
    return np.where(cv2.resize(known, size, interpolation=cv2.INTER_LINEAR) > 0.5, values, 0).astype(
        np.float32
    )


def filled_from_nearest(values: FloatArray) -> tuple[FloatArray, FloatArray]:
    """A map (h, w) whose zeros took the value of the nearest other pixel, and how far that is: pixels."""
    unknown = (values <= 0).astype(np.uint8)
    if unknown.all() or not unknown.any():
        return values, np.zeros_like(values)
    distance, labels = cv2.distanceTransformWithLabels(
        unknown, cv2.DIST_L2, cv2.DIST_MASK_5, labelType=cv2.DIST_LABEL_PIXEL
    )
    of_label = np.zeros(int(labels.max()) + 1, values.dtype)
    of_label[labels[unknown == 0]] = values[unknown == 0]
    return of_label[labels], np.asarray(distance, np.float32)


def align_depth(
    inverse_depth: FloatArray,
    view: View,
    grey: FloatArray,
    sources: Sequence[tuple[View, FloatArray]],
    options: AlignmentOptions,
) -> FloatArray:
    """Inverse depth (h, w), 0 where unknown, moved to where the photos are most alike.

    grey (h, w) in [0, 255] of the view and of every source. What is known stays known; where photos do not
    look alike (day and night) it stays as it is. What has no texture gets none: warps carry the sky along
    with the roofs.
    """
    known = inverse_depth > 0
    if not known.any() or not sources:
        return inverse_depth
    current, distance = filled_from_nearest(inverse_depth)
    pixels = map_positions((grey.shape[1], grey.shape[0]), view.size)
    motions = [EpipolarMotion.between(view, other, pixels) for other, _ in sources]
    patches = _Patches(grey, options)
    likeness = np.full(grey.shape, -1.0, np.float32)
    for number, step in enumerate(options.steps):
        if number:
            current = _spread(current, likeness, patches, motions, sources, options)
        fastest = np.nanmax(
            [np.nan_to_num(motion.speed(current)) for motion in motions] + [np.full(grey.shape, 1e-12)],
            axis=0,
        )
        unit = (step / fastest).astype(np.float32)
        offsets = np.arange(-options.reach, options.reach + 1, dtype=np.float32)
        scores = np.stack(
            [
                _likeness(patches, np.maximum(current + k * unit, 1e-9), motions, sources, options)
                for k in offsets
            ]
        )
        shift, likeness = _peak(scores, offsets)
        sure = likeness >= options.min_likeness
        moved = np.where(sure, current + shift * unit, current)
        current = np.maximum(_smoothed(moved, options.median), 1e-9)
    grown = (likeness >= options.min_grown_likeness) & (distance <= options.grow)
    return np.where((known | grown) & ~patches.flat, current, 0).astype(np.float32)


def _spread(
    current: FloatArray,
    likeness: FloatArray,
    patches: _Patches,
    motions: Sequence[EpipolarMotion],
    sources: Sequence[tuple[View, FloatArray]],
    options: AlignmentOptions,
) -> FloatArray:
    """Depth (h, w), taken over from pixels some way off where photos are clearly more alike with it."""
    found, best = current, likeness + options.lead
    for distance in options.spread:
        for rows, columns in ((0, distance), (0, -distance), (distance, 0), (-distance, 0)):
            shift = np.array([[1, 0, columns], [0, 1, rows]], np.float32)
            size = (current.shape[1], current.shape[0])
            moved = cv2.warpAffine(
                current, shift, size, flags=cv2.INTER_NEAREST, borderMode=cv2.BORDER_REPLICATE
            )
            candidate = np.asarray(moved, np.float32)
            score = _likeness(patches, candidate, motions, sources, options)
            better = score > best
            found, best = np.where(better, candidate, found), np.where(better, score, best)
    return np.asarray(found, np.float32)


def _smoothed(values: FloatArray, side: int) -> FloatArray:
    """Median over side x side pixels (3 or 5): strays go, edges stay."""
    return np.asarray(cv2.medianBlur(np.ascontiguousarray(values, np.float32), side))


def _peak(scores: FloatArray, offsets: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Where scores (k, h, w) are largest, by a parabola between offsets (k,), and how large: (h, w) each."""
    best = scores.argmax(axis=0)
    inner = np.clip(best, 1, len(offsets) - 2)
    left, middle, right = (np.take_along_axis(scores, (inner + k)[None], axis=0)[0] for k in (-1, 0, 1))
    bend = left - 2 * middle + right
    shift = np.where((best == inner) & (bend < -1e-6), (left - right) / (2 * np.minimum(bend, -1e-6)), 0.0)
    step = offsets[1] - offsets[0]
    found = offsets[best] + np.clip(shift, -0.5, 0.5) * step
    return found.astype(np.float32), np.take_along_axis(scores, best[None], axis=0)[0]


class _Patches:
    """The patches around all pixels of a photo: their means and spreads."""

    def __init__(self, grey: FloatArray, options: AlignmentOptions) -> None:
        self.side = (options.window, options.window)
        self.least = options.flat**2
        self.grey = grey.astype(np.float32)
        self.mean = self.box(self.grey)
        self.variance = self.box(self.grey**2) - self.mean**2
        self.flat = self.variance < self.least

    def box(self, values: FloatArray) -> FloatArray:
        return np.asarray(cv2.blur(values, self.side, borderType=cv2.BORDER_REFLECT_101))

    def likeness(self, other: FloatArray) -> FloatArray:
        """Correlation (h, w) of the patches with those of another photo, seen as this one; -1 where flat."""
        mean = self.box(other)
        variance = self.box(other**2) - mean**2
        covariance = self.box(self.grey * other) - self.mean * mean
        both = np.sqrt(np.maximum(self.variance * variance, 1e-6))
        return np.where(self.flat | (variance < self.least), -1.0, covariance / both).astype(np.float32)


def _likeness(
    patches: _Patches,
    inverse_depth: FloatArray,
    motions: Sequence[EpipolarMotion],
    sources: Sequence[tuple[View, FloatArray]],
    options: AlignmentOptions,
) -> FloatArray:
    """How alike (h, w) the view and the best of its sources are at an inverse depth."""
    found = []
    for motion, (_, grey) in zip(motions, sources, strict=True):
        places = motion.at(inverse_depth)
        height, width = grey.shape
        with np.errstate(invalid="ignore"):
            inside = ((places >= 0) & (places <= (width - 1, height - 1))).all(axis=-1)
        places = np.nan_to_num(places, nan=-1e4)
        seen = cv2.remap(
            grey, places[..., 0], places[..., 1], cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE
        )
        found.append(np.where(inside, patches.likeness(np.asarray(seen, np.float32)), -1.0))
    best = max(1, round(options.best * len(found)))
    ordered = np.sort(np.stack(found), axis=0)[::-1]
    return np.asarray(ordered[:best].mean(axis=0), np.float32)


def surface_normals(inverse_depth: FloatArray, view: View, reach: int = 2, edge: float = 0.05) -> FloatArray:
    """Unit normals (h, w, 3) in world coordinates, towards the camera; 0 where unknown or at an edge.

    From points `reach` pixels to all sides; edge: relative step of depth over which no surface goes.
    """
    height, width = inverse_depth.shape
    pixels = map_positions((width, height), view.size)
    known = inverse_depth > 0
    world = view.to_world(pixels, 1 / np.where(known, inverse_depth, 1.0)).astype(np.float32)
    normals = np.zeros((height, width, 3), np.float32)
    inner = np.s_[reach:-reach, reach:-reach]
    sides: list[Any] = [np.s_[reach:-reach, 2 * reach :], np.s_[reach:-reach, : -2 * reach]]
    sides += [np.s_[2 * reach :, reach:-reach], np.s_[: -2 * reach, reach:-reach]]
    whole = known[inner].copy()
    for side in sides:
        whole &= known[side] & (
            np.abs(inverse_depth[side] - inverse_depth[inner]) < edge * inverse_depth[inner]
        )
    across, down = world[sides[0]] - world[sides[1]], world[sides[2]] - world[sides[3]]
    crossed = np.cross(across, down)
    towards = (view.centre - world[inner]).astype(np.float32)
    crossed *= np.sign((crossed * towards).sum(axis=-1, keepdims=True))
    length = np.linalg.norm(crossed, axis=-1, keepdims=True)
    whole = whole[..., None] & (length > 0)
    normals[inner] = np.where(whole, crossed / np.maximum(length, 1e-30), 0)
    return normals


def save_depth_map(depth_map: DepthMap, path: Path) -> None:
    """Write a depth map (.npz): inverse depth exactly, normals to a hundredth."""
    with atomic_write(path) as temporary, open(temporary, "wb") as out:
        np.savez(
            out,
            inverse_depth=depth_map.inverse_depth,
            normals=np.rint(127 * depth_map.normals).astype(np.int8),
        )


def load_depth_map(path: Path) -> DepthMap | None:
    """Read what `save_depth_map` wrote; None where it is missing or damaged."""
    try:
        table: dict[str, Any] = dict(read_plain_npz(path))
        return DepthMap(table["inverse_depth"], table["normals"].astype(np.float32) / 127)
    except Exception:  # a damaged file can make its reader raise anything at all
        return None


def grey_of(rgb: npt.NDArray[np.uint8]) -> FloatArray:
    """(h, w) in [0, 255]."""
    return np.asarray(cv2.cvtColor(rgb, cv2.COLOR_RGB2GRAY), np.float32)

"""A dense warp and two known poses give depth: each place is moved to its epipolar line and triangulated
there.

Depth is handled as its inverse w, which noise in pixels moves evenly: the pixel with the ray r = (x, y, 1)
lies in the other camera in the direction R r + w t, K times that is its pixel, so its image runs along the
epipolar line as w grows from 0.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from coam.sfm.dense.views import View
from coam.types import FloatArray
from coam.warp.field import map_positions

_NEAREST = 1e-6  # depth in another view, as a share of the depth in this one: what is nearer is behind


@dataclass(frozen=True)
class EpipolarMotion:
    """How the pixels of one view move in another as their inverse depth grows: K (R r + w t), per ray."""

    far: FloatArray  # (..., 3): K R r, where they lie at infinite depth; K is the other camera's matrix
    shift: FloatArray  # (3,): K t

    @staticmethod
    def between(view: View, other: View, pixels: FloatArray) -> EpipolarMotion:
        """Of pixels (..., 2) of `view`, seen by `other`."""
        matrix = np.diag([*other.focal, 1.0])
        matrix[:2, 2] = other.principal
        rotation = other.rotation @ view.rotation.T
        rays = view.rays(pixels)
        turn = matrix @ rotation
        far = rays @ turn[:, :2].T + turn[:, 2]
        shift = matrix @ (other.translation - rotation @ view.translation)
        return EpipolarMotion(far.astype(np.float32), shift.astype(np.float32))

    def at(self, inverse_depth: FloatArray) -> FloatArray:
        """Pixels (..., 2) of the other view at an inverse depth (...); nan behind it."""
        places = self.far[..., :2] + inverse_depth[..., None] * self.shift[:2]
        places /= self._ahead(inverse_depth)[..., None]
        return np.asarray(places, np.float32)

    def speed(self, inverse_depth: FloatArray) -> FloatArray:
        """Pixels (...) by which the image moves per unit of inverse depth."""
        motion = self.far[..., 2:] * self.shift[:2] - self.far[..., :2] * self.shift[2]
        return np.asarray(np.hypot(motion[..., 0], motion[..., 1]) / self._ahead(inverse_depth) ** 2)

    def _ahead(self, inverse_depth: FloatArray) -> FloatArray:
        """Depth (...) in the other view, in units of the depth in this one; nan behind it."""
        z = self.far[..., 2] + inverse_depth * self.shift[2]
        return np.where(z > _NEAREST, z, np.float32(np.nan))

    def inverse_depth(self, points: FloatArray) -> tuple[FloatArray, FloatArray]:
        """The inverse depths (...) whose images are nearest to points (..., 2), and how far these are:
        pixels.

        nan where the epipole is, or the place lies behind a camera.
        """
        with np.errstate(divide="ignore", invalid="ignore"):
            # The epipolar line runs from the image of infinity towards the epipole.
            start = self.far[..., :2] / self.far[..., 2:]
            direction = self.shift[:2] - start * self.shift[2]
            direction /= np.linalg.norm(direction, axis=-1, keepdims=True)
            off = points - start
            along = (off * direction).sum(axis=-1)
            distance = np.abs(off[..., 0] * direction[..., 1] - off[..., 1] * direction[..., 0])
            # (far + w shift)_xy = nearest (far + w shift)_z, along the line's direction
            nearest = start + along[..., None] * direction
            below = ((self.shift[:2] - nearest * self.shift[2]) * direction).sum(axis=-1)
            inverse = along * self.far[..., 2] / below
            ahead = (inverse > 0) & (self.far[..., 2] + inverse * self.shift[2] > _NEAREST)
        return np.where(ahead, inverse, np.nan).astype(np.float32), distance.astype(np.float32)


@dataclass(frozen=True)
class PairDepth:
    """What one neighbour says about the depth of a view's pixels, on a map (h, w); nan: nothing."""

    inverse_depth: FloatArray
    speed: FloatArray  # pixels of the neighbour per unit of inverse depth: how exactly it says so
    weight: FloatArray  # certainty, less where the place lies off its epipolar line


@dataclass(frozen=True)
class PairDepthOptions:
    """Which places of a warp make depth. Chosen on the courtyard."""

    min_certainty: float = 0.2  # below it a place says nothing
    max_distance: float = 4.0  # pixels of the neighbour from the epipolar line
    usual_distance: float = 1.0  # pixels: at so much the weight has fallen to e^-0.5


DEFAULT_PAIR_DEPTH = PairDepthOptions()


def triangulate_warp(
    view: View,
    other: View,
    points: FloatArray,
    certainty: FloatArray,
    options: PairDepthOptions = DEFAULT_PAIR_DEPTH,
) -> PairDepth:
    """Depth of the pixels of a map (h, w) of `view`, whose places in `other` are points (h, w, 2)."""
    height, width = certainty.shape
    pixels = map_positions((width, height), view.size)
    motion = EpipolarMotion.between(view, other, pixels)
    inverse, distance = motion.inverse_depth(points)
    known = (certainty >= options.min_certainty) & (distance <= options.max_distance) & np.isfinite(inverse)
    inverse = np.where(known, inverse, np.nan).astype(np.float32)
    weight = certainty * np.exp(-((distance / options.usual_distance) ** 2) / 2)
    return PairDepth(inverse, motion.speed(inverse), np.where(known, weight, 0.0).astype(np.float32))

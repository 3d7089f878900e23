"""A rectified stereo pair with ground-truth disparity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.samples.ground_truth_maps import read_png16, sample_smooth
from coam.types import FloatArray, Size

STEPS_PER_PIXEL = 64  # the PNG holds disparity in 1/64 px; 0: unknown
BoolArray = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class StereoSample:
    """Left and right photo; the left pixel (x, y) is seen at (x - disparity, y) in the right photo."""

    folder: Path

    @property
    def left(self) -> Path:
        return self.folder / "left.jpg"

    @property
    def right(self) -> Path:
        return self.folder / "right.jpg"

    @property
    def size(self) -> Size:
        """(width, height) of both photos."""
        height, width = self.disparity.shape
        return width, height

    @cached_property
    def disparity(self) -> FloatArray:
        """True disparity (H, W) of the left photo in pixels, nan where unknown."""
        steps = read_png16(self.folder / "disparity.png")
        known = np.where(steps > 0, steps / STEPS_PER_PIXEL, np.nan)
        known = known.astype(np.float32)
        known.setflags(write=False)
        return known

    @cached_property
    def visible_right(self) -> BoolArray:
        """(H, W): the left pixel has a known partner inside the right photo that nothing nearer covers."""
        height, width = self.disparity.shape
        rows, columns = np.nonzero(np.isfinite(self.disparity))
        disparity = self.disparity[rows, columns]
        x = columns - disparity
        nearest = np.full((height, width), -np.inf, dtype=np.float32)
        # Splat to both neighbouring columns, so that a near surface seen at a slant leaves no gaps.
        for column in (np.floor(x).astype(np.int64), np.ceil(x).astype(np.int64)):
            inside = (column >= 0) & (column < width)
            np.maximum.at(nearest, (rows[inside], column[inside]), disparity[inside])
        landing = np.round(x).astype(np.int64)
        inside = (x >= 0) & (x <= width - 1)
        uncovered = disparity[inside] >= nearest[rows[inside], landing[inside]] - 1.0
        visible = np.zeros((height, width), dtype=bool)
        visible[rows[inside], columns[inside]] = uncovered
        visible.setflags(write=False)
        return visible

    def true_points1(self, points0: npt.ArrayLike) -> tuple[FloatArray, BoolArray]:
        """Where left pixels (N, 2) are in the right photo: points (N, 2), nan where unknown, and valid (N,).

        Not valid: outside, no truth, on a depth edge (disparities of neighbours differ by over 1 px), or
        hidden from the right camera.
        """
        points = np.asarray(points0, dtype=np.float64).reshape(-1, 2)
        disparity, known = sample_smooth(self.disparity, points, max_spread=1.0)
        points1 = points - np.stack([disparity, np.zeros_like(disparity)], axis=-1)
        width, height = self.size
        nearest = np.clip(np.round(np.nan_to_num(points)), 0, (width - 1, height - 1)).astype(np.int64)
        valid = known & self.visible_right[nearest[:, 1], nearest[:, 0]]
        return points1.astype(np.float32), valid

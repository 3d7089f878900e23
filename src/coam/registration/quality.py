"""How far a registration can be trusted: where it is borne out, how exact, how likely it is right.

The probability is a logistic regression on a few figures of the fit. It says that the mean error over what
both images show is below `RIGHT_PIXELS`, or `RIGHT_SHARE` of the fixed image's long side where that is more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coam.geometry.motions import Array
from coam.registration.fitting import Fit
from coam.registration.transforms import Transform
from coam.types import Size

RIGHT_PIXELS = 5.0  # of the fixed image
RIGHT_SHARE = 0.005  # of its long side
# Probability below which a registration is refused: no wrong one left out of the calibration reached it
SURE = 0.8


@dataclass(frozen=True)
class QualityOptions:
    """How quality is measured, and the calibration of the probability."""

    cells: int = 16  # along the fixed image's long side, of coverage and of the residual map
    reach: float = 1.0  # cells: a place this near to a match that agrees is borne out by it


DEFAULT_QUALITY = QualityOptions()


@dataclass(frozen=True, eq=False)
class Quality:
    """What is known about a registration; lengths are in pixels of the fixed image."""

    held_out_error: float  # median miss of matches by fits without their neighbourhood
    held_out_p90: float  # nine in ten of them are missed by less
    inliers: int
    inlier_share: float  # of all matches
    overlap: float  # share of the fixed image that the moving one covers
    coverage: float  # share of that which has matches near that agree
    same_place: float  # the matcher's own probability that both show the same place; nan: not known
    confidence: float  # probability that the registration is right
    residual_map: npt.NDArray[np.float32]  # (rows, columns) median residual of a cell's matches; nan: none
    covered: npt.NDArray[np.bool_]  # (rows, columns) cells that are borne out


def judge(
    fit: Fit,
    moving_points: Array,
    fixed_points: Array,
    sizes: tuple[Size, Size],
    same_place: float,
    options: QualityOptions = DEFAULT_QUALITY,
) -> Quality:
    """The quality of a fit to matches (N, 2), (N, 2) of images of `sizes` (moving, fixed)."""
    shape, cell = cell_grid(sizes[1], options.cells)
    inside = cells_inside(fit.transform, sizes, shape, cell)
    residual_map = _residual_map(fixed_points[fit.inliers], fit.residuals[fit.inliers], shape, cell)
    covered = _reached(fixed_points[fit.inliers], shape, cell, options.reach) & inside
    coverage = float(covered.sum() / max(1, inside.sum()))
    count, share = int(fit.inliers.sum()), float(fit.inliers.mean())
    held_out = fit.held_out[np.isfinite(fit.held_out)]
    error, p90 = (float(np.percentile(held_out, q)) if len(held_out) else math.inf for q in (50, 90))
    return Quality(
        held_out_error=error,
        held_out_p90=p90,
        inliers=count,
        inlier_share=share,
        overlap=float(inside.mean()),
        coverage=coverage,
        same_place=same_place,
        confidence=probability_right(
            features(count, share, coverage, relative_error(error, sizes[1]), same_place)
        ),
        residual_map=residual_map,
        covered=covered,
    )


FEATURES = ("log_inliers", "inlier_share", "coverage", "log_error", "same_place")
# Fitted by tools/calibrate_registration.py; see docs/register.md for the pairs.
WEIGHTS: tuple[float, ...] = (0.888, 4.668, 4.683, -0.914, 0.478)
BIAS = -10.788


def features(
    inliers: int, share: float, coverage: float, error: float, same_place: float
) -> tuple[float, ...]:
    """What the probability is computed from, in the order of `FEATURES`.

    error: the miss of left-out matches in thousandths of the fixed image's long side.
    """
    known = 0.5 if math.isnan(same_place) else min(max(same_place, 1e-3), 1 - 1e-3)
    blurred = math.log(min(max(error, 0.1), 100.0))
    return math.log(inliers + 1.0), share, coverage, blurred, math.log(known / (1 - known))


def relative_error(error: float, size: Size) -> float:
    """Pixels of an image of `size` as thousandths of its long side."""
    return 1000 * error / max(size)


def probability_right(values: tuple[float, ...]) -> float:
    """Probability in [0, 1] that a registration with these features is right."""
    logit = BIAS + sum(weight * value for weight, value in zip(WEIGHTS, values, strict=True))
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, logit))))


def cell_grid(size: Size, cells: int) -> tuple[tuple[int, int], float]:
    """(rows, columns) of square cells over an image of `size`, and their side in pixels."""
    side = max(size) / cells
    return (max(1, round(size[1] / side)), max(1, round(size[0] / side))), side


def cells_inside(
    transform: Transform, sizes: tuple[Size, Size], shape: tuple[int, int], side: float
) -> npt.NDArray[np.bool_]:
    """(rows, columns) whether the moving image covers the centres of the fixed image's cells."""
    x, y = np.meshgrid(np.arange(shape[1]) + 0.5, np.arange(shape[0]) + 0.5)
    centres = np.stack([x, y], axis=-1).reshape(-1, 2) * side - 0.5
    places = transform.inverse_points(centres)
    inside = ((places >= -0.5) & (places <= np.asarray(sizes[0]) - 0.5)).all(axis=1)
    return np.asarray(inside.reshape(shape))


def _residual_map(
    points: Array, residuals: Array, shape: tuple[int, int], side: float
) -> npt.NDArray[np.float32]:
    cells = np.full(shape, np.nan, np.float32)
    column = np.clip(points[:, 0] // side, 0, shape[1] - 1).astype(int)
    row = np.clip(points[:, 1] // side, 0, shape[0] - 1).astype(int)
    place = row * shape[1] + column
    for number in np.unique(place):
        cells.flat[number] = np.median(residuals[place == number])
    return cells


def _reached(points: Array, shape: tuple[int, int], side: float, reach: float) -> npt.NDArray[np.bool_]:
    """(rows, columns) whether a point (N, 2) lies within `reach` cells of a cell's centre."""
    x, y = np.meshgrid(np.arange(shape[1]) + 0.5, np.arange(shape[0]) + 0.5)
    centres = np.stack([x, y], axis=-1).reshape(-1, 1, 2)
    if not len(points):
        return np.zeros(shape, np.bool_)
    distance = np.linalg.norm(centres - (points[None] + 0.5) / side, axis=2).min(axis=1)
    return np.asarray((distance <= reach).reshape(shape))

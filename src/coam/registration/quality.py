"""How far a registration can be trusted: where it is borne out, how exact, how likely it is right.

Matches that miss the transform are of two kinds. Wrong ones miss it in any direction. Those that miss it as
their neighbours do show something that lies elsewhere than the transform says (depth, another plane): they
speak against it.

Where no match is near, a transform is carried on, and its error grows with the distance: by about as much as
homographies differ that are fitted to other draws of the matches (a bootstrap). Whole blocks are drawn,
because neighbouring matches share errors. They are homographies whatever was fitted: a simpler motion was
chosen by what the matches say and would claim to know the rest.

The probability comes from two logistic regressions on a few figures of the fit. It says that the mean error
over what both images show is below `RIGHT_PIXELS`, or `RIGHT_SHARE` of the fixed image's long side where that
is more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from coam.geometry.homography import apply_homography, resampled_homographies
from coam.geometry.motions import Array
from coam.registration.fitting import Fit
from coam.registration.transforms import Transform
from coam.types import Size

RIGHT_PIXELS = 5.0  # of the fixed image
RIGHT_SHARE = 0.005  # of its long side
# Probability below which a registration is refused; docs/register.md says what passes it
SURE = 0.8
UNCERTAIN = 0.4  # of the bearable error: an uncertainty that is told as a doubt
FARTHEST = 3.0  # of the bearable error: an uncertainty beyond says no more


@dataclass(frozen=True)
class QualityOptions:
    """How quality is measured, and the calibration of the probability."""

    cells: int = 16  # along the fixed image's long side, of coverage and of the residual map
    reach: float = 1.0  # cells: a place this near to a match that agrees is borne out by it
    neighbours: int = 6  # of a match: half of them must miss the transform as it does to speak against it
    alike: float = 0.3  # of its miss: by how much theirs may differ from it
    blocks: int = 10  # along the long side: matches of one are drawn together
    draws: int = 100  # of as many blocks as have matches


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
    # share of the cells that matches tell about, where most agree on something else; nan: not known
    against: float
    # Homographies of other draws of matches differ by less (rms) in nine tenths of the overlap; nan: unknown
    uncertainty: float
    bearable: float  # mean error of a registration that is right: `right_within`
    same_place: float  # the matcher's own probability that both show the same place; nan: not known
    confidence: float  # probability that the registration is right
    # (rows, columns) median residual of a cell's matches that agree or speak against it; nan: none
    residual_map: npt.NDArray[np.float32]
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
    rivals = speaking_against(fit, moving_points, fixed_points, sizes[1], options)
    telling = fit.inliers | rivals
    residual_map = _residual_map(fixed_points[telling], fit.residuals[telling], shape, cell)
    covered = _reached(fixed_points[fit.inliers], shape, cell, options.reach) & inside
    coverage = float(covered.sum() / max(1, inside.sum()))
    agreeing, opposed = (_counted(fixed_points[some], shape, cell) for some in (fit.inliers, rivals))
    against = float((opposed > agreeing).sum() / max(1, (opposed + agreeing > 0).sum()))
    count, share = int(fit.inliers.sum()), float(fit.inliers.mean())
    centres = cell_centres(shape, cell)
    differ = differing(fit, moving_points, fixed_points, sizes[1], centres[inside.ravel()], options)
    held_out = fit.held_out[np.isfinite(fit.held_out)]
    error, p90 = (float(np.percentile(held_out, q)) if len(held_out) else math.inf for q in (50, 90))
    quality = Quality(
        held_out_error=error,
        held_out_p90=p90,
        inliers=count,
        inlier_share=share,
        overlap=float(inside.mean()),
        coverage=coverage,
        against=against,
        uncertainty=float(np.percentile(differ, 90)) if len(differ) else math.nan,
        bearable=right_within(sizes[1]),
        same_place=same_place,
        confidence=math.nan,
        residual_map=residual_map,
        covered=covered,
    )
    return replace(quality, confidence=probability_right(quality))


def doubts(quality: Quality) -> list[str]:
    """What speaks against a registration, in words; nothing where nothing does."""
    found = []
    if quality.inliers < 100:
        found.append(f"only {quality.inliers} matches agree")
    if quality.inlier_share < 0.5:
        found.append(f"{1 - quality.inlier_share:.0%} of the matches do not agree")
    if quality.against > 0.03:
        found.append(
            f"in {quality.against:.0%} of the places that matches tell about they agree on something else "
            "(depth, or what moved)"
        )
    if quality.coverage < 0.6:
        found.append(f"matches bear out {quality.coverage:.0%} of the overlap only")
    if quality.uncertainty > UNCERTAIN * quality.bearable:
        differ = f"differ by {quality.uncertainty:.1f} px"
        found.append(f"planes through other draws of the matches {differ} where few are near")
    if quality.same_place < 0.5:
        found.append("the matcher doubts that both show the same place")
    return found


# A registration is right where the same place was found, and what was found holds all over the overlap: two
# logistic regressions, whose probabilities are multiplied. Fitted by tools/calibrate_registration.py.
FOUND_BY = ("log_inliers", "inlier_share", "coverage", "same_place")
FOUND: tuple[float, ...] = (0.89, 6.66, 4.42, 0.7, -12.46)  # weights in this order, then the bias
HOLDS_BY = ("coverage", "against", "uncertainty")
HOLDS: tuple[float, ...] = (2.41, -18.63, -2.92, 2.93)


def found_by(quality: Quality) -> tuple[float, ...]:
    """What tells whether the same place was found, in the order of `FOUND_BY`."""
    known = 0.5 if math.isnan(quality.same_place) else min(max(quality.same_place, 1e-3), 1 - 1e-3)
    odds = math.log(known / (1 - known))
    return math.log(quality.inliers + 1.0), quality.inlier_share, quality.coverage, odds


def holds_by(quality: Quality) -> tuple[float, ...]:
    """What tells whether a transform holds all over the overlap, in the order of `HOLDS_BY`."""
    known = FARTHEST if math.isnan(quality.uncertainty) else quality.uncertainty / quality.bearable
    return quality.coverage, quality.against, min(known, FARTHEST)


def probability_right(quality: Quality) -> float:
    """Probability in [0, 1] that a registration is right."""
    return _logistic(FOUND, found_by(quality)) * _logistic(HOLDS, holds_by(quality))


def _logistic(weights: tuple[float, ...], values: tuple[float, ...]) -> float:
    logit = weights[-1] + sum(weight * value for weight, value in zip(weights, values, strict=False))
    return 1 / (1 + math.exp(-max(-60.0, min(60.0, logit))))


def speaking_against(
    fit: Fit, moving_points: Array, fixed_points: Array, size: Size, options: QualityOptions
) -> npt.NDArray[np.bool_]:
    """(N,) which matches miss the transform by more than a right one may, and as their neighbours do."""
    off = np.asarray(fit.residuals > right_within(size))
    found = np.zeros(len(off), np.bool_)
    if off.sum() <= options.neighbours or len(off) <= options.neighbours:
        return found
    missed = fit.transform.points(moving_points) - fixed_points
    known = off & np.isfinite(missed).all(axis=1)
    near = cKDTree(fixed_points).query(fixed_points[known], options.neighbours + 1)[1][:, 1:]
    with np.errstate(invalid="ignore"):
        apart = np.linalg.norm(missed[near] - missed[known][:, None], axis=2)
        as_it = apart <= options.alike * np.linalg.norm(missed[known], axis=1)[:, None]
    found[known] = as_it.mean(axis=1) >= 0.5
    return found


def differing(
    fit: Fit, moving_points: Array, fixed_points: Array, size: Size, places: Array, options: QualityOptions
) -> Array:
    """(K,) pixels: rms by which homographies of other draws of matches that agree differ at places (K, 2).

    A place of one draw counts as at most the long side away.
    """
    points0, points1 = moving_points[fit.inliers], fixed_points[fit.inliers]
    column, row = (points1 // (max(size) / options.blocks)).astype(np.int64).T
    block = np.unique(np.stack([row, column]), axis=1, return_inverse=True)[1].ravel()
    count = int(block.max(initial=-1)) + 1
    fetched = fit.transform.inverse_points(places)
    fetched = fetched[np.isfinite(fetched).all(axis=1)]
    drawn = np.random.default_rng(0).multinomial(count, np.full(count, 1 / max(count, 1)), options.draws)
    matrices = resampled_homographies(points0, points1, block, drawn)
    if count < 4 or not len(matrices):  # of fewer blocks most draws define no homography
        return np.full(len(fetched), float(max(size)))
    moved = np.stack([apply_homography(matrix, fetched) for matrix in matrices])
    with np.errstate(invalid="ignore"):
        apart = np.linalg.norm(moved - np.median(moved, axis=0), axis=2)
    return np.asarray(np.sqrt(np.square(np.fmin(apart, max(size))).mean(axis=0)))


def right_within(size: Size) -> float:
    """Pixels of a fixed image of `size` by which a right registration may miss on average."""
    return max(RIGHT_PIXELS, RIGHT_SHARE * max(size))


def cell_grid(size: Size, cells: int) -> tuple[tuple[int, int], float]:
    """(rows, columns) of square cells over an image of `size`, and their side in pixels."""
    side = max(size) / cells
    return (max(1, round(size[1] / side)), max(1, round(size[0] / side))), side


def cell_centres(shape: tuple[int, int], side: float) -> Array:
    """Centres (rows * columns, 2) of a grid of cells, row by row."""
    x, y = np.meshgrid(np.arange(shape[1]) + 0.5, np.arange(shape[0]) + 0.5)
    return np.stack([x, y], axis=-1).reshape(-1, 2) * side - 0.5


def cells_inside(
    transform: Transform, sizes: tuple[Size, Size], shape: tuple[int, int], side: float
) -> npt.NDArray[np.bool_]:
    """(rows, columns) whether the moving image covers the centres of the fixed image's cells."""
    places = transform.inverse_points(cell_centres(shape, side))
    inside = ((places >= -0.5) & (places <= np.asarray(sizes[0]) - 0.5)).all(axis=1)
    return np.asarray(inside.reshape(shape))


def _residual_map(
    points: Array, residuals: Array, shape: tuple[int, int], side: float
) -> npt.NDArray[np.float32]:
    cells = np.full(shape, np.nan, np.float32)
    place = _cells_of(points, shape, side)
    for number in np.unique(place):
        cells.flat[number] = np.median(residuals[place == number])
    return cells


def _counted(points: Array, shape: tuple[int, int], side: float) -> npt.NDArray[np.int64]:
    """(rows * columns,) how many points (N, 2) each cell has."""
    return np.bincount(_cells_of(points, shape, side), minlength=shape[0] * shape[1])


def _cells_of(points: Array, shape: tuple[int, int], side: float) -> npt.NDArray[np.int64]:
    column, row = (points // side).astype(np.int64).T
    return np.asarray(np.clip(row, 0, shape[0] - 1) * shape[1] + np.clip(column, 0, shape[1] - 1))


def _reached(points: Array, shape: tuple[int, int], side: float, reach: float) -> npt.NDArray[np.bool_]:
    """(rows, columns) whether a point (N, 2) lies within `reach` cells of a cell's centre."""
    if not len(points):
        return np.zeros(shape, np.bool_)
    distance = cKDTree(points).query(cell_centres(shape, side))[0]
    return np.asarray((distance <= reach * side).reshape(shape))

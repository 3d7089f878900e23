"""Plane motions of growing freedom, and the simplest of them that matches bear out.

More freedom always fits better, so kinds are judged by matches that were left out of the fit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coam.geometry.homography import fit_homography, transfer_errors
from coam.geometry.robust import estimate_homography

Array = npt.NDArray[np.float64]
Indices = npt.NDArray[np.int64]
Fit = Callable[[Array, Array], Array | None]  # points (N, 2) and (N, 2) -> (3, 3)


@dataclass(frozen=True)
class Motion:
    """Where the pixels of one photo lie in another one, and how well matches say so."""

    kind: str  # a key of `FITS`
    matrix: Array  # (3, 3)
    residual: float  # median distance in pixels of the matches that agree
    share: float  # of the matches that agree


def fit_translation(points0: Array, points1: Array) -> Array | None:
    """Least-squares translation (3, 3) of points (N, 2); None without points."""
    if not len(points0):
        return None
    matrix = np.eye(3)
    matrix[:2, 2] = (points1 - points0).mean(axis=0)
    return matrix


def fit_similarity(points0: Array, points1: Array) -> Array | None:
    """Least-squares zoom, turn and shift (3, 3): x' = a x - b y + c, y' = b x + a y + d; None below 2."""
    if len(points0) < 2:
        return None
    (x, y), one, zero = points0.T, np.ones(len(points0)), np.zeros(len(points0))
    rows = np.concatenate([np.stack([x, -y, one, zero], 1), np.stack([y, x, zero, one], 1)])
    (a, b, c, d), *_ = np.linalg.lstsq(rows, points1.T.ravel(), rcond=None)
    return np.array([[a, -b, c], [b, a, d], [0, 0, 1.0]])


def fit_affine(points0: Array, points1: Array) -> Array | None:
    """Least-squares affine map (3, 3) of points (N, 2); None below 3 points."""
    if len(points0) < 3:
        return None
    rows = np.column_stack([points0, np.ones(len(points0))])
    solution, *_ = np.linalg.lstsq(rows, points1, rcond=None)
    return np.vstack([solution.T, [0, 0, 1.0]])


FITS: dict[str, Fit] = {  # simplest first
    "translation": fit_translation,
    "similarity": fit_similarity,
    "affine": fit_affine,
    "homography": fit_homography,
}


def halves(count: int) -> list[Indices]:
    """Two folds of `count` matches: every other one, and the rest."""
    every = np.arange(count, dtype=np.int64)
    return [every[::2], every[1::2]]


def held_out_misses(fit: Fit, points0: Array, points1: Array, folds: Sequence[Indices]) -> Array:
    """By how many pixels (N,) each match is missed by the fit to the matches of the other folds."""
    missed = np.full(len(points0), np.inf)
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(points0)), fold)
        matrix = fit(points0[rest], points1[rest])
        if matrix is not None:
            missed[fold] = transfer_errors(points0[fold], points1[fold], matrix)
    return missed


def simplest(missed: Mapping[str, float], count: int) -> str:
    """Of kinds from simple to free the first whose miss of left-out matches is within chance of the least.

    count: of the matches. With a margin of 1 / sqrt(count) 99 of 100 pure shifts are found to be shifts.
    """
    bearable = (1 + 1 / np.sqrt(max(count, 1))) * min(missed.values())
    return next(kind for kind, miss in missed.items() if miss <= bearable)


def simplest_motion(
    points0: Array, points1: Array, kinds: Sequence[str] = tuple(FITS)
) -> tuple[str, Array] | None:
    """Kind and matrix (3, 3) of the simplest motion that explains matches (N, 2) without outliers.

    Each kind is fitted to every other match and judged by the rest, and the other way round. Judged by the
    median, because the letters of a burnt-in caption stand still and would weigh too much in a mean.
    """
    folds = halves(len(points0))
    missed = {
        kind: float(np.median(held_out_misses(FITS[kind], points0, points1, folds)))
        for kind in FITS
        if kind in kinds
    }
    kind = simplest(missed, len(points0))
    matrix = FITS[kind](points0, points1)
    return None if matrix is None else (kind, matrix)


def fit_motion(points0: npt.ArrayLike, points1: npt.ArrayLike, min_inliers: int = 60) -> Motion | None:
    """The simplest motion 0 -> 1 that explains matches (N, 2) with outliers; None where they do not agree."""
    xy0, xy1 = (np.asarray(p, np.float64).reshape(-1, 2) for p in (points0, points1))
    found = estimate_homography(xy0, xy1)
    if found is None or found.inliers.sum() < min_inliers:
        return None
    inner0, inner1 = xy0[found.inliers], xy1[found.inliers]
    best = simplest_motion(inner0, inner1)
    if best is None:
        return None
    kind, matrix = best
    residual = float(np.median(transfer_errors(inner0, inner1, matrix)))
    return Motion(kind, matrix, residual, float(found.inliers.mean()))

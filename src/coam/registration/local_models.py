"""Polynomials and thin-plate splines through matches: linear in their coefficients, robust, smoothed.

All explain what a homography leaves over: displacements (N, 2), in pixels of the moving image, at points of
the fixed one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from coam.geometry.motions import Indices
from coam.registration.transforms import Array, Displacement, Polynomial, Spline
from coam.types import Size


@dataclass(frozen=True)
class LocalOptions:
    """What local models are tried, and how they are fitted."""

    degrees: tuple[int, ...] = (2, 3)  # of polynomials; simplest first
    # Weights of a spline's bending energy, a match and units of the fixed image's long side; stiffest first
    stiffness: tuple[float, ...] = (1e-3, 1e-4, 3e-5, 1e-5, 3e-6, 1e-6)
    centres: int = 150  # of a spline at most, spread over the matches
    reweightings: int = 4  # of the matches, by their residuals
    tuning: float = 2.0  # robust standard deviations at which a match weighs half
    matches_per_term: int = 4  # with fewer a polynomial is not fitted
    fewest: int = 30  # matches for a spline


DEFAULT_LOCAL = LocalOptions()


@dataclass(frozen=True, eq=False)
class LinearModel:
    """A local model at the points it is to be fitted to: design (N, T) and penalty (T, T) of coefficients."""

    design: Array
    penalty: Array  # of one match; zero where nothing is smoothed
    displacement: Callable[[Array], Displacement]  # of coefficients (T, 2)
    options: LocalOptions

    def solve(self, wanted: Array, evidence: Array, rows: Indices | slice = slice(None)) -> Array:
        """Coefficients (T, 2) for displacements (N, 2), by some rows; reweighted least squares (Cauchy), so
        that wrong matches do not bend them.

        evidence: (N,) inverse variances, that of a match being 1.
        """
        design, target, known = self.design[rows], wanted[rows], evidence[rows]
        terms = design.shape[1]
        weights: Array = known
        solution: Array = np.zeros((terms, 2))
        for _ in range(self.options.reweightings):
            weighted = design * weights[:, None]
            normal = weighted.T @ design + known.sum() * self.penalty
            normal[np.diag_indices(terms)] *= 1 + 1e-9
            normal[np.diag_indices(terms)] += 1e-9
            solution = np.asarray(np.linalg.solve(normal, weighted.T @ target), np.float64)
            residual = np.linalg.norm(design @ solution - target, axis=1) * np.sqrt(known)
            scale = self.options.tuning * max(float(np.median(residual)) / 1.1774, 1e-6)  # of a 2-D normal
            weights = np.asarray(known / (1 + np.square(residual / scale)), np.float64)
        return solution


def local_models(
    kind: str, points: Array, size: Size, options: LocalOptions = DEFAULT_LOCAL
) -> list[LinearModel]:
    """Models of a kind ("polynomial", "spline") from simple to free, at points (N, 2) of a fixed image of
    `size`; none where the points are too few.
    """
    if kind == "polynomial":
        centre, scale = np.asarray(size, np.float64) / 2, max(size) / 2
        models = [_polynomial(points, degree, centre, scale, options) for degree in options.degrees]
        return [m for m in models if len(points) >= options.matches_per_term * m.design.shape[1]]
    return _splines(points, float(max(size)), options) if len(points) >= options.fewest else []


def _polynomial(
    points: Array, degree: int, centre: Array, scale: float, options: LocalOptions
) -> LinearModel:
    design = Polynomial.design(points, degree, centre, scale)
    nothing = np.zeros((design.shape[1],) * 2)
    return LinearModel(design, nothing, lambda found: Polynomial(degree, centre, scale, found), options)


def _splines(points: Array, scale: float, options: LocalOptions) -> list[LinearModel]:
    centres = spread_points(points, options.centres)
    count = len(centres)
    at_centres = Spline.design(centres, centres, scale)
    kernel, affine = at_centres[:, :-3], at_centres[:, -3:]
    # Weights of the centres that bend and neither shift nor turn: orthogonal to 1, x and y.
    bending = np.linalg.qr(affine, mode="complete")[0][:, 3:]
    basis = np.zeros((count + 3, count))
    basis[:count, : count - 3], basis[count:, count - 3 :] = bending, np.eye(3)
    energy = np.zeros((count, count))
    energy[: count - 3, : count - 3] = bending.T @ kernel @ bending
    design = Spline.design(points, centres, scale) @ basis
    return [
        LinearModel(design, stiffness * energy, lambda found: Spline(centres, scale, basis @ found), options)
        for stiffness in options.stiffness
    ]


def spread_points(points: Array, count: int) -> Array:
    """At most `count` of points (N, 2), each as far as can be from those before (farthest points)."""
    if len(points) <= count:
        return np.unique(points, axis=0)
    chosen = [0]
    distance = np.linalg.norm(points - points[0], axis=1)
    while len(chosen) < count and distance.max() > 0:
        chosen.append(int(distance.argmax()))
        distance = np.minimum(distance, np.linalg.norm(points - points[chosen[-1]], axis=1))
    return points[chosen]

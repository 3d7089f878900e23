"""Plane plus parallax: what lies before or behind a plane that two photos show.

The plane maps one photo to the other by a homography. Everything else is seen shifted from where the plane
would put it, along the line to the epipole: the direction in which the camera moved.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coam.geometry.homography import apply_homography, depth_under

Array = npt.NDArray[np.float64]

HYPOTHESES, SAMPLED_FROM = 600, 200  # epipoles tried, each from two of the first so many points


def off_plane(
    points0: npt.NDArray[np.floating],
    points1: npt.NDArray[np.floating],
    homography: Array,
    plane_tolerance: float,
    epipolar_tolerance: float,
    min_inliers: int,
    min_inlier_ratio: float,
) -> npt.NDArray[np.int64]:
    """Indices of matches off the plane that agree with each other on one epipole, in order.

    points0, points1 (N, 2): matches, best first; homography (3, 3): of the plane, photo 0 -> photo 1. Off the
    plane is what lies more than `plane_tolerance` pixels from where it would be. Two matches give an epipole;
    of these hypotheses (RANSAC) the one with the least sum of truncated residuals (MSAC) counts, and only
    with at least `min_inliers` and `min_inlier_ratio` of the matches off the plane as inliers.
    """
    plane = apply_homography(homography, points0)
    away = np.linalg.norm(plane - points1, axis=1) > plane_tolerance
    off = np.flatnonzero(away & (depth_under(homography, points0) > 0))
    if len(off) < max(min_inliers, 2):
        return off[:0]
    scale = max(1.0, float(np.abs(points1[off]).max()))  # a line's numbers should be of one size
    start, end = (np.column_stack([xy[off] / scale, np.ones(len(off))]) for xy in (plane, points1))
    lines = np.cross(start, end)
    lines /= np.maximum(np.linalg.norm(lines[:, :2], axis=1, keepdims=True), 1e-12)
    sure = min(len(off), SAMPLED_FROM)
    generator = np.random.default_rng(0)
    one = generator.integers(sure, size=HYPOTHESES)
    other = (one + 1 + generator.integers(sure - 1, size=HYPOTHESES)) % sure
    tolerance = epipolar_tolerance / scale
    residuals = _truncated_residuals(np.cross(lines[one], lines[other]), start, end, tolerance)
    best = residuals[residuals.sum(axis=1).argmin()]
    for _ in range(3):  # all that agree give a better epipole than two of them
        least_squares = np.linalg.svd(lines[best < 1])[2][2:]
        polished = _truncated_residuals(least_squares, start, end, tolerance)[0]
        if polished.sum() >= best.sum():
            break
        best = polished
    agree = best < 1
    return off[agree] if agree.sum() >= max(min_inliers, min_inlier_ratio * len(off)) else off[:0]


def _truncated_residuals(epipoles: Array, start: Array, end: Array, tolerance: float) -> Array:
    """How far, in tolerances and at most 1, each end (N, 3) is from the line of its start (N, 3) to each
    epipole (E, 3): (E, N)."""
    through = np.cross(start[None], epipoles[:, None])
    length = np.maximum(np.linalg.norm(through[..., :2], axis=2), 1e-12)
    return np.asarray(np.minimum(np.abs((through * end).sum(axis=2)) / length / tolerance, 1.0))

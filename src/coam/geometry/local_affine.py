"""Local affine maps between two photos, from neighbouring matches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class AffineOptions:
    """How the affine map around a match is estimated."""

    neighbours: int = 12  # matches around each
    rounds: int = 3  # of re-weighting
    scale: float = 1.5  # medians of the residual at which a neighbour counts half
    prior: float = 0.3  # neighbours that the map of the whole pair counts for
    min_matches: int = 6  # of a pair: with fewer the map is the identity
    max_stretch: float = 5.0  # few neighbours can give nonsense


def local_affine(points0: Floats, points1: Floats, options: AffineOptions | None = None) -> Floats:
    """Affine maps (M, 2, 2) around each match of one pair, from its neighbours in image 0.

    points0, points1: (M, 2). Neighbours across a depth edge disagree and lose weight; where there is little
    evidence the map falls back to the affine map of the whole pair.
    """
    from scipy.spatial import cKDTree

    options = options or AffineOptions()
    count = len(points0)
    if count < options.min_matches:
        return np.tile(np.eye(2), (count, 1, 1))
    whole = _affine_of_pair(points0, points1, options)
    _, index = cKDTree(points0).query(points0, min(options.neighbours, count - 1) + 1)
    near0 = points0[index[:, 1:]] - points0[:, None]  # (M, K, 2)
    near1 = points1[index[:, 1:]] - points1[:, None]
    spread = (near0**2).sum(-1).mean(1)  # (M,)
    prior = options.prior * np.maximum(spread, 1e-6)[:, None, None] * np.eye(2)  # neighbours may be one point
    affine = np.tile(whole, (count, 1, 1))
    for _ in range(options.rounds):
        residual = np.linalg.norm(near1 - near0 @ affine.transpose(0, 2, 1), axis=-1)
        scale = np.maximum(np.median(residual, axis=1, keepdims=True), 1e-3) * options.scale
        weight = 1.0 / (1.0 + (residual / scale) ** 2)
        weighted = weight[:, :, None] * near0
        left = near1.transpose(0, 2, 1) @ weighted + whole @ prior
        right = near0.transpose(0, 2, 1) @ weighted + prior
        affine = left @ np.linalg.inv(right)
    return _bounded(affine, options.max_stretch)


def _affine_of_pair(points0: Floats, points1: Floats, options: AffineOptions) -> Floats:
    """One affine map (2, 2) for all matches, robustly."""
    weight = np.ones(len(points0))
    affine = np.eye(2)
    for _ in range(options.rounds):
        total = weight.sum()
        centred0 = points0 - (weight[:, None] * points0).sum(0) / total
        centred1 = points1 - (weight[:, None] * points1).sum(0) / total
        moment = (weight[:, None] * centred0).T @ centred0
        moment += 1e-9 * (np.trace(moment) + 1.0) * np.eye(2)
        affine = np.linalg.solve(moment, (weight[:, None] * centred0).T @ centred1).T
        residual = np.linalg.norm(centred1 - centred0 @ affine.T, axis=1)
        weight = 1.0 / (1.0 + (residual / max(options.scale * float(np.median(residual)), 1e-6)) ** 2)
    return affine


def _bounded(affine: Floats, largest: float) -> Floats:
    """Affine maps whose singular values are clipped to [1 / largest, largest]."""
    bounded = affine.copy()
    # The largest one is at most the norm, and the smallest at least the determinant's share of it.
    norm = np.linalg.norm(affine, axis=(1, 2))
    wild = (norm > largest) | (np.abs(np.linalg.det(affine)) < norm / largest)
    left, values, right = np.linalg.svd(affine[wild])
    bounded[wild] = (left * np.clip(values, 1 / largest, largest)[..., None, :]) @ right
    return bounded

"""Relative pose refined on all matches: Levenberg-Marquardt on the Sampson distance, outliers cut off."""

from __future__ import annotations

import numpy as np

from coam.geometry.correspondences import Array, Correspondences
from coam.geometry.epipolar import (
    cross_matrix,
    essential_from_pose,
    fundamental_from_essential,
    sampson_residual,
)
from coam.geometry.planar_pose import Pose

STEP = 1e-6  # radians, of the numerical derivative
DAMPING = 1e-3  # of the first step, in mean curvatures; it adapts


def refine_pose(pose: Pose, data: Correspondences, threshold: float, iterations: int = 10) -> Pose:
    """The pose near `pose` that explains the matches best; threshold in pixels, beyond it none counts.

    The cost is the mean of 1 - (1 - d^2)^3 up to d = 1 thresholds (Tukey's biweight), constant beyond.
    """

    def residuals(candidate: Pose) -> Array:
        essential = essential_from_pose(*candidate)
        fundamental = fundamental_from_essential(essential, *data.known_cameras)
        return sampson_residual(data.points0, data.points1, fundamental) / threshold

    def cost(values: Array) -> float:
        return float((1 - (1 - np.minimum(values**2, 1.0)) ** 3).sum())

    now, damping = residuals(pose), DAMPING
    for _ in range(iterations):
        weight = (1 - np.minimum(now**2, 1.0)) ** 2
        steps = np.eye(5) * STEP
        jacobian = np.stack([(residuals(_moved(pose, step)) - now) / STEP for step in steps], axis=1)
        normal, gradient = (jacobian.T * weight) @ jacobian, (jacobian.T * weight) @ now
        scale = np.diag(normal).mean()
        if not np.isfinite(scale) or scale <= 0:
            return pose
        update = -np.linalg.solve(normal + damping * scale * np.eye(5), gradient)
        trial = _moved(pose, update)
        then = residuals(trial)
        if cost(then) < cost(now):
            pose, now, damping = trial, then, damping / 10
            if np.abs(update).max() < 1e-8:
                break
        else:
            damping *= 10
    return pose


def _moved(pose: Pose, update: Array) -> Pose:
    """The pose after a small rotation (3 numbers, radians) and a small turn of the translation (2)."""
    rotation, translation = pose
    _, _, basis = np.linalg.svd(translation[None])  # two directions across the translation
    moved = translation + update[3] * basis[1] + update[4] * basis[2]
    return rotation_of(update[:3]) @ rotation, moved / np.linalg.norm(moved)


def rotation_of(vector: Array) -> Array:
    """Rotation (3, 3) about `vector` (3,) by its length in radians (Rodrigues' formula)."""
    angle = float(np.linalg.norm(vector))
    if angle < 1e-12:
        return np.eye(3) + cross_matrix(vector)
    cross = cross_matrix(vector / angle)
    return np.asarray(np.eye(3) + np.sin(angle) * cross + (1 - np.cos(angle)) * cross @ cross)

"""Relative pose where one plane fills the photos.

Two cameras that see one plane can stand in two ways, and a robust estimator that has found one of them with
nearly all matches stops looking. The homography of the plane gives all candidates; the few matches off the
plane tell which is right. Where there are none, both are.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from coam.geometry.correspondences import Array, Correspondences
from coam.geometry.epipolar import (
    cheirality,
    essential_from_pose,
    fundamental_from_essential,
    sampson_distance,
)

Pose = tuple[Array, Array]  # rotation (3, 3), translation (3,) of unit length

LENIENT = 2.0  # thresholds: the homography of a plane is not as exact as a pose of its own


def poses_of_plane(homography: Array, intrinsics0: Array, intrinsics1: Array) -> Iterator[Pose]:
    """The poses camera 0 -> camera 1 (at most four) that map a plane by `homography` (3, 3), in pixels."""
    import cv2

    matrix = np.linalg.inv(intrinsics1) @ homography @ intrinsics0
    _, rotations, translations, _ = cv2.decomposeHomographyMat(matrix, np.eye(3))
    for rotation, translation in zip(rotations, translations, strict=True):
        length = float(np.linalg.norm(translation))
        if np.isfinite(length) and length > 1e-9:
            yield np.asarray(rotation, np.float64), np.asarray(translation, np.float64).reshape(3) / length


def support(pose: Pose, data: Correspondences, threshold: float) -> Array:
    """How well each match fits a pose, in [0, 1] (N,): 0 beyond the lenient threshold (pixels), or where its
    rays do not meet before both cameras."""
    fundamental = fundamental_from_essential(essential_from_pose(*pose), *data.known_cameras)
    distance = sampson_distance(data.points0, data.points1, fundamental) / (LENIENT * threshold)
    fit = np.maximum(0.0, 1.0 - distance**2)
    return np.where(cheirality(*data.rays(), *pose, 0.0), fit, 0.0)


def turn_between(data: Correspondences) -> Array:
    """The rotation (3, 3) that best maps the rays of camera 0 to those of camera 1 (Kabsch)."""
    first, second = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in data.rays())
    left, _, right = np.linalg.svd(second.T @ first)
    sign = np.diag([1.0, 1.0, np.linalg.det(left @ right)])
    return np.asarray(left @ sign @ right)

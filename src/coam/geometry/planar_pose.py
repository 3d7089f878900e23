"""Relative pose where one plane fills the photos.

Two cameras that see one plane can stand in two ways, and a robust estimator that has found one of them with
nearly all matches stops looking. The homography of the plane gives all candidates; the few matches off the
plane tell which is right.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from coam.geometry.epipolar import fundamental_from_pose, sampson_distance

Array = npt.NDArray[np.float64]
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


def support(
    pose: Pose, points0: Array, points1: Array, intrinsics0: Array, intrinsics1: Array, threshold: float
) -> Array:
    """How well each match (N, 2) fits a pose, in [0, 1]: 0 beyond the lenient threshold (pixels), or behind a
    camera."""
    fundamental = fundamental_from_pose(intrinsics0, intrinsics1, _matrix(pose))
    distance = sampson_distance(points0, points1, fundamental) / (LENIENT * threshold)
    fit = np.maximum(0.0, 1.0 - distance**2)
    return np.where(_in_front(pose, points0, points1, intrinsics0, intrinsics1), fit, 0.0)


def _matrix(pose: Pose) -> Array:
    matrix = np.eye(4)
    matrix[:3, :3], matrix[:3, 3] = pose
    return matrix


def _in_front(
    pose: Pose, points0: Array, points1: Array, intrinsics0: Array, intrinsics1: Array
) -> npt.NDArray[np.bool_]:
    """Which matches (N,) are triangulated before both cameras."""
    import cv2

    first = intrinsics0 @ np.eye(3, 4)
    second = intrinsics1 @ _matrix(pose)[:3]
    points = cv2.triangulatePoints(first, second, points0.T.copy(), points1.T.copy())
    depth0 = points[2] * np.sign(points[3])
    depth1 = (_matrix(pose)[2] @ points) * np.sign(points[3])
    return np.asarray((depth0 > 0) & (depth1 > 0))

"""Two-view geometry. Poses (4, 4) or (3, 4) map points of camera 0 to camera 1: X1 = R X0 + t.

A fundamental matrix F obeys x1^T F x0 = 0 for homogeneous pixels x0, x1.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def cross_matrix(vector: npt.ArrayLike) -> Array:
    """The (3, 3) matrix M with M x = vector x x."""
    x, y, z = np.asarray(vector, dtype=np.float64).reshape(3)
    return np.array([[0, -z, y], [z, 0, -x], [-y, x, 0]])


def essential_from_pose(rotation: npt.ArrayLike, translation: npt.ArrayLike) -> Array:
    """Essential matrix (3, 3) of the pose camera 0 -> camera 1."""
    return np.asarray(cross_matrix(translation) @ np.asarray(rotation, dtype=np.float64))


def fundamental_from_essential(
    essential: npt.ArrayLike, intrinsics0: npt.ArrayLike, intrinsics1: npt.ArrayLike
) -> Array:
    """Fundamental matrix (3, 3) of unit length from an essential matrix and the two 3x3 camera matrices."""
    inverse0, inverse1 = (
        np.linalg.inv(np.asarray(intrinsics0, float)),
        np.linalg.inv(np.asarray(intrinsics1, float)),
    )
    matrix = inverse1.T @ np.asarray(essential, dtype=np.float64) @ inverse0
    length = np.linalg.norm(matrix)
    return np.asarray(matrix / length if length > 0 else matrix)


def fundamental_from_pose(
    intrinsics0: npt.ArrayLike, intrinsics1: npt.ArrayLike, pose: npt.ArrayLike
) -> Array:
    """Fundamental matrix (3, 3) from the camera matrices and the pose (3|4, 4) camera 0 -> camera 1."""
    matrix = np.asarray(pose, dtype=np.float64)
    return fundamental_from_essential(
        essential_from_pose(matrix[:3, :3], matrix[:3, 3]), intrinsics0, intrinsics1
    )


def _homogeneous(points: npt.ArrayLike) -> Array:
    xy = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    return np.concatenate([xy, np.ones((len(xy), 1))], axis=1)


def epipolar_lines(fundamental: npt.ArrayLike, points0: npt.ArrayLike) -> Array:
    """Lines (N, 3) in image 1 of points (N, 2) of image 0: a x + b y + c = 0 with a^2 + b^2 = 1.

    The epipole itself has no line: nan. For lines in image 0, give F^T and points of image 1.
    """
    lines = _homogeneous(points0) @ np.asarray(fundamental, dtype=np.float64).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(lines / np.linalg.norm(lines[:, :2], axis=1, keepdims=True))


def _lines_and_residual(
    points0: npt.ArrayLike, points1: npt.ArrayLike, fundamental: npt.ArrayLike
) -> tuple[Array, Array, Array]:
    """Squared normals of the epipolar lines in image 1 and image 0, and x1^T F x0; each (N,)."""
    matrix = np.asarray(fundamental, dtype=np.float64)
    ones0, ones1 = _homogeneous(points0), _homogeneous(points1)
    lines1, lines0 = ones0 @ matrix.T, ones1 @ matrix
    residual = np.einsum("ni,ni->n", ones1, lines1)
    return (lines1[:, :2] ** 2).sum(1), (lines0[:, :2] ** 2).sum(1), residual


def epipolar_distances(
    points0: npt.ArrayLike, points1: npt.ArrayLike, fundamental: npt.ArrayLike
) -> tuple[Array, Array]:
    """Distances in pixels (N,), (N,) of points0 and of points1 to the epipolar line of the other."""
    normal1, normal0, residual = _lines_and_residual(points0, points1, fundamental)
    tiny = np.finfo(np.float64).tiny
    return np.abs(residual) / np.sqrt(normal0 + tiny), np.abs(residual) / np.sqrt(normal1 + tiny)


def symmetric_epipolar_distance(
    points0: npt.ArrayLike, points1: npt.ArrayLike, fundamental: npt.ArrayLike
) -> Array:
    """Larger of the two point-to-line distances in pixels (N,)."""
    return np.asarray(np.maximum(*epipolar_distances(points0, points1, fundamental)))


def sampson_residual(points0: npt.ArrayLike, points1: npt.ArrayLike, fundamental: npt.ArrayLike) -> Array:
    """Sampson distance in pixels (N,) with the sign of x1^T F x0, so that it is smooth where it is zero."""
    normal1, normal0, residual = _lines_and_residual(points0, points1, fundamental)
    return np.asarray(residual / np.sqrt(normal0 + normal1 + np.finfo(np.float64).tiny))


def sampson_distance(points0: npt.ArrayLike, points1: npt.ArrayLike, fundamental: npt.ArrayLike) -> Array:
    """Sampson distance in pixels (N,): first-order distance to the nearest pair that obeys F exactly."""
    return np.abs(sampson_residual(points0, points1, fundamental))


def cheirality(
    rays0: Array, rays1: Array, rotation: Array, translation: Array, parallel: float
) -> npt.NDArray[np.bool_]:
    """Cheirality (N,): which rays of two cameras meet before both, or are too nearly parallel to say.

    rays0, rays1 (N, 3) in camera coordinates; parallel: radians. When a camera moves forward all epipolar
    lines run through one point whatever the order of the photos: only this tells ahead from behind.
    """
    first, second = rays0 @ rotation.T, rays1
    normal = np.cross(first, second)
    # depth1 second = depth0 first + translation; their signs are enough
    depth0 = -(np.cross(translation, second) * normal).sum(1)
    depth1 = -(np.cross(translation, first) * normal).sum(1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    far = np.linalg.norm(normal, axis=1) < parallel * lengths
    return np.asarray(far | ((depth0 > 0) & (depth1 > 0)), np.bool_)

"""Plane-to-plane maps: 3x3 matrices acting on pixels (x, y). Robust fits: `coam.geometry.robust`."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from coam.geometry.coordinates import point_grid
from coam.types import Size

Array = npt.NDArray[np.float64]


def apply_homography(homography: npt.ArrayLike, points: npt.ArrayLike) -> Array:
    """Points (N, 2) mapped by a 3x3 homography, (N, 2). Those sent to infinity are inf, never nan."""
    matrix = np.asarray(homography, dtype=np.float64)
    xy = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    mapped = xy @ matrix[:, :2].T + matrix[:, 2]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        result = mapped[:, :2] / mapped[:, 2:]
    result[~np.isfinite(result).all(axis=1)] = np.inf
    return np.asarray(result)


def transfer_errors(points0: npt.ArrayLike, points1: npt.ArrayLike, homography: npt.ArrayLike) -> Array:
    """Transfer errors in pixels (N,): points1 (N, 2) against points0 (N, 2) mapped by a homography (3, 3).

    inf where a point is sent to infinity, or is none.
    """
    wanted = np.asarray(points1, dtype=np.float64).reshape(-1, 2)
    with np.errstate(invalid="ignore"):
        distance = np.linalg.norm(apply_homography(homography, points0) - wanted, axis=1)
    return np.asarray(np.nan_to_num(distance, nan=np.inf, posinf=np.inf))


def depth_under(homography: npt.ArrayLike, points: npt.ArrayLike) -> Array:
    """Third coordinate (N,) of points (N, 2) mapped by a homography; its sign: the side of infinity."""
    matrix = np.asarray(homography, dtype=np.float64)
    return np.asarray(np.asarray(points) @ matrix[2, :2] + matrix[2, 2], dtype=np.float64)


def scaled_homography(
    homography: npt.ArrayLike, scale0: tuple[float, float], scale1: tuple[float, float]
) -> Array:
    """The same map (3, 3) after image 0 and image 1 were resized by (sx, sy), in our pixel convention."""
    from_scaled = np.linalg.inv(resize_matrix(scale0))
    result = resize_matrix(scale1) @ np.asarray(homography, dtype=np.float64) @ from_scaled
    return np.asarray(result / result[2, 2] if result[2, 2] != 0 else result)


def resize_matrix(scale: tuple[float, float]) -> Array:
    """`coordinates.resize_points` as a matrix."""
    sx, sy = scale
    return np.array([[sx, 0, 0.5 * sx - 0.5], [0, sy, 0.5 * sy - 0.5], [0, 0, 1.0]])


def corner_error(estimated: npt.ArrayLike | None, true: npt.ArrayLike, size: Size) -> float:
    """Mean distance in pixels between the four corners of image 0 under both maps; inf for None."""
    if estimated is None:
        return float("inf")
    width, height = size
    corners = np.array([[0, 0], [width - 1, 0], [width - 1, height - 1], [0, height - 1]], dtype=np.float64)
    mapped, wanted = apply_homography(estimated, corners), apply_homography(true, corners)
    if not (np.isfinite(mapped).all() and np.isfinite(wanted).all()):
        return float("inf")
    return float(np.linalg.norm(mapped - wanted, axis=1).mean())


def visible_error(
    estimated: npt.ArrayLike | None, true: npt.ArrayLike, size0: Size, size1: Size, steps: int = 40
) -> float:
    """Mean distance in pixels between both maps over what both images show, in the image where it is larger.

    Corners of image 0 may lie beyond the horizon of a wall seen from the side; what both images show never
    does. `steps` points a side are asked in image 0. inf for None or where a point is sent to infinity, nan
    where the images have nothing in common.
    """
    points0 = point_grid(size0, steps)
    points1 = apply_homography(true, points0)
    depth = depth_under(true, points0)
    # A homography is known up to its sign: what is seen lies on the side of the points that stay inside.
    seen = ((points1 >= 0) & (points1 <= np.asarray(size1) - 1)).all(axis=1)
    seen &= depth * np.sign(np.median(depth[seen])) > 0 if seen.any() else False
    if not seen.any():
        return float("nan")
    if estimated is None or abs(np.linalg.det(np.asarray(estimated))) < 1e-12:
        return float("inf")
    points0, points1 = points0[seen], points1[seen]
    there, back = (
        apply_homography(estimated, points0),
        apply_homography(np.linalg.inv(np.asarray(estimated)), points1),
    )
    if not (np.isfinite(there).all() and np.isfinite(back).all()):
        return float("inf")
    errors = (np.linalg.norm(there - points1, axis=1), np.linalg.norm(back - points0, axis=1))
    return float(max(error.mean() for error in errors))


def fit_homography(points0: npt.ArrayLike, points1: npt.ArrayLike) -> Array | None:
    """Least-squares homography (3, 3) from points (N, 2), N >= 4, without outliers; None where it is
    undefined.
    """
    xy0, xy1 = (np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in (points0, points1))
    if len(xy0) < 4 or len(xy0) != len(xy1):
        return None
    norm0, norm1 = _normalising(xy0), _normalising(xy1)
    if norm0 is None or norm1 is None:
        return None
    rows = np.concatenate(_linear_rows(apply_homography(norm0, xy0), apply_homography(norm1, xy1)))
    _, singular, basis = np.linalg.svd(rows, full_matrices=len(rows) < 9)  # all nine directions, no more
    if singular[7] < 1e-9 * singular[0]:  # a second solution: three points on a line, or repeated points
        return None
    matrix = np.linalg.inv(norm1) @ basis[-1].reshape(3, 3) @ norm0
    return np.asarray(matrix / matrix[2, 2]) if abs(matrix[2, 2]) > 1e-12 else None


def resampled_homographies(
    points0: npt.ArrayLike, points1: npt.ArrayLike, block: npt.ArrayLike, drawn: npt.ArrayLike
) -> Array:
    """Least-squares homographies (B, 3, 3) of points (N, 2) when whole blocks are drawn with replacement.

    block: (N,) the number of each point's block; drawn: (B, K) how often each of the K blocks counts. A draw
    that defines no homography gives an arbitrary one; (0, 3, 3) where there are too few points for any.
    """
    xy0, xy1 = (np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in (points0, points1))
    counts = np.asarray(drawn, dtype=np.float64)
    norm0, norm1 = (_normalising(xy) if len(xy) >= 4 else None for xy in (xy0, xy1))
    if norm0 is None or norm1 is None:
        return np.zeros((0, 3, 3))
    normal = np.zeros((counts.shape[1], 9, 9))  # of each block: those of a draw are their sum
    for rows in _linear_rows(apply_homography(norm0, xy0), apply_homography(norm1, xy1)):
        np.add.at(normal, np.asarray(block), rows[:, :, None] * rows[:, None])
    _, basis = np.linalg.eigh(np.tensordot(counts, normal, axes=1))
    return np.asarray(np.linalg.inv(norm1) @ basis[:, :, 0].reshape(-1, 3, 3) @ norm0)


def _linear_rows(a: Array, b: Array) -> tuple[Array, Array]:
    """Rows (N, 9), (N, 9) of the direct linear transform: orthogonal to homographies from a (N, 2) to b."""
    one, zero = np.ones(len(a)), np.zeros(len(a))
    rows_x = np.stack(
        [a[:, 0], a[:, 1], one, zero, zero, zero, -b[:, 0] * a[:, 0], -b[:, 0] * a[:, 1], -b[:, 0]], 1
    )
    rows_y = np.stack(
        [zero, zero, zero, a[:, 0], a[:, 1], one, -b[:, 1] * a[:, 0], -b[:, 1] * a[:, 1], -b[:, 1]], 1
    )
    return rows_x, rows_y


def _normalising(points: Array) -> Array | None:
    """Similarity that centres the points with a mean distance of sqrt(2), for a well-posed system."""
    centre = points.mean(axis=0)
    spread = np.linalg.norm(points - centre, axis=1).mean()
    if not np.isfinite(spread) or spread < 1e-12:
        return None
    s = np.sqrt(2.0) / spread
    return np.array([[s, 0, -s * centre[0]], [0, s, -s * centre[1]], [0, 0, 1.0]])

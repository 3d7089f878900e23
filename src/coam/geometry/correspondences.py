"""Matches as robust estimators want them: finite, best first, with the cameras where these are known."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError
from coam.types import Size

Array = npt.NDArray[np.float64]
Cameras = tuple[Array, Array]  # the camera matrices (3, 3) of photo 0 and photo 1


@dataclass(frozen=True)
class Correspondences:
    """Points of two photos that correspond, without those that are not numbers."""

    points0: Array  # (N, 2) pixels of photo 0
    points1: Array  # (N, 2) pixels of photo 1
    scores: Array | None  # (N,) descending; None: no order is known
    cameras: Cameras | None = None

    def __len__(self) -> int:
        return len(self.points0)

    @property
    def distinct(self) -> int:
        """How many different matches there are: a repeated one fixes no more than a single one."""
        return len(np.unique(np.concatenate([self.points0, self.points1], axis=1), axis=0))

    @property
    def known_cameras(self) -> Cameras:
        """The camera matrices; only what was made with cameras is asked for them."""
        assert self.cameras is not None
        return self.cameras

    def rays(self) -> tuple[Array, Array]:
        """Both sides as points (N, 3) at depth 1 in the coordinates of their camera; skew is honoured."""
        camera0, camera1 = self.known_cameras
        return rays(self.points0, camera0), rays(self.points1, camera1)

    def select(self, mask: npt.NDArray[np.bool_]) -> Correspondences:
        """The matches at `mask` (N,)."""
        scores = None if self.scores is None else self.scores[mask]
        return Correspondences(self.points0[mask], self.points1[mask], scores, self.cameras)


def correspondences(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    scores: npt.ArrayLike | None = None,
    cameras: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> Correspondences:
    """Cleaned and ordered matches from points (N, 2), scores (N,) and camera matrices (3, 3).

    A single nan makes every estimator return nonsense, so such matches are left out here.
    """
    xy0, xy1 = (np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in (points0, points1))
    if len(xy0) != len(xy1):
        raise ConfigError(f"matches need as many points in both images, got {len(xy0)} and {len(xy1)}")
    usable = np.isfinite(np.concatenate([xy0, xy1], axis=1)).all(axis=1)
    order, ranked = np.flatnonzero(usable), None
    if scores is not None:
        values = np.asarray(scores, dtype=np.float64).reshape(-1)
        if len(values) != len(xy0):
            raise ConfigError(f"matches need one score each, got {len(values)} for {len(xy0)}")
        values = np.nan_to_num(values, nan=-np.inf, neginf=-np.inf)
        order = order[np.argsort(-values[order], kind="stable")]
        ranked = values[order]
    checked = None if cameras is None else (camera_matrix(cameras[0]), camera_matrix(cameras[1]))
    return Correspondences(
        np.ascontiguousarray(xy0[order]), np.ascontiguousarray(xy1[order]), ranked, checked
    )


def camera_matrix(intrinsics: npt.ArrayLike) -> Array:
    """A checked camera matrix (3, 3): finite, invertible, its last row 0 0 1, focal lengths positive."""
    matrix = np.asarray(intrinsics, dtype=np.float64)
    if matrix.shape != (3, 3):
        raise ConfigError(f"a camera matrix is 3 x 3, got the shape {matrix.shape}")
    focal = matrix[[0, 1], [0, 1]]
    if not np.isfinite(matrix).all() or (focal <= 0).any() or not np.allclose(matrix[2], [0, 0, 1]):
        raise ConfigError("a camera matrix is [[fx, s, cx], [0, fy, cy], [0, 0, 1]] with fx, fy > 0")
    return matrix


def centred_camera(focal: float, size: Size) -> Array:
    """Camera matrix (3, 3) for a focal length in pixels, its principal point in the middle of the photo."""
    width, height = size
    return camera_matrix([[focal, 0.0, (width - 1) / 2], [0.0, focal, (height - 1) / 2], [0.0, 0.0, 1.0]])


def rays(points: npt.ArrayLike, intrinsics: Array) -> Array:
    """Pixels (N, 2) as points (N, 3) at depth 1 before the camera."""
    xy = np.asarray(points, dtype=np.float64).reshape(-1, 2)
    homogeneous = np.concatenate([xy, np.ones((len(xy), 1))], axis=1)
    return np.asarray(homogeneous @ np.linalg.inv(intrinsics).T)

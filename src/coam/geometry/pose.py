"""How far a relative pose is from the truth, in degrees, the way the field measures it."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def rotation_angle(rotation: npt.ArrayLike) -> float:
    """Angle in degrees, 0..180, by which a rotation matrix (3, 3) turns."""
    matrix = np.asarray(rotation, dtype=np.float64)
    # |R - R^T| measures the sine: with it small angles keep their digits, which arccos of the trace loses.
    sine = np.linalg.norm(matrix - matrix.T) / (2 * np.sqrt(2))
    cosine = (np.trace(matrix) - 1) / 2
    return float(np.degrees(np.arctan2(sine, cosine)))


def rotation_error(estimated: npt.ArrayLike, true: npt.ArrayLike) -> float:
    """Angle in degrees, 0..180, between two rotation matrices (3, 3)."""
    return rotation_angle(np.asarray(estimated, dtype=np.float64).T @ np.asarray(true, dtype=np.float64))


def translation_error(estimated: npt.ArrayLike, true: npt.ArrayLike, *, signed: bool = False) -> float:
    """Angle in degrees between two translation directions (3,).

    An essential matrix fixes t only up to its sign, so the field (SuperGlue, OANet, LoFTR) folds the angle to
    0..90; `signed=True` keeps 0..180. A true translation of length zero has no direction: the error is 0, as
    there is nothing to be wrong about. An estimate of length zero counts as 90 (180 when signed).
    """
    a, b = np.asarray(estimated, dtype=np.float64).reshape(3), np.asarray(true, dtype=np.float64).reshape(3)
    if np.linalg.norm(b) < 1e-12:
        return 0.0
    if np.linalg.norm(a) < 1e-12:
        return 180.0 if signed else 90.0
    angle = float(np.degrees(np.arctan2(np.linalg.norm(np.cross(a, b)), a @ b)))
    return angle if signed else min(angle, 180.0 - angle)


def relative_pose_matrix(cam0_from_world: npt.ArrayLike, cam1_from_world: npt.ArrayLike) -> Array:
    """Pose (4, 4) camera 0 -> camera 1 from two camera-from-world poses (3|4, 4)."""
    return np.asarray(_square(cam1_from_world) @ np.linalg.inv(_square(cam0_from_world)))


def _square(pose: npt.ArrayLike) -> Array:
    matrix = np.eye(4)
    matrix[:3] = np.asarray(pose, dtype=np.float64)[:3]
    return matrix

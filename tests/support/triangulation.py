"""How exact keypoints are when the cameras are known: every track is triangulated from its own positions."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


def triangulation_errors(
    positions: Floats, node_image: Ints, tracks: Ints, projections: Floats, minimum: int = 2
) -> Floats:
    """Reprojection errors (K,) in pixels of all nodes in tracks when cameras are known: the accuracy of
    positions.

    positions (N, 2); node_image (N,); tracks (N,); projections (images, 3, 4) from world to pixels. Each
    track is triangulated from its own positions (linear, then three Gauss-Newton rounds).
    """
    errors: list[Floats] = []
    order = np.argsort(tracks, kind="stable")
    order = order[tracks[order] >= 0]
    groups = np.split(order, np.flatnonzero(np.diff(tracks[order])) + 1)
    for nodes in groups:
        if len(nodes) >= minimum:
            errors.append(_triangulate(positions[nodes], projections[node_image[nodes]])[1])
    return np.concatenate(errors) if errors else np.zeros(0)


def _triangulate(points: Floats, projections: Floats) -> tuple[Floats, Floats]:
    """A point (3,) from its positions (K, 2) in cameras (K, 3, 4), and its reprojection errors (K,)."""
    rows = points[:, :, None] * projections[:, 2:3] - projections[:, :2]  # (K, 2, 4)
    rows = rows.reshape(-1, 4)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    homogeneous = np.linalg.svd(rows)[2][-1]
    point = homogeneous[:3] / (homogeneous[3] if abs(homogeneous[3]) > 1e-12 else 1e-12)
    for _ in range(3):
        image = projections @ np.append(point, 1.0)
        residual = image[:, :2] / image[:, 2:] - points
        jacobian = (
            projections[:, :2, :3] - (image[:, :2] / image[:, 2:])[:, :, None] * projections[:, 2:3, :3]
        ) / image[:, 2, None, None]
        step, *_ = np.linalg.lstsq(jacobian.reshape(-1, 3), -residual.ravel(), rcond=None)
        point = point + step
    image = projections @ np.append(point, 1.0)
    return point, np.linalg.norm(image[:, :2] / image[:, 2:] - points, axis=1)

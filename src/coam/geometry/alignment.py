"""Umeyama alignment of camera poses, and pose errors after it. Plain numpy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coam.geometry.pose import rotation_angle

Floats = npt.NDArray[np.float64]
Pose = tuple[Floats, Floats]  # rotation (3, 3) and translation (3,), camera-from-world
Similarity = tuple[float, Floats, Floats]  # scale, rotation (3, 3), translation (3,)

TRIALS = 200  # of RANSAC
INLIER_DISTANCE = 0.1  # sizes of the scene: camera centres farther off are outliers of an alignment
ROTATION_WEIGHT = 0.1  # of a camera's own rotation beside its centre, in squared sizes of the scene


@dataclass(frozen=True)
class PoseErrors:
    """Errors of the photos that both models have, after alignment."""

    names: tuple[str, ...]
    position: Floats  # (n,) in units of the truth
    rotation: Floats  # (n,) degrees
    scene_size: float  # diagonal of the box around the true camera centres, or what the caller gave

    def correct(self, max_position: float = 0.05, max_rotation: float = 5.0) -> list[str]:
        """Photos within `max_position` (in scene sizes) and `max_rotation` (degrees)."""
        ok = (self.position <= max_position * self.scene_size) & (self.rotation <= max_rotation)
        return [name for name, good in zip(self.names, ok, strict=True) if good]


def camera_centre(pose: Pose) -> Floats:
    """Camera centre (3,) in world coordinates."""
    return -pose[0].T @ pose[1]


def camera_centres(poses: Mapping[str, Pose], names: Iterable[str]) -> Floats:
    """Camera centres (n, 3) in world coordinates of the photos `names`."""
    return np.array([camera_centre(poses[name]) for name in names]).reshape(-1, 3)


def similarity(source: Floats, target: Floats) -> Similarity:
    """Umeyama's similarity that takes points source (n, 3) to target (n, 3), least squares."""
    mean_source, mean_target = source.mean(0), target.mean(0)
    centred, aimed = source - mean_source, target - mean_target
    left, values, right = np.linalg.svd(aimed.T @ centred)
    sign = np.array([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    rotation = (left * sign) @ right
    scale = float((values * sign).sum() / max((centred**2).sum(), 1e-30))
    return scale, rotation, mean_target - scale * rotation @ mean_source


def robust_similarity(source: Floats, target: Floats, rotations: Floats) -> Similarity:
    """Umeyama alignment of the camera centres that are inliers of a RANSAC: some cameras may be far off.

    rotations (n, 3, 3): world rotation target-from-source that each camera votes for; it settles the turn
    about the line of cameras in a row, which centres alone leave open.
    """
    best, best_cost = None, np.inf
    generator = np.random.default_rng(0)
    size = float(np.linalg.norm(target.max(0) - target.min(0))) or 1.0
    for trial in range(TRIALS):
        i, j = (int(k) for k in generator.choice(len(source), 2, replace=False))
        base = float(np.linalg.norm(source[i] - source[j]))
        if base < 1e-12:
            continue
        rotation = rotations[i if trial % 2 else j]
        scale = float(np.linalg.norm(target[i] - target[j])) / base
        translation = target[i] - scale * rotation @ source[i]
        error = np.linalg.norm(scale * source @ rotation.T + translation - target, axis=1) / size
        cost = float(np.minimum(error, INLIER_DISTANCE).sum())
        if cost < best_cost:
            best, best_cost = error < INLIER_DISTANCE, cost
    inlier = np.ones(len(source), np.bool_) if best is None or best.sum() < 3 else best
    source, target = source[inlier], target[inlier]
    scale, *_ = similarity(source, target)
    # Rotation from centres and from the cameras' own rotations together.
    centred, aimed = source - source.mean(0), target - target.mean(0)
    evidence = scale * aimed.T @ centred / size**2 + ROTATION_WEIGHT * rotations[inlier].sum(0)
    left, _, right = np.linalg.svd(evidence)
    rotation = left @ np.diag([1.0, 1.0, np.sign(np.linalg.det(left @ right))]) @ right
    return scale, rotation, target.mean(0) - scale * rotation @ source.mean(0)


def align_poses(model: Mapping[str, Pose], truth: Mapping[str, Pose], names: Iterable[str]) -> Similarity:
    """The robust similarity that lays the photos `names` (three or more) of `model` over `truth`."""
    names = list(names)
    votes = np.array([truth[name][0].T @ model[name][0] for name in names])
    return robust_similarity(camera_centres(model, names), camera_centres(truth, names), votes)


def pose_errors(
    model: Mapping[str, Pose], truth: Mapping[str, Pose], scene_size: float | None = None
) -> PoseErrors:
    """Pose errors of the common photos after aligning `model` to `truth` (at least 3 common photos)."""
    names = tuple(sorted(set(model) & set(truth)))
    centres, true_centres = camera_centres(model, names), camera_centres(truth, names)
    size = scene_size or (float(np.linalg.norm(true_centres.max(0) - true_centres.min(0))) if names else 0.0)
    if len(names) < 3:
        return PoseErrors(names, np.full(len(names), np.inf), np.full(len(names), np.inf), size)
    scale, rotation, translation = align_poses(model, truth, names)
    position = np.linalg.norm(scale * centres @ rotation.T + translation - true_centres, axis=1)
    angles = [rotation_angle(truth[name][0].T @ model[name][0] @ rotation.T) for name in names]
    return PoseErrors(names, position, np.array(angles), size)

"""How far a model is from the truth: similarity alignment and pose errors. Plain numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.sfm.cycles import rotation_angle

Floats = npt.NDArray[np.float64]
Pose = tuple[Floats, Floats]  # rotation (3, 3) and translation (3,), camera-from-world


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


def similarity(source: Floats, target: Floats) -> tuple[float, Floats, Floats]:
    """Scale, rotation (3, 3) and translation (3,) that take points source (n, 3) to target (n, 3), least
    squares.
    """
    mean_source, mean_target = source.mean(0), target.mean(0)
    centred, aimed = source - mean_source, target - mean_target
    left, values, right = np.linalg.svd(aimed.T @ centred)
    sign = np.diag([1.0, 1.0, np.sign(np.linalg.det(left @ right))])
    rotation = left @ sign @ right
    scale = float((values * np.diag(sign)).sum() / max((centred**2).sum(), 1e-30))
    return scale, rotation, mean_target - scale * rotation @ mean_source


def robust_similarity(source: Floats, target: Floats, rotations: Floats, trials: int = 200) -> Any:
    """`similarity` on the camera centres that agree: some cameras of a wrong model may be far off.

    rotations (n, 3, 3): world rotation target-from-source that each camera votes for; it settles the turn
    about the line of cameras in a row, which centres alone leave open.
    """
    best, best_cost = None, np.inf
    generator = np.random.default_rng(0)
    size = float(np.linalg.norm(target.max(0) - target.min(0))) or 1.0
    for trial in range(trials):
        i, j = (int(k) for k in generator.choice(len(source), 2, replace=False))
        base = float(np.linalg.norm(source[i] - source[j]))
        if base < 1e-12:
            continue
        rotation = rotations[i if trial % 2 else j]
        scale = float(np.linalg.norm(target[i] - target[j])) / base
        translation = target[i] - scale * rotation @ source[i]
        error = np.linalg.norm(scale * source @ rotation.T + translation - target, axis=1) / size
        cost = float(np.minimum(error, 0.1).sum())
        if cost < best_cost:
            best, best_cost = error < 0.1, cost
    agree = np.ones(len(source), np.bool_) if best is None or best.sum() < 3 else best
    scale, rotation, _ = similarity(source[agree], target[agree])
    # Rotation from centres and from the cameras' own rotations together.
    centred, aimed = source[agree] - source[agree].mean(0), target[agree] - target[agree].mean(0)
    evidence = scale * aimed.T @ centred / size**2 + 0.1 * rotations[agree].sum(0)
    left, _, right = np.linalg.svd(evidence)
    rotation = left @ np.diag([1.0, 1.0, np.sign(np.linalg.det(left @ right))]) @ right
    return scale, rotation, target[agree].mean(0) - scale * rotation @ source[agree].mean(0)


def pose_errors(
    model: Mapping[str, Pose], truth: Mapping[str, Pose], scene_size: float | None = None
) -> PoseErrors:
    """Pose errors of the common photos after aligning `model` to `truth` (at least 3 common photos)."""
    names = tuple(sorted(set(model) & set(truth)))
    centres = np.array([-model[name][0].T @ model[name][1] for name in names]).reshape(-1, 3)
    true_centres = np.array([-truth[name][0].T @ truth[name][1] for name in names]).reshape(-1, 3)
    size = scene_size or (float(np.linalg.norm(true_centres.max(0) - true_centres.min(0))) if names else 0.0)
    if len(names) < 3:
        return PoseErrors(names, np.full(len(names), np.inf), np.full(len(names), np.inf), size)
    votes = np.array([truth[name][0].T @ model[name][0] for name in names])
    scale, rotation, translation = robust_similarity(centres, true_centres, votes)
    position = np.linalg.norm(scale * centres @ rotation.T + translation - true_centres, axis=1)
    angles = [rotation_angle(truth[name][0].T @ model[name][0] @ rotation.T) for name in names]
    return PoseErrors(names, position, np.array(angles), size)


def model_poses(reconstruction: Any) -> dict[str, Pose]:
    """Poses of the registered photos of a pycolmap reconstruction."""
    poses = {}
    for image_id in reconstruction.reg_image_ids():
        image = reconstruction.image(image_id)
        pose = image.cam_from_world()
        poses[image.name] = (np.asarray(pose.rotation.matrix(), float), np.asarray(pose.translation, float))
    return poses

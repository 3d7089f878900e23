"""Absolute pose of a query from its 2D-3D matches (PnP with RANSAC), or a refusal with its reason."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.geometry.alignment import Pose, camera_centre
from coam.geometry.coordinates import to_colmap
from coam.geometry.pose import rotation_angle
from coam.sfm.cameras import camera_spec
from coam.sfm.colmap_model import as_pose
from coam.store.atomic import write_text

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class LocalizeOptions:
    """How queries are located, and when a pose is refused."""

    neighbours: int = 15  # photos of the model that each query is matched against
    max_error: float = 0.005  # reprojection error of an inlier, in long sides of the query
    min_inliers: int = 15
    min_ratio: float = 0.05  # share of the lifted matches that must agree
    min_spread: float = 0.04  # of the query's diagonal over which inliers must be spread (standard deviation)
    max_disagreement: float = 10.0  # degrees, and percent of the distance, between halves of the evidence
    seed: int = 0
    max_shared_cameras: int = 3  # of a model: with more, none says much about a query's
    own_camera_lead: float = 1.1  # times as many inliers as with the model's camera, for the query's own
    min_for_distortion: int = 500  # lifted matches from which distortion is refined as well
    estimated_trust: float = 0.7  # confidence of a pose whose focal length was estimated with it
    focal_range: tuple[float, float] = (0.1, 10.0)  # sensible focal lengths in long sides of the query
    sure_inliers: float = 40.0  # inliers at which confidence has reached 63 %
    sure_ratio: float = 0.3  # share of agreeing matches, and
    sure_spread: float = 0.15  # spread, from which confidence grows no more


@dataclass(frozen=True)
class Location:
    """The answer for one query. `pose` is None where it was refused; `reason` then says why."""

    name: str
    pose: Pose | None  # camera-from-world
    inliers: int
    lifted: int  # matches that have a 3D point
    confidence: float  # in [0, 1]: grows with inliers, their share and spread; a rank, not a probability
    camera: str  # "MODEL WIDTH HEIGHT PARAMS" as used or estimated
    matched: tuple[str, ...]  # photos of the model that gave inliers, best first
    reason: str = ""
    intrinsics: str = ""  # where the camera is from: "given", "the model's", "EXIF" or "estimated"

    @property
    def centre(self) -> Floats | None:
        """Camera centre (3,) in the model's world."""
        return None if self.pose is None else camera_centre(self.pose)


@dataclass(frozen=True)
class Lifted:
    """2D-3D matches of one query."""

    points2d: Floats  # (N, 2) our pixels of the query
    points3d: Floats  # (N, 3)
    source: Ints  # (N,) number of the model's photo
    keypoint: Ints | None = None  # (N,) number of that photo's keypoint, where it is known

    def select(self, index: npt.NDArray[Any]) -> Lifted:
        """The matches at `index` (integers or a mask)."""
        keypoint = None if self.keypoint is None else self.keypoint[index]
        return Lifted(self.points2d[index], self.points3d[index], self.source[index], keypoint)


def solve_location(
    name: str,
    lifted: Lifted,
    camera: Any,
    focal_known: bool,
    photo_names: Sequence[str],
    options: LocalizeOptions,
) -> Location:
    """The camera pose from lifted matches, or a refusal with its reason."""
    total = len(lifted.points2d)

    def refuse(reason: str, inliers: int = 0) -> Location:
        return Location(name, None, inliers, total, 0.0, camera_spec(camera), (), reason)

    if total < options.min_inliers:
        return refuse(f"only {total} matches reach 3D points of the model, {options.min_inliers} needed")
    answer = _solve(lifted, camera, focal_known, options)
    if answer is None:
        return refuse("no camera pose explains the matches")
    pose, inlier = answer
    count = int(inlier.sum())
    needed = max(options.min_inliers, int(np.ceil(options.min_ratio * total)))
    if count < needed:
        return refuse(f"only {count} of {total} lifted matches agree, {needed} needed", count)
    spread = float(np.hypot(*lifted.points2d[inlier].std(axis=0)) / np.hypot(camera.width, camera.height))
    if spread < options.min_spread:
        return refuse(f"the {count} matches that agree lie in one small spot of the photo", count)
    if camera.has_bogus_params(*options.focal_range, 1.0):
        return refuse("the estimated focal length makes no sense", count)
    disagreement = _halves_disagree(lifted, inlier, pose, camera, options)
    if disagreement:
        return refuse(disagreement, count)
    sources, votes = np.unique(lifted.source[inlier], return_counts=True)
    matched = tuple(photo_names[index] for index in sources[np.argsort(-votes, kind="stable")])
    sure = confidence(count, count / total, spread, options)
    return Location(name, pose, count, total, sure, camera_spec(camera), matched)


def confidence(inliers: int, ratio: float, spread: float, options: LocalizeOptions) -> float:
    """In [0, 1]: each of few inliers, a small share of agreeing matches, and little spread lowers it."""
    enough: float = 1.0 - float(np.exp(-inliers / options.sure_inliers))
    rest = min(1.0, ratio / options.sure_ratio) * min(1.0, spread / options.sure_spread)
    return round(enough * float(np.sqrt(rest)), 4)


def _solve(
    lifted: Lifted, camera: Any, focal_known: bool, options: LocalizeOptions
) -> tuple[Pose, npt.NDArray[np.bool_]] | None:
    """Pose and inlier mask (N,); an unknown focal length is written into `camera`."""
    import pycolmap

    estimation = pycolmap.AbsolutePoseEstimationOptions()
    estimation.estimate_focal_length = not focal_known
    estimation.ransac.max_error = options.max_error * max(camera.width, camera.height)
    estimation.ransac.random_seed = options.seed
    refinement = pycolmap.AbsolutePoseRefinementOptions()
    refinement.refine_focal_length = not focal_known
    refinement.refine_extra_params = not focal_known and len(lifted.points2d) >= options.min_for_distortion
    answer = pycolmap.estimate_and_refine_absolute_pose(
        to_colmap(lifted.points2d), lifted.points3d, camera, estimation, refinement
    )
    if answer is None:
        return None
    return as_pose(answer["cam_from_world"]), np.asarray(answer["inlier_mask"], np.bool_)


def _halves_disagree(
    lifted: Lifted, inlier: npt.NDArray[np.bool_], pose: Pose, camera: Any, options: LocalizeOptions
) -> str:
    """One line where two halves of ALL lifted matches, split by model photo, give contradicting poses.

    Look-alike places give two groups of photos that each see their own answer; the larger must not win
    silently.
    """
    sources, counts = np.unique(lifted.source, return_counts=True)
    if len(sources) < 4:
        return ""
    order = sources[np.argsort(-counts, kind="stable")]
    centre = camera_centre(pose)
    distance = float(np.median(np.linalg.norm(lifted.points3d[inlier] - centre, axis=1)))
    for half in (order[0::2], order[1::2]):
        part = np.isin(lifted.source, half)
        if part.sum() < 2 * options.min_inliers:
            continue
        answer = _solve(lifted.select(part), camera, True, options)
        if answer is None or answer[1].sum() < 2 * options.min_inliers:
            continue  # too little evidence to contradict
        angle = rotation_angle(answer[0][0] @ pose[0].T)
        gap = 100 * float(np.linalg.norm(camera_centre(answer[0]) - centre)) / max(distance, 1e-12)
        if angle > options.max_disagreement or gap > options.max_disagreement:
            return (
                f"two halves of the model's photos give places {angle:.0f} degrees and {gap:.0f} % "
                "of the distance apart"
            )
    return ""


def write_poses(locations: Sequence[Location], path: str | Path) -> Path:
    """`name qw qx qy qz tx ty tz`, one located query per line: the visual localization benchmark's format."""
    lines = []
    for location in locations:
        if location.pose is not None:
            numbers = [*quaternion(location.pose[0]), *location.pose[1]]
            lines.append(" ".join([location.name, *(f"{value:.10g}" for value in numbers)]) + "\n")
    return write_text(path, "".join(lines))


def quaternion(rotation: Floats) -> Floats:
    """(w, x, y, z) of a rotation matrix (3, 3), w not negative."""
    from scipy.spatial.transform import Rotation

    x, y, z, w = Rotation.from_matrix(rotation).as_quat(canonical=True)
    return np.array([w, x, y, z])


def locations_to_json(locations: Sequence[Location]) -> list[dict[str, Any]]:
    """Everything about every query, as JSON values."""
    return [
        {
            "name": location.name,
            "located": location.pose is not None,
            "qvec": None if location.pose is None else quaternion(location.pose[0]).tolist(),
            "tvec": None if location.pose is None else location.pose[1].tolist(),
            "centre": None if location.centre is None else location.centre.tolist(),
            "inliers": location.inliers,
            "lifted_matches": location.lifted,
            "confidence": location.confidence,
            "camera": location.camera,
            "intrinsics": location.intrinsics,
            "matched_photos": list(location.matched),
            "reason": location.reason,
        }
        for location in locations
    ]

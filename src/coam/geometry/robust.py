"""One face over the robust estimators: homography, fundamental matrix, essential matrix, relative pose.

Every function takes matches as points (N, 2) in pixels and, where these are known, their scores (N,), by
which samples are then drawn best first. It gives a model with its inliers (N,), the same for the same seed,
or None where the matches do not determine one.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import numpy.typing as npt

from coam.geometry.correspondences import Correspondences, correspondences
from coam.geometry.homography import apply_homography, fit_homography
from coam.geometry.planar_pose import Pose, poses_of_plane, support, turn_between
from coam.geometry.pose import rotation_error, translation_error
from coam.geometry.pose_refinement import refine_pose
from coam.geometry.ransacs import ESTIMATORS, Estimator, OpenCV, PoseLib, Ransac, RansacOptions, SupeRansac
from coam.geometry.two_view_models import (
    Degeneracy,
    EssentialMatrix,
    FundamentalMatrix,
    Homography,
    RelativePose,
)

__all__ = [
    "ESTIMATORS",
    "Estimator",
    "RansacOptions",
    "estimate_essential",
    "estimate_fundamental",
    "estimate_homography",
    "relative_pose",
]

_RANSACS: dict[str, Ransac] = {"opencv": OpenCV(), "poselib": PoseLib(), "superansac": SupeRansac()}

DEFAULT_OPTIONS = RansacOptions()
HOMOGRAPHY_OPTIONS = RansacOptions(threshold=3.0)
MINDING_PLANES = RansacOptions(planes=True)

PLANE_THRESHOLDS = 3.0  # a plane in the world is not as flat as a pose is exact
# Matches that one model explains and another does not decide between them if they are at least so many, and
# this share of its inliers: fewer are wrong matches that fit by chance. Of few inliers, a quarter decides.
FEWEST_DECIDING, DECIDING_SHARE, MOST_NEEDED = 8, 0.01, 0.25
SAME_POSE = 1.0  # degrees


def estimate_homography(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    options: RansacOptions = HOMOGRAPHY_OPTIONS,
    scores: npt.ArrayLike | None = None,
) -> Homography | None:
    """Homography 0 -> 1 from matches with outliers; the threshold is on the transfer error in pixels."""
    name, ransac, data = _prepare(points0, points1, options, scores)
    matrix = ransac.homography(data, options) if data.distinct >= 4 else None
    if matrix is None:
        return None
    found = Homography(matrix=matrix, threshold=options.threshold, estimator=name).judged(points0, points1)
    inner = data.select(found.explains(data.points0, data.points1))
    # Points on one line obey many homographies.
    return found if fit_homography(inner.points0, inner.points1) is not None else None


def estimate_fundamental(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    options: RansacOptions = DEFAULT_OPTIONS,
    scores: npt.ArrayLike | None = None,
) -> FundamentalMatrix | None:
    """Fundamental matrix (x1^T F x0 = 0) from matches with outliers; the threshold is in pixels."""
    name, ransac, data = _prepare(points0, points1, options, scores)
    matrix = ransac.fundamental(data, options) if data.distinct >= 8 else None
    if matrix is None:
        return None
    found = FundamentalMatrix(matrix=matrix, threshold=options.threshold, estimator=name)
    found = found.judged(points0, points1)
    if found.inliers.sum() < 8:
        return None
    inner = data.select(found.explains(data.points0, data.points1))
    if options.planes and _on_one_plane(inner, ransac, options):
        return replace(found, degeneracy="plane")
    return found


def estimate_essential(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    options: RansacOptions = DEFAULT_OPTIONS,
    scores: npt.ArrayLike | None = None,
) -> EssentialMatrix | None:
    """Essential matrix from matches and camera matrices (3, 3); the threshold is in pixels."""
    name, ransac, data = _prepare(points0, points1, options, scores, (intrinsics0, intrinsics1))
    matrix = ransac.essential(data, options) if data.distinct >= 5 else None
    if matrix is None:
        return None
    camera0, camera1 = data.known_cameras
    found = EssentialMatrix(
        matrix=matrix, intrinsics0=camera0, intrinsics1=camera1, threshold=options.threshold, estimator=name
    ).judged(points0, points1)
    return found if found.inliers.sum() >= 5 else None


def relative_pose(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    options: RansacOptions = MINDING_PLANES,
    scores: npt.ArrayLike | None = None,
) -> RelativePose | None:
    """Pose camera 0 -> camera 1 from matches and camera matrices (3, 3); the threshold is in pixels.

    Where the matches show one plane only, the other pose that explains them is the answer's `alternative`.
    """
    name, ransac, data = _prepare(points0, points1, options, scores, (intrinsics0, intrinsics1))
    if data.distinct < 5:
        return None
    own = ransac.pose(data, options)
    candidates, planar = [] if own is None else [own], []
    if options.planes or options.estimator == "plane":
        planar = _planar_poses(data, ransac, options)
        candidates += planar
    if not candidates:
        return None
    best = max(candidates, key=lambda pose: support(pose, data, options.threshold).sum())
    if planar:
        best = refine_pose(best, data, options.threshold)
    camera0, camera1 = data.known_cameras
    found = RelativePose(
        rotation=best[0],
        translation=best[1],
        intrinsics0=camera0,
        intrinsics1=camera1,
        threshold=options.threshold,
        estimator=name,
    ).judged(points0, points1)
    if found.inliers.sum() < 5:
        return None
    if not planar:
        return found
    degeneracy, other = _what_else(found, planar, data)
    found = replace(found, degeneracy=degeneracy)
    if other is None:
        return found
    second = replace(found, rotation=other[0], translation=other[1]).judged(points0, points1)
    return replace(found, alternative=second)


def _planar_poses(data: Correspondences, ransac: Ransac, options: RansacOptions) -> list[Pose]:
    """The poses that the dominant plane allows; a mere turn where the camera did nothing else."""
    plane = ransac.homography(data, replace(options, threshold=PLANE_THRESHOLDS * options.threshold))
    if plane is None:
        return []
    poses = list(poses_of_plane(plane, *data.known_cameras))
    if poses:
        return poses
    on_plane = Homography(matrix=plane, threshold=options.threshold, estimator=options.estimator)
    turned = data.select(on_plane.explains(data.points0, data.points1))
    return [(turn_between(turned), np.array([0.0, 0.0, 1.0]))]  # any direction of motion is as good


def _what_else(
    found: RelativePose, planar: list[Pose], data: Correspondences
) -> tuple[Degeneracy, Pose | None]:
    """What explains the inliers of a pose as well: a mere turn of the camera, or the plane's other pose."""
    inner = data.select(found.explains(data.points0, data.points1))
    camera0, camera1 = data.known_cameras
    turned = apply_homography(camera1 @ turn_between(inner) @ np.linalg.inv(camera0), inner.points0)
    missed = np.linalg.norm(turned - inner.points1, axis=1) > PLANE_THRESHOLDS * found.threshold
    if not _decide(missed):
        return "rotation", None
    for pose in planar:
        rotation, translation = other = refine_pose(pose, inner, 2 * found.threshold)
        turn = rotation_error(rotation, found.rotation)
        shift = translation_error(translation, found.translation, signed=True)
        missed = support(other, inner, found.threshold) == 0
        if max(turn, shift) > SAME_POSE and not _decide(missed):
            return "plane", other
    return "", None


def _on_one_plane(inner: Correspondences, ransac: Ransac, options: RansacOptions) -> bool:
    """Whether one homography explains the inliers of another model too."""
    threshold = PLANE_THRESHOLDS * options.threshold
    matrix = ransac.homography(inner, replace(options, threshold=threshold))
    if matrix is None:
        return False
    plane = Homography(matrix=matrix, threshold=threshold, estimator=options.estimator)
    return not _decide(~plane.explains(inner.points0, inner.points1))


def _decide(missed: npt.NDArray[np.bool_]) -> bool:
    """Whether so many of a model's inliers (N,) are missed by another that the other is wrong."""
    count = len(missed)
    return bool(missed.sum() >= max(min(FEWEST_DECIDING, MOST_NEEDED * count), DECIDING_SHARE * count))


def _prepare(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    options: RansacOptions,
    scores: npt.ArrayLike | None,
    cameras: tuple[npt.ArrayLike, npt.ArrayLike] | None = None,
) -> tuple[str, Ransac, Correspondences]:
    """The estimator's name, the estimator, and the matches in the order in which it shall draw them."""
    name = options.estimator
    if name == "auto":
        name = "poselib" if find_spec("poselib") else "opencv"
    elif name == "plane":
        name = "opencv"
    ransac = _RANSACS[name]
    ordered = ransac.prosac if options.prosac is None else options.prosac
    return name, ransac, correspondences(points0, points1, scores if ordered else None, cameras)

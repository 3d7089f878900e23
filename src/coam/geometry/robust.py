"""One face over the robust estimators: OpenCV's USAC (MAGSAC scoring) and PoseLib's LO-RANSAC.

Every function is deterministic for a given seed, takes points (N, 2) in pixels, gives the model and the
inlier mask (N,), and returns None instead of raising where the points do not determine a model.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, MissingExtraError
from coam.geometry.epipolar import cross_matrix
from coam.geometry.planar_pose import poses_of_plane, support

Array = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
# "plane": OpenCV, and for a pose also what a dominant plane allows
Estimator = Literal["opencv", "poselib", "plane"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)


@dataclass(frozen=True)
class RobustModel:
    """A 3x3 homography, fundamental or essential matrix and the matches (N,) that agree with it."""

    matrix: Array
    inliers: Mask


@dataclass(frozen=True)
class RelativePose:
    """Pose camera 0 -> camera 1 (X1 = R X0 + t, t of unit length) and the matches (N,) that agree with it."""

    rotation: Array
    translation: Array
    inliers: Mask


@dataclass(frozen=True)
class RansacOptions:
    """How hard the estimators try; the same meaning for both."""

    threshold: float = 1.0  # largest residual of an inlier, in pixels
    confidence: float = 0.99999  # stop when a better model is this unlikely
    max_iterations: int = 10_000
    seed: int = 0


DEFAULT_OPTIONS = RansacOptions()
HOMOGRAPHY_OPTIONS = RansacOptions(threshold=3.0)
PLANE_THRESHOLDS = 3.0  # a plane in the world is not as flat as a pose is exact


class _Kind(NamedTuple):
    """A model that is estimated from pixels alone."""

    minimum: int  # matches that determine it
    opencv: str  # names of the functions, and of PoseLib's threshold
    poselib: str
    poselib_threshold: str


_HOMOGRAPHY = _Kind(4, "findHomography", "estimate_homography", "max_reproj_error")
_FUNDAMENTAL = _Kind(8, "findFundamentalMat", "estimate_fundamental", "max_epipolar_error")


def estimate_homography(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    options: RansacOptions = HOMOGRAPHY_OPTIONS,
    estimator: Estimator = "opencv",
) -> RobustModel | None:
    """Homography 0 -> 1 from matches with outliers; the threshold is on the transfer error in pixels."""
    return _estimate(points0, points1, options, estimator, _HOMOGRAPHY)


def estimate_fundamental(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    options: RansacOptions = DEFAULT_OPTIONS,
    estimator: Estimator = "opencv",
) -> RobustModel | None:
    """Fundamental matrix (x1^T F x0 = 0) from matches with outliers; the threshold is in pixels."""
    return _estimate(points0, points1, options, estimator, _FUNDAMENTAL)


def _estimate(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    options: RansacOptions,
    estimator: Estimator,
    kind: _Kind,
) -> RobustModel | None:
    chosen = _choose(estimator)
    xy0, xy1, usable = _clean(points0, points1)
    if _distinct(xy0, xy1) < kind.minimum:
        return None
    if chosen == "poselib":
        settings = _poselib_options(options, kind.poselib_threshold)
        matrix, mask = _poselib_call(kind.poselib, xy0, xy1, settings)
    else:
        matrix, mask = _opencv_call(kind.opencv, xy0, xy1, _usac(options, options.threshold))
    return _model(matrix, mask, usable)


def estimate_essential(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    options: RansacOptions = DEFAULT_OPTIONS,
    estimator: Estimator = "opencv",
) -> RobustModel | None:
    """Essential matrix from matches and camera matrices (3, 3); the threshold is in pixels."""
    if _choose(estimator) == "poselib":
        pose = relative_pose(points0, points1, intrinsics0, intrinsics1, options, estimator)
        if pose is None:
            return None
        return RobustModel(cross_matrix(pose.translation) @ pose.rotation, pose.inliers)
    xy0, xy1, usable = _clean(points0, points1)
    if _distinct(xy0, xy1) < 5:
        return None
    k0, k1 = np.asarray(intrinsics0, dtype=np.float64), np.asarray(intrinsics1, dtype=np.float64)
    # Pixels and camera matrices, not rays: OpenCV's MAGSAC loses accuracy when the threshold is tiny.
    none = np.zeros(0)
    params = _usac(options, options.threshold)
    matrix, mask = _opencv_call("findEssentialMat", xy0, xy1, k0, k1, none, none, params)
    return _model(matrix, mask, usable)


def relative_pose(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    options: RansacOptions = DEFAULT_OPTIONS,
    estimator: Estimator = "plane",
) -> RelativePose | None:
    """Pose camera 0 -> camera 1 from matches and camera matrices (3, 3); the threshold is in pixels."""
    if _choose(estimator) == "poselib":
        return _poselib_pose(points0, points1, intrinsics0, intrinsics1, options)
    if estimator == "plane":
        return _pose_minding_planes(points0, points1, intrinsics0, intrinsics1, options)
    essential = estimate_essential(points0, points1, intrinsics0, intrinsics1, options, estimator)
    if essential is None or essential.inliers.sum() < 5:
        return None
    import cv2

    rays0 = _normalised(np.asarray(points0, dtype=np.float64)[essential.inliers], intrinsics0)
    rays1 = _normalised(np.asarray(points1, dtype=np.float64)[essential.inliers], intrinsics1)
    # Which of the four decompositions: the one that puts the inliers in front of both cameras. The distance
    # limit is OpenCV's cut on far points (in baselines); generous, so that scenes far away still vote.
    count, rotation, translation, *_ = cv2.recoverPose(essential.matrix, rays0, rays1, np.eye(3), 1e9)
    if count == 0:
        return None
    return RelativePose(
        np.asarray(rotation, np.float64), np.asarray(translation, np.float64).reshape(3), essential.inliers
    )


def _pose_minding_planes(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    options: RansacOptions,
) -> RelativePose | None:
    """OpenCV's pose, or one that the dominant plane allows, whichever has more support."""
    found = relative_pose(points0, points1, intrinsics0, intrinsics1, options, "opencv")
    xy0, xy1, usable = _clean(points0, points1)
    k0, k1 = np.asarray(intrinsics0, dtype=np.float64), np.asarray(intrinsics1, dtype=np.float64)
    wide = replace(options, threshold=PLANE_THRESHOLDS * options.threshold)
    plane = estimate_homography(xy0, xy1, wide)
    candidates = [] if found is None else [(found.rotation, found.translation)]
    candidates += [] if plane is None else poses_of_plane(plane.matrix, k0, k1)
    if not candidates:
        return None
    fits = [support(pose, xy0, xy1, k0, k1, options.threshold) for pose in candidates]
    best = int(np.argmax([fit.sum() for fit in fits]))
    if found is not None and best == 0:
        return found
    return RelativePose(*candidates[best], _spread(fits[best] > 0, usable))


def _poselib_pose(
    points0: npt.ArrayLike,
    points1: npt.ArrayLike,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    options: RansacOptions,
) -> RelativePose | None:
    xy0, xy1, usable = _clean(points0, points1)
    if _distinct(xy0, xy1) < 5:
        return None
    cameras = [_poselib_camera(np.asarray(k, dtype=np.float64)) for k in (intrinsics0, intrinsics1)]
    settings = _poselib_options(options, "max_epipolar_error")
    pose, mask = _poselib_call("estimate_relative_pose", xy0, xy1, *cameras, settings)
    if pose is None or mask is None or mask.sum() < 5:
        return None
    translation = np.asarray(pose.t, dtype=np.float64)
    length = np.linalg.norm(translation)
    if not np.isfinite(length) or length == 0:
        return None
    return RelativePose(np.asarray(pose.R, dtype=np.float64), translation / length, _spread(mask, usable))


def _choose(estimator: str) -> str:
    if estimator not in ESTIMATORS:
        raise ConfigError(f"unknown robust estimator {estimator!r}; choose one of {', '.join(ESTIMATORS)}")
    return estimator


def _clean(points0: npt.ArrayLike, points1: npt.ArrayLike) -> tuple[Array, Array, Mask]:
    """The finite matches and where they were: a single nan makes every estimator return nonsense."""
    xy0, xy1 = (np.asarray(p, dtype=np.float64).reshape(-1, 2) for p in (points0, points1))
    if len(xy0) != len(xy1):
        raise ConfigError(f"matches need as many points in both images, got {len(xy0)} and {len(xy1)}")
    usable = np.isfinite(np.concatenate([xy0, xy1], axis=1)).all(axis=1)
    return np.ascontiguousarray(xy0[usable]), np.ascontiguousarray(xy1[usable]), usable


def _distinct(points0: Array, points1: Array) -> int:
    """How many different matches there are: a repeated one fixes no more than a single one."""
    return len(np.unique(np.concatenate([points0, points1], axis=1), axis=0))


def _spread(mask: npt.NDArray[Any], usable: Mask) -> Mask:
    full = np.zeros(len(usable), dtype=bool)
    full[usable] = np.asarray(mask, dtype=bool).reshape(-1)
    return full


def _model(matrix: Array | None, mask: npt.NDArray[Any] | None, usable: Mask) -> RobustModel | None:
    if matrix is None or mask is None or not np.isfinite(matrix).all() or not np.any(matrix):
        return None
    return RobustModel(matrix, _spread(mask, usable))


def _normalised(points: Array, intrinsics: npt.ArrayLike) -> Array:
    """Pixels (N, 2) to coordinates on the plane at depth 1; skew is honoured."""
    homogeneous = np.concatenate([points, np.ones((len(points), 1))], axis=1)
    rays = homogeneous @ np.linalg.inv(np.asarray(intrinsics, dtype=np.float64)).T
    return np.ascontiguousarray(rays[:, :2] / rays[:, 2:])


def _usac(options: RansacOptions, threshold: float) -> Any:
    """OpenCV's parameters behind the flag USAC_MAGSAC, with a seed, which the flag does not let one set."""
    import cv2

    params = cv2.UsacParams()
    params.threshold = threshold
    params.confidence = options.confidence
    params.maxIterations = options.max_iterations
    params.randomGeneratorState = options.seed
    params.isParallel = False  # parallel USAC is not reproducible
    params.sampler = cv2.SAMPLING_UNIFORM
    params.score = cv2.SCORE_METHOD_MAGSAC
    params.loMethod = cv2.LOCAL_OPTIM_SIGMA
    params.loIterations = 10
    params.loSampleSize = 50
    params.final_polisher = cv2.MAGSAC
    params.final_polisher_iterations = 10
    return params


def _opencv_call(name: str, *arguments: Any) -> tuple[Array | None, npt.NDArray[Any] | None]:
    """One cv2 estimator; a degenerate set of points (cv2.error, or an empty answer) is (None, None)."""
    import cv2

    try:
        matrix, mask = getattr(cv2, name)(*arguments)
    except cv2.error:
        return None, None
    if matrix is None or mask is None or np.shape(matrix) != (3, 3):
        return None, None
    return np.asarray(matrix, dtype=np.float64), np.asarray(mask).reshape(-1)


def _poselib_options(options: RansacOptions, threshold_name: str) -> dict[str, Any]:
    return {
        threshold_name: options.threshold,
        "success_prob": options.confidence,
        "max_iterations": options.max_iterations,
        "seed": options.seed,
    }


def _poselib_camera(intrinsics: Array) -> dict[str, Any]:
    return {
        "model": "PINHOLE",
        "width": 0,
        "height": 0,
        "params": [intrinsics[0, 0], intrinsics[1, 1], intrinsics[0, 2], intrinsics[1, 2]],
    }


def _poselib_call(name: str, *arguments: Any) -> tuple[Any, npt.NDArray[Any] | None]:
    try:
        import poselib
    except ImportError as error:
        raise MissingExtraError("poselib", "eval") from error
    model, info = getattr(poselib, name)(*arguments, {})
    inliers = np.asarray(info.get("inliers", []), dtype=bool)
    if len(inliers) != len(arguments[0]) or not inliers.any():
        return None, None
    return model, inliers

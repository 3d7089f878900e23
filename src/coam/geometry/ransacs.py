"""The robust estimators behind `coam.geometry.robust`: OpenCV's USAC, PoseLib's LO-RANSAC, SupeRANSAC.

Each takes cleaned correspondences and gives the bare model, or None where it finds none. Where these carry
scores, samples are drawn best first (PROSAC).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypedDict, get_args

import numpy as np

from coam.errors import ConfigError, import_extra
from coam.geometry.correspondences import Array, Correspondences
from coam.geometry.epipolar import essential_from_pose
from coam.geometry.planar_pose import Pose

# "plane": OpenCV, and for a pose also what a dominant plane allows; "auto": PoseLib, OpenCV without it
Estimator = Literal["opencv", "poselib", "superansac", "plane", "auto"]
ESTIMATORS: tuple[str, ...] = get_args(Estimator)
POLISHING, POLISHING_SAMPLE = 10, 50  # rounds of USAC's local optimisation, and matches of each


@dataclass(frozen=True)
class RansacOptions:
    """Which estimator, and how hard it tries; the same meaning for all.

    The default is what every installation has: what coam decides for itself must not depend on extras.
    """

    threshold: float = 1.0  # largest residual of an inlier, in pixels
    confidence: float = 0.99999  # stop when a better model is this unlikely
    max_iterations: int = 10_000
    seed: int = 0  # of the draws; SupeRANSAC takes none and differs a little from run to run
    estimator: Estimator = "opencv"
    # Also try the poses that a dominant plane allows, and refine the best on all matches (which no estimator
    # but PoseLib does); say where a fundamental matrix rests on one plane
    planes: bool = False
    # Draw samples best first (PROSAC) where scores are given; None: where that was measured to do no harm
    prosac: bool | None = None

    def __post_init__(self) -> None:
        if not self.threshold > 0:
            raise ConfigError(f"threshold {self.threshold}: give pixels above 0")
        if not 0 < self.confidence < 1:
            raise ConfigError(f"confidence {self.confidence}: give a probability between 0 and 1")
        if self.max_iterations < 1:
            raise ConfigError(f"max_iterations {self.max_iterations}: give at least 1")
        if self.estimator not in ESTIMATORS:
            known = ", ".join(ESTIMATORS)
            raise ConfigError(f"unknown robust estimator {self.estimator!r}; choose one of {known}")


class RansacKeywords(TypedDict, total=False):
    """The fields of `RansacOptions` as keywords of the methods of `Matches`."""

    threshold: float
    confidence: float
    max_iterations: int
    seed: int
    estimator: Estimator
    prosac: bool | None


class Ransac(Protocol):
    """A robust estimator. Matrices are (3, 3); a pose is (R, t) with t of length 1."""

    prosac: bool  # whether it gains by scores

    def homography(self, data: Correspondences, options: RansacOptions) -> Array | None:
        """Homography photo 0 -> photo 1."""
        ...

    def fundamental(self, data: Correspondences, options: RansacOptions) -> Array | None:
        """Fundamental matrix."""
        ...

    def essential(self, data: Correspondences, options: RansacOptions) -> Array | None:
        """Essential matrix of the cameras of `data`."""
        ...

    def pose(self, data: Correspondences, options: RansacOptions) -> Pose | None:
        """Pose camera 0 -> camera 1."""
        ...


class OpenCV:
    """OpenCV's USAC with MAGSAC scoring: always installed.

    Its PROSAC stops at the first model that many of the best matches share, and these may all lie on one
    plane: pose AUC at 5 degrees on the pairs of docs/geometry.md falls from 98 to 79 %.
    """

    prosac = False

    def homography(self, data: Correspondences, options: RansacOptions) -> Array | None:
        return self._call("findHomography", data, options)

    def fundamental(self, data: Correspondences, options: RansacOptions) -> Array | None:
        return self._call("findFundamentalMat", data, options)

    def essential(self, data: Correspondences, options: RansacOptions) -> Array | None:
        # Pixels and camera matrices, not rays: OpenCV's MAGSAC loses accuracy when the threshold is tiny.
        undistorted = np.zeros(0)
        return self._call("findEssentialMat", data, options, *data.known_cameras, undistorted, undistorted)

    def pose(self, data: Correspondences, options: RansacOptions) -> Pose | None:
        return pose_of_essential(self.essential(data, options), data, options.threshold)

    @staticmethod
    def _call(name: str, data: Correspondences, options: RansacOptions, *more: Any) -> Array | None:
        import cv2

        try:
            matrix, _ = getattr(cv2, name)(data.points0, data.points1, *more, _usac(data, options))
        except cv2.error:  # a degenerate set of points
            return None
        return _matrix(matrix)


class PoseLib:
    """PoseLib's LO-RANSAC, each model refined on all its inliers."""

    prosac = True

    def homography(self, data: Correspondences, options: RansacOptions) -> Array | None:
        return _matrix(self._call("estimate_homography", "max_reproj_error", data, options))

    def fundamental(self, data: Correspondences, options: RansacOptions) -> Array | None:
        return _matrix(self._call("estimate_fundamental", "max_epipolar_error", data, options))

    def essential(self, data: Correspondences, options: RansacOptions) -> Array | None:
        pose = self.pose(data, options)
        return None if pose is None else essential_from_pose(*pose)

    def pose(self, data: Correspondences, options: RansacOptions) -> Pose | None:
        cameras = (
            {"model": "PINHOLE", "width": 0, "height": 0, "params": [k[0, 0], k[1, 1], k[0, 2], k[1, 2]]}
            for k in data.known_cameras
        )
        pose = self._call("estimate_relative_pose", "max_epipolar_error", data, options, *cameras)
        return None if pose is None else unit_pose(pose.R, pose.t)

    @staticmethod
    def _call(name: str, limit: str, data: Correspondences, options: RansacOptions, *more: Any) -> Any:
        poselib = import_extra("poselib", "eval")
        settings = {
            limit: options.threshold,
            "success_prob": options.confidence,
            "max_iterations": options.max_iterations,
            "min_iterations": min(1000, options.max_iterations),
            "seed": options.seed,
            "progressive_sampling": data.scores is not None,
        }
        model, info = getattr(poselib, name)(data.points0, data.points1, *more, settings, {})
        return model if any(info.get("inliers", [])) else None


class SupeRansac:
    """SupeRANSAC (pysuperansac). It draws by the clock: no seed makes it repeat."""

    prosac = False  # as with OpenCV, if less so

    def homography(self, data: Correspondences, options: RansacOptions) -> Array | None:
        return self._call("estimateHomography", data, options)

    def fundamental(self, data: Correspondences, options: RansacOptions) -> Array | None:
        return self._call("estimateFundamentalMatrix", data, options)

    def essential(self, data: Correspondences, options: RansacOptions) -> Array | None:
        if data.distinct < 6:  # what the package asks for
            return None
        return self._call("estimateEssentialMatrix", data, options, *data.known_cameras)

    def pose(self, data: Correspondences, options: RansacOptions) -> Pose | None:
        return pose_of_essential(self.essential(data, options), data, options.threshold)

    @staticmethod
    def _call(name: str, data: Correspondences, options: RansacOptions, *more: Any) -> Array | None:
        package = import_extra("pysuperansac", "superansac")
        settings = package.RANSACSettings()  # anew for every call: the package changes them
        settings.inlier_threshold = options.threshold
        settings.confidence = options.confidence
        settings.max_iterations = options.max_iterations
        settings.min_iterations = min(1000, options.max_iterations)
        known = data.scores is not None
        settings.sampler = package.SamplerType.PROSAC if known else package.SamplerType.Uniform
        scores = [] if data.scores is None else data.scores.tolist()
        # Its grids want points that are not negative, and sizes that hold them all.
        both = np.concatenate([data.points0, data.points1], axis=1)
        sizes = (both.max(axis=0) + 1.0).clip(min=1.0).tolist()
        matrix, inliers, *_ = getattr(package, name)(both, *more, sizes, scores, settings)
        return _matrix(matrix) if inliers else None


def unit_pose(rotation: Any, translation: Any) -> Pose | None:
    """A pose with a translation of length 1; None where it has no direction."""
    turn, shift = np.asarray(rotation, np.float64), np.asarray(translation, np.float64).reshape(3)
    length = float(np.linalg.norm(shift))
    if not (np.isfinite(turn).all() and np.isfinite(length)) or length == 0:
        return None
    return turn, shift / length


def pose_of_essential(essential: Array | None, data: Correspondences, threshold: float) -> Pose | None:
    """Of the four poses of an essential matrix the one with most inliers (pixels) before both cameras."""
    import cv2

    from coam.geometry.epipolar import fundamental_from_essential, sampson_distance

    if essential is None:
        return None
    fundamental = fundamental_from_essential(essential, *data.known_cameras)
    inner = data.select(sampson_distance(data.points0, data.points1, fundamental) <= threshold)
    if len(inner) < 5:
        return None
    rays0, rays1 = (np.ascontiguousarray(side[:, :2]) for side in inner.rays())
    # 1e9: OpenCV's cut on far points, in baselines; generous, so that scenes far away still vote.
    count, rotation, translation, *_ = cv2.recoverPose(essential, rays0, rays1, np.eye(3), 1e9)
    return unit_pose(rotation, translation) if count else None


def _matrix(matrix: Any) -> Array | None:
    """A (3, 3) matrix of numbers that are not all zero, or None."""
    if matrix is None or np.shape(matrix) != (3, 3):
        return None
    checked = np.asarray(matrix, dtype=np.float64)
    return checked if np.isfinite(checked).all() and np.any(checked) else None


def _usac(data: Correspondences, options: RansacOptions) -> Any:
    """OpenCV's parameters behind the flag USAC_MAGSAC, with a seed, which the flag does not let one set."""
    import cv2

    params = cv2.UsacParams()
    params.threshold = options.threshold
    params.confidence = options.confidence
    params.maxIterations = options.max_iterations
    params.randomGeneratorState = options.seed
    params.isParallel = False  # parallel USAC is not reproducible
    params.sampler = cv2.SAMPLING_UNIFORM if data.scores is None else cv2.SAMPLING_PROSAC
    params.score = cv2.SCORE_METHOD_MAGSAC
    params.loMethod = cv2.LOCAL_OPTIM_SIGMA
    params.loIterations = POLISHING
    params.loSampleSize = POLISHING_SAMPLE
    params.final_polisher = cv2.MAGSAC
    params.final_polisher_iterations = POLISHING
    return params

"""Focal length estimation from the matches of photos that share a camera.

A wrong focal length bends every relative rotation, so that right pairs seem to contradict each other. One
pair says little about the focal length, the strongest pairs of one camera together say enough, or disagree
and say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.geometry.coordinates import to_colmap
from coam.sfm.matching.pair_matches import PairMatches
from coam.sfm.verification.two_view import VerifiedMatches, VerifiedPair
from coam.store.journal import Pair

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class FocalOptions:
    """How focal lengths are estimated, and when they are believed."""

    strongest_pairs: int = 40  # pairs of each camera that are asked
    min_pairs: int = 5  # that suggest a sensible focal length
    min_share: float = 0.6  # of the pairs that are asked
    max_spread: float = 0.6  # of the median: half of the pairs must lie within such a range
    sensible: tuple[float, float] = (0.3, 4.0)  # focal lengths in long sides of the photo
    max_error: float = 0.0025  # epipolar error of an inlier, in long sides of the photo
    iterations: int = 500  # of RANSAC for a focal length, at most
    pose_iterations: tuple[int, int] = (100, 1000)  # of RANSAC for a pose: inliers go in, so few are enough
    min_pose_inliers: float = 0.5  # share of the inliers that a new pose must keep


def calibrate(
    verified: VerifiedMatches, cameras: Mapping[str, Any], options: FocalOptions
) -> tuple[VerifiedMatches, bool]:
    """Estimate focal lengths that are guesses (in `cameras`) and the relative poses with them.

    cameras: photo name -> pycolmap camera; photos share a camera where it is the same object. Also gives
    whether every focal length is known well now.
    """
    guessed = {id(camera): camera for camera in cameras.values() if not camera.has_prior_focal_length}
    if not guessed:
        return verified, True
    geometries, good = dict(verified.geometries), True
    of_camera: dict[int, list[Pair]] = {camera: [] for camera in guessed}
    for pair in verified.accepted:
        first, second = (id(cameras[name]) for name in pair)
        if first == second and first in of_camera:
            of_camera[first].append(pair)
    for camera, own in zip(guessed.values(), of_camera.values(), strict=True):
        own.sort(key=lambda pair: (len(geometries[pair].inliers), pair), reverse=True)
        strongest = own[: options.strongest_pairs]
        found = [focal_of_pair(verified.inliers(pair), camera, options) for pair in strongest]
        focal = agreed_focal(np.array(found).reshape(-1, 2), camera, options)
        if focal is None:
            good = False
            continue
        params = np.array(camera.params)
        params[camera.focal_length_idxs()] = focal
        camera.params = params
    for pair in verified.accepted:
        both = [cameras[name] for name in pair]
        geometries[pair] = _with_calibrated_pose(geometries[pair], verified.inliers(pair), both, options)
    return replace(verified, geometries=geometries), good


def focal_of_pair(matches: PairMatches, camera: Any, options: FocalOptions) -> tuple[float, float]:
    """Focal length in pixels that one pair of the same camera suggests, and its weight (its inliers)."""
    import poselib

    centre = np.array([camera.principal_point_x, camera.principal_point_y])
    pair, report = poselib.estimate_shared_focal_relative_pose(
        to_colmap(matches.points0),
        to_colmap(matches.points1),
        centre,
        {
            "max_epipolar_error": options.max_error * max(matches.size0),
            "max_iterations": options.iterations,
            "seed": 0,
        },
        {},
    )
    return float(pair.camera1.focal()), float(report["num_inliers"])


def agreed_focal(found: Floats, camera: Any, options: FocalOptions) -> float | None:
    """Weighted median of the sensible focal lengths of found (N, 2: length, weight); None where scattered."""
    long_side = max(camera.width, camera.height)
    low, high = options.sensible
    sensible = (found[:, 0] > low * long_side) & (found[:, 0] < high * long_side)
    if sensible.sum() < options.min_pairs or sensible.mean() < options.min_share:
        return None
    low, middle, high = _weighted_quantiles(found[sensible, 0], found[sensible, 1], (0.25, 0.5, 0.75))
    return float(middle) if high - low <= options.max_spread * middle else None


def _weighted_quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> Floats:
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order]) / weights.sum()
    return values[order][np.minimum(np.searchsorted(passed, shares), len(values) - 1)]


def _with_calibrated_pose(
    geometry: VerifiedPair, inliers: PairMatches, cameras: Sequence[Any], options: FocalOptions
) -> VerifiedPair:
    """The pair with the relative pose that these (now better known) cameras give, where they give one."""
    import poselib

    pose, report = poselib.estimate_relative_pose(
        to_colmap(inliers.points0),
        to_colmap(inliers.points1),
        *(_as_poselib(camera) for camera in cameras),
        {
            "max_epipolar_error": options.max_error * max(inliers.size0),
            "min_iterations": options.pose_iterations[0],
            "max_iterations": options.pose_iterations[1],
            "seed": 0,
        },
        {},
    )
    if report["num_inliers"] < options.min_pose_inliers * len(inliers):
        return geometry
    return replace(
        geometry, rotation=np.asarray(pose.R, np.float64), translation=np.asarray(pose.t, np.float64)
    )


def _as_poselib(camera: Any) -> dict[str, Any]:
    return {
        "model": camera.model_name,
        "width": camera.width,
        "height": camera.height,
        "params": list(camera.params),
    }

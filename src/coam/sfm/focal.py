"""Focal lengths nobody told us, from the matches of photos that share a camera.

A wrong focal length bends every relative rotation, so that right pairs seem to contradict each other. One
pair says little about the focal length, the strongest pairs of one camera together say enough, or disagree
and say nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.geometry.coordinates import to_colmap
from coam.sfm.journal import Pair, PairJournal
from coam.sfm.match_pairs import PairMatches, record_to_matches
from coam.sfm.verify import VerifiedPair

Floats = npt.NDArray[np.float64]
STRONGEST_PAIRS = 40
MIN_PAIRS = 5
MAX_SPREAD = 0.6  # of the median: half of the pairs must lie within such a range


def estimate_focals(
    names: Sequence[str],
    matched: PairJournal,
    verified: Mapping[Pair, VerifiedPair],
    cameras: Sequence[Any],
    camera_of: Sequence[int],
) -> list[bool]:
    """Write focal lengths into the cameras that had only a guess; for each camera whether its focal length is
    good now.

    names: photos, camera_of: their cameras (indices into `cameras`, pycolmap cameras).
    """
    camera_by_name = {name: camera_of[index] for index, name in enumerate(names)}
    good = []
    for number, camera in enumerate(cameras):
        if camera.has_prior_focal_length:
            good.append(True)
            continue
        own = [
            (len(geometry.inliers), pair)
            for pair, geometry in verified.items()
            if geometry.accepted and camera_by_name[pair[0]] == number == camera_by_name[pair[1]]
        ]
        strongest = [pair for _, pair in sorted(own, reverse=True)[:STRONGEST_PAIRS]]
        found = [
            focal_of_pair(record_to_matches(matched.read(pair)).select(verified[pair].inliers), camera)
            for pair in strongest
        ]
        focal = agreed_focal(
            np.array([f for f, _ in found]), np.array([weight for _, weight in found]), camera
        )
        if focal is not None:
            params = np.array(camera.params)
            params[camera.focal_length_idxs()] = focal
            camera.params = params
        good.append(focal is not None)
    return good


def focal_of_pair(matches: PairMatches, camera: Any) -> tuple[float, float]:
    """Focal length in pixels that one pair of the same camera suggests, and its weight (its inliers)."""
    import poselib

    centre = np.array([camera.principal_point_x, camera.principal_point_y])
    settings = {"max_epipolar_error": 0.0025 * max(matches.size0), "max_iterations": 500, "seed": 0}
    pair, report = poselib.estimate_shared_focal_relative_pose(
        to_colmap(matches.points0.astype(np.float64)),
        to_colmap(matches.points1.astype(np.float64)),
        centre,
        settings,
        {},
    )
    return float(pair.camera1.focal()), float(report["num_inliers"])


def agreed_focal(focals: Floats, weights: Floats, camera: Any) -> float | None:
    """Weighted median of the sensible focal lengths; None when they are few or scattered."""
    long_side = max(camera.width, camera.height)
    sensible = (focals > 0.3 * long_side) & (focals < 4 * long_side)
    if sensible.sum() < MIN_PAIRS or sensible.mean() < 0.6:
        return None
    low, middle, high = _weighted_quantiles(focals[sensible], weights[sensible], (0.25, 0.5, 0.75))
    return middle if high - low <= MAX_SPREAD * middle else None


def _weighted_quantiles(values: Floats, weights: Floats, shares: Sequence[float]) -> list[float]:
    order = np.argsort(values, kind="stable")
    passed = np.cumsum(weights[order]) / weights.sum()
    return [
        float(values[order][min(int(np.searchsorted(passed, share)), len(values) - 1)]) for share in shares
    ]


def with_calibrated_rotation(
    geometry: VerifiedPair, matches: PairMatches, camera0: Any, camera1: Any
) -> VerifiedPair:
    """The pair with the relative pose that these (now better known) cameras give; unchanged where none is
    found.
    """
    import poselib

    own = matches.select(geometry.inliers)
    settings = {
        "max_epipolar_error": 0.0025 * max(own.size0),
        "min_iterations": 100,  # these matches agree already; PoseLib's 1,000 take five times as long
        "max_iterations": 1000,
        "seed": 0,
    }
    pose, report = poselib.estimate_relative_pose(
        to_colmap(own.points0.astype(np.float64)),
        to_colmap(own.points1.astype(np.float64)),
        _as_poselib(camera0),
        _as_poselib(camera1),
        settings,
        {},
    )
    if report["num_inliers"] < 0.5 * len(own):
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

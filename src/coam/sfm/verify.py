"""Two-view verification, strict: what passes here may carry a model.

Registered is not correct: look-alike facades pass a loose check and bend the whole model. So inliers must
exceed what chance gives, the matcher's own pair score must not speak against the pair, and (see `cycles`)
relative rotations must agree around triangles of photos.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.geometry.coordinates import to_colmap
from coam.sfm.journal import Pair, PairJournal, Record
from coam.sfm.match_pairs import SAVE_EVERY_PAIRS, PairMatches, PairProgress, record_to_matches

Floats = npt.NDArray[np.float64]
Pose = tuple[Floats, Floats]  # rotation (3, 3) and translation (3,), camera-from-world


@dataclass(frozen=True)
class VerifyOptions:
    """How strict verification is."""

    max_error: float = 0.0025  # epipolar error in long sides of the photo: 2.5 px at 1000 px
    min_inliers: int = 20  # on top of what chance gives
    chance: float = 3.0  # inliers must exceed this many times the number that random matches would give
    min_overlap: float = (
        0.1  # pairs the matcher scores below this are refused (uncalibrated scores are ignored)
    )
    border: float = 1.0  # grid steps at the edge of a photo that are not used: networks see padding there
    min_spread: float = 0.015  # of the diagonal, across the line that inliers lie on at worst
    seed: int = 0


@dataclass(frozen=True)
class VerifiedPair:
    """The geometry of one pair; `inliers` is empty and `reason` says why when it was refused."""

    inliers: npt.NDArray[np.int64]  # (K,) indices into the pair's matches
    config: int  # COLMAP's kind of two-view geometry
    essential: Floats  # (3, 3)
    fundamental: Floats  # (3, 3)
    homography: Floats  # (3, 3)
    rotation: Floats  # (3, 3) camera 1 from camera 0
    translation: Floats  # (3,) unit length
    reason: str = ""

    @property
    def accepted(self) -> bool:
        """Whether the pair may be used."""
        return len(self.inliers) > 0


def chance_inliers(matches: int, max_error: float, width: int, height: int) -> float:
    """How many of so many random matches lie within `max_error` pixels of a random epipolar line."""
    band = 2 * max_error * float(np.hypot(width, height)) / (width * height)
    return matches * min(1.0, band)


def narrowness(points: npt.NDArray[Any]) -> float:
    """Standard deviation of points (N, 2) in their narrowest direction, in pixels."""
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(np.cov(points.astype(np.float64).T))[0])))


def inside_border(matches: PairMatches, steps: float) -> npt.NDArray[np.bool_]:
    """Which matches (N,) are more than `steps` grid steps from the edges of both photos."""
    inside = np.ones(len(matches), np.bool_)
    for ids, grid in ((matches.ids0, matches.grid0), (matches.ids1, matches.grid1)):
        column, row = ids % grid.columns, ids // grid.columns
        inside &= (column >= steps) & (column <= grid.columns - 1 - steps)
        inside &= (row >= steps) & (row <= grid.rows - 1 - steps)
    return inside


def verify_pair(matches: PairMatches, camera0: Any, camera1: Any, options: VerifyOptions) -> VerifiedPair:
    """Verify one pair from its sub-pixel points (not from the quantised keypoints: those are half a cell
    off).
    """
    import pycolmap

    if matches.overlap < options.min_overlap:  # false for nan
        return _refused(f"the pair score is {matches.overlap:.2f}")
    pixels = options.max_error * max(*matches.size0, *matches.size1)
    needed = options.min_inliers + options.chance * chance_inliers(len(matches), pixels, *matches.size1)
    if len(matches) < needed:
        return _refused(f"{len(matches)} matches, {needed:.0f} needed")
    plausible = _epipolar_inliers(matches, 1.5 * pixels, options.seed)
    if len(plausible) < needed:
        return _refused(f"{len(plausible)} of {len(matches)} matches agree, {needed:.0f} needed")
    settings = pycolmap.TwoViewGeometryOptions()
    settings.min_num_inliers = options.min_inliers
    settings.ransac.max_error = pixels
    settings.ransac.random_seed = options.seed
    settings.detect_watermark = False  # sub-pixel offsets of identical framings look like a watermark
    points0 = to_colmap(matches.points0.astype(np.float64))
    points1 = to_colmap(matches.points1.astype(np.float64))
    index = np.repeat(plausible.astype(np.uint32)[:, None], 2, axis=1)
    geometry = pycolmap.estimate_two_view_geometry(camera0, points0, camera1, points1, index, settings)
    inliers = np.asarray(geometry.inlier_matches)[:, 0].astype(np.int64)
    if len(inliers) < needed:
        return _refused(f"{len(inliers)} of {len(matches)} matches agree, {needed:.0f} needed")
    if min(
        narrowness(matches.points0[inliers]), narrowness(matches.points1[inliers])
    ) < options.min_spread * float(np.hypot(*matches.size1)):
        return _refused(f"the {len(inliers)} matches that agree lie on one line")
    pycolmap.estimate_two_view_geometry_pose(camera0, points0, camera1, points1, geometry)
    return _accepted(geometry, inliers)


def _epipolar_inliers(matches: PairMatches, max_error: float, seed: int) -> npt.NDArray[np.int64]:
    """Indices of the matches that one fundamental matrix explains; best matches are tried first.

    COLMAP's verification takes seconds on a hopeless pair and milliseconds on what this leaves.
    """
    import poselib

    settings = {
        "max_epipolar_error": max_error,
        "min_iterations": 200,
        "max_iterations": 2000,
        "progressive_sampling": True,
        "seed": seed,
    }
    _, report = poselib.estimate_fundamental(
        matches.points0.astype(np.float64), matches.points1.astype(np.float64), settings, {}
    )
    return np.flatnonzero(np.asarray(report["inliers"], np.bool_))


def _accepted(geometry: Any, inliers: npt.NDArray[np.int64]) -> VerifiedPair:
    pose = geometry.cam2_from_cam1
    rotation = np.eye(3) if pose is None else np.asarray(pose.rotation.matrix(), np.float64)
    translation = np.zeros(3) if pose is None else np.asarray(pose.translation, np.float64)

    def matrix(value: Any) -> Floats:
        return np.zeros((3, 3)) if value is None else np.asarray(value, np.float64)

    return VerifiedPair(
        inliers,
        int(geometry.config),
        matrix(geometry.E),
        matrix(geometry.F),
        matrix(geometry.H),
        rotation,
        translation,
    )


def _refused(reason: str) -> VerifiedPair:
    zero = np.zeros((3, 3))
    return VerifiedPair(np.zeros(0, np.int64), 0, zero, zero, zero, np.eye(3), np.zeros(3), reason)


def verify_with_poses(
    matches: PairMatches, camera0: Any, camera1: Any, pose0: Pose, pose1: Pose, options: VerifyOptions
) -> VerifiedPair:
    """Keep the matches that agree with the known poses and lie before both cameras: nothing is estimated, so
    nothing can be estimated wrongly.
    """
    rotation = pose1[0] @ pose0[0].T
    translation = pose1[1] - rotation @ pose0[1]
    baseline = float(np.linalg.norm(translation))
    unit = translation / baseline if baseline > 0 else translation
    cross = np.array([[0, -unit[2], unit[1]], [unit[2], 0, -unit[0]], [-unit[1], unit[0], 0]])
    essential = cross @ rotation
    rays0 = np.c_[camera0.cam_from_img(to_colmap(matches.points0.astype(np.float64))), np.ones(len(matches))]
    rays1 = np.c_[camera1.cam_from_img(to_colmap(matches.points1.astype(np.float64))), np.ones(len(matches))]
    focal = (camera0.mean_focal_length() + camera1.mean_focal_length()) / 2
    error = focal * np.sqrt(_sampson(essential, rays0, rays1))
    limit = options.max_error * max(*matches.size0, *matches.size1)
    fits = np.isfinite(error) & (error < limit) & _in_front(rays0, rays1, rotation, unit, limit / focal)
    inliers = np.flatnonzero(fits)
    zero = np.zeros((3, 3))
    if len(inliers) < options.min_inliers:
        reason = f"{len(inliers)} of {len(matches)} matches agree with the known poses"
        return VerifiedPair(np.zeros(0, np.int64), 0, zero, zero, zero, rotation, unit, reason)
    calibrated = 2  # COLMAP's TwoViewGeometryConfiguration.CALIBRATED
    return VerifiedPair(inliers, calibrated, essential, zero, zero, rotation, unit)


def _sampson(essential: Floats, rays0: Floats, rays1: Floats) -> Floats:
    """Squared Sampson errors (N,) of rays (N, 3) with last coordinate 1."""
    line1 = rays0 @ essential.T
    line0 = rays1 @ essential
    top = (rays1 * line1).sum(1) ** 2
    bottom = (line1[:, :2] ** 2).sum(1) + (line0[:, :2] ** 2).sum(1)
    result: Floats = top / np.maximum(bottom, 1e-18)
    return result


def _in_front(
    rays0: Floats, rays1: Floats, rotation: Floats, translation: Floats, parallel: float
) -> npt.NDArray[np.bool_]:
    """Which rays (N, 3) of two cameras meet before both, or are too nearly parallel (radians) to say.

    Walking ahead, all epipolar lines run through one point whatever the order of the photos: only this tells
    ahead from behind.
    """
    first, second = rays0 @ rotation.T, rays1
    normal = np.cross(first, second)
    # depth1 second = depth0 first + translation; their signs are enough
    depth0 = -(np.cross(translation, second) * normal).sum(1)
    depth1 = -(np.cross(translation, first) * normal).sum(1)
    lengths = np.linalg.norm(first, axis=1) * np.linalg.norm(second, axis=1)
    far = np.linalg.norm(normal, axis=1) < parallel * lengths
    return np.asarray(far | ((depth0 > 0) & (depth1 > 0)), np.bool_)


def verify_pairs(
    matched: PairJournal,
    cameras: Mapping[str, Any],
    output: str | Path,
    options: VerifyOptions | None = None,
    pairs: Iterable[Pair] | None = None,
    workers: int = 1,
    keep: Mapping[str, npt.NDArray[np.bool_]] | None = None,
    show_progress: bool = False,
) -> dict[Pair, VerifiedPair]:
    """Verify all pairs of `matched`, keeping finished ones in `output` (.h5) so that a killed run goes on.

    cameras: photo name -> pycolmap camera. keep: photo name -> mask (H, W) of usable pixels.
    """
    options = options or VerifyOptions()
    wanted = matched.pairs() if pairs is None else sorted(set(pairs))
    photo_keys = {name: _photo_key(cameras[name], (keep or {}).get(name)) for pair in wanted for name in pair}
    stamps = {
        pair: "|".join([matched.read(pair).stamp, str(options), *(photo_keys[name] for name in pair)])
        for pair in wanted
    }
    journal = PairJournal(output)
    todo = journal.missing(stamps)

    def verify(pair: Pair) -> Record:
        matches = record_to_matches(matched.read(pair))
        usable = np.flatnonzero(unmasked(matches, pair, keep or {}) & inside_border(matches, options.border))
        result = verify_pair(matches.select(usable), cameras[pair[0]], cameras[pair[1]], options)
        return _to_record(result, usable, stamps[pair])

    progress = PairProgress(len(stamps), len(stamps) - len(todo), show_progress, "verifying pairs")
    with ThreadPoolExecutor(max(1, workers)) as pool, progress:
        for begin in range(0, len(todo), SAVE_EVERY_PAIRS):
            portion = todo[begin : begin + SAVE_EVERY_PAIRS]
            records = [verify(pair) for pair in portion] if workers <= 1 else list(pool.map(verify, portion))
            journal.append(dict(zip(portion, records, strict=True)))
            progress.advance(len(portion))
    journal.finish(stamps)
    results = {pair: _from_record(journal.read(pair)) for pair in wanted}
    journal.close()
    return results


def unmasked(
    matches: PairMatches, pair: Pair, keep: Mapping[str, npt.NDArray[np.bool_]]
) -> npt.NDArray[np.bool_]:
    """Which matches (N,) lie on usable pixels of both photos."""
    usable = np.ones(len(matches), np.bool_)
    for name, points in zip(pair, (matches.points0, matches.points1), strict=True):
        mask = keep.get(name)
        if mask is not None:
            x = np.clip(np.rint(points[:, 0]).astype(int), 0, mask.shape[1] - 1)
            y = np.clip(np.rint(points[:, 1]).astype(int), 0, mask.shape[0] - 1)
            usable &= mask[y, x]
    return usable


def _photo_key(camera: Any, mask: npt.NDArray[np.bool_] | None) -> str:
    """What the verification of a photo's pairs depends on, beside the matches."""
    masked = ""
    if mask is not None:
        masked = hashlib.sha1(np.packbits(mask).tobytes(), usedforsecurity=False).hexdigest()
    return (
        f"{camera.model_name} {camera.width} {camera.height} {camera.params_to_string()} "
        f"{camera.has_prior_focal_length} {masked}"
    )


def _to_record(result: VerifiedPair, usable: npt.NDArray[np.int64], stamp: str) -> Record:
    inliers = usable[result.inliers] if len(result.inliers) else result.inliers
    values: dict[str, npt.NDArray[Any]] = {
        "config": np.array(result.config, np.int64),
        "essential": result.essential,
        "fundamental": result.fundamental,
        "homography": result.homography,
        "rotation": result.rotation,
        "translation": result.translation,
        "reason": np.frombuffer(result.reason.encode()[:80].ljust(80), np.uint8).copy(),
    }
    return Record({"inliers": inliers.astype(np.int32)}, values, stamp)


def _from_record(record: Record) -> VerifiedPair:
    v = record.values
    reason = v["reason"].tobytes().decode(errors="replace").strip()
    return VerifiedPair(
        record.columns["inliers"].astype(np.int64),
        int(v["config"]),
        v["essential"],
        v["fundamental"],
        v["homography"],
        v["rotation"],
        v["translation"],
        reason,
    )

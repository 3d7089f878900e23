"""Two-view verification, strict: what passes here may carry a model.

Registered is not correct: look-alike facades pass a loose check and bend the whole model. So inliers must
exceed what chance gives, the matcher's own pair score must not speak against the pair, and (see
`rotation_cycles`) relative rotations must agree around triangles of photos.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coam.geometry.alignment import Pose
from coam.geometry.coordinates import to_colmap
from coam.geometry.epipolar import cheirality, essential_from_pose, sampson_distance
from coam.images.mask import Mask, usable_at
from coam.sfm.matching.match_pairs import store_results
from coam.sfm.matching.pair_matches import PairMatches, record_to_matches
from coam.sfm.matching.stamps import recorded_text
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.store.journal import Pair, PairJournal, Record

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
CALIBRATED = 2  # COLMAP's TwoViewGeometryConfiguration.CALIBRATED
CHUNK_PAIRS = 32  # that a worker verifies at once: a second or some
ARRAYS = ("essential", "fundamental", "homography", "rotation", "translation")  # of a `VerifiedPair`


@dataclass(frozen=True)
class VerifyOptions:
    """How strict two-view verification is."""

    max_error: float = 0.0025  # epipolar error in long sides of the photo: 2.5 px at 1000 px
    min_inliers: int = 20  # on top of what chance gives
    chance: float = 3.0  # inliers must exceed this many times the number that random matches would give
    min_overlap: float = 0.1  # pairs the matcher scores below this are refused (not where uncalibrated)
    border: float = 1.0  # grid steps at the edge of a photo that are not used: networks see padding there
    min_spread: float = 0.015  # of the diagonal, across the line that inliers lie on at worst
    seed: int = 0
    prefilter_error: float = 1.5  # times max_error: what one fundamental matrix explains goes on to COLMAP
    prefilter_iterations: tuple[int, int] = (200, 2000)  # RANSAC iterations of that, at least and at most

    RECORDED: ClassVar[str] = (
        "VerifyOptions(max_error, min_inliers, chance, min_overlap, border, min_spread, seed)"
    )


@dataclass(frozen=True)
class VerifiedPair:
    """The two-view geometry of one pair; `inliers` is empty and `reason` says why when it was refused."""

    inliers: Ints = field(default_factory=lambda: np.zeros(0, np.int64))  # (K,) indices into its matches
    config: int = 0  # COLMAP's kind of two-view geometry
    essential: Floats = field(default_factory=lambda: np.zeros((3, 3)))
    fundamental: Floats = field(default_factory=lambda: np.zeros((3, 3)))
    homography: Floats = field(default_factory=lambda: np.zeros((3, 3)))
    rotation: Floats = field(default_factory=lambda: np.eye(3))  # camera 1 from camera 0
    translation: Floats = field(default_factory=lambda: np.zeros(3))  # of unit length
    reason: str = ""


@dataclass(frozen=True)
class VerifiedMatches:
    """Matches of many pairs and the two-view geometry of each."""

    matched: PairJournal
    geometries: Mapping[Pair, VerifiedPair]

    @property
    def accepted(self) -> list[Pair]:
        """Pairs that passed verification, sorted."""
        return sorted(pair for pair, geometry in self.geometries.items() if len(geometry.inliers))

    def inliers(self, pair: Pair) -> PairMatches:
        """The inliers among the matches of a pair."""
        return record_to_matches(self.matched.read(pair)).select(self.geometries[pair].inliers)

    def evidence(self) -> dict[Pair, float]:
        """How much speaks for every accepted pair: the sum of the scores of its inliers."""
        return {pair: float(self.inliers(pair).scores.sum()) for pair in self.accepted}


def verify_pairs(
    matched: PairJournal,
    cameras: Mapping[str, Any],
    output: str | Path,
    options: VerifyOptions | None = None,
    masks: Mapping[str, Mask] | None = None,
    workers: Workers = HERE,
    show_progress: bool = False,
    chunk_pairs: int = CHUNK_PAIRS,
) -> VerifiedMatches:
    """Verify all pairs of `matched`; finished ones are kept in `output` (.h5), so that a killed run goes on.

    cameras: photo name -> pycolmap camera. masks: photo name -> (H, W) usable pixels.
    Workers are sent what is usable of a pair's matches and its cameras, and need no files.
    """
    options, masks = options or VerifyOptions(), masks or {}
    wanted = matched.pairs()
    photo_keys = {name: _photo_key(cameras[name], masks.get(name)) for pair in wanted for name in pair}
    settings = recorded_text(options)
    stamps = {
        pair: "|".join([matched.read(pair).stamp, settings, *(photo_keys[name] for name in pair)])
        for pair in wanted
    }
    journal = PairJournal(output)

    def job(pair: Pair) -> _Job:
        return pair, *_usable(matched, pair, masks, options.border), cameras[pair[0]], cameras[pair[1]]

    task = Task(partial(_verifying, options), journal.missing(stamps), chunk_pairs, job)
    records = ((pair, _to_record(found, stamps[pair])) for pair, found in workers.run(task))
    store_results(journal, stamps, records, show_progress, "verifying pairs")
    journal.close()
    return read_verified(matched, output)


_Job = tuple[Pair, PairMatches, Ints, Any, Any]  # matches that may be used, their indices, both cameras


def _verifying(options: VerifyOptions) -> Work:
    """What a worker does with the matches of pairs."""

    def verify(jobs: Iterable[_Job], paths: Mapping[str, Path]) -> Iterator[tuple[Pair, VerifiedPair]]:
        for pair, matches, usable, camera0, camera1 in jobs:
            found = verify_pair(matches, camera0, camera1, options)
            yield pair, replace(found, inliers=usable[found.inliers])

    return verify


def verify_pairs_with_poses(
    matched: PairJournal,
    pairs: Iterable[Pair],
    cameras: Mapping[str, Any],
    poses: Mapping[str, Pose],
    options: VerifyOptions,
    masks: Mapping[str, Mask],
) -> VerifiedMatches:
    """Verify `pairs` of `matched` against known poses (photo name -> camera-from-world)."""
    geometries = {}
    for pair in pairs:
        matches, usable = _usable(matched, pair, masks, options.border)
        of_pair = [cameras[name] for name in pair], [poses[name] for name in pair]
        found = verify_with_poses(matches, *of_pair, options)
        geometries[pair] = replace(found, inliers=usable[found.inliers])
    return VerifiedMatches(matched, geometries)


def read_verified(matched: PairJournal, path: str | Path) -> VerifiedMatches:
    """What `verify_pairs` has stored in `path`, whatever it was made from."""
    journal = PairJournal(path)
    geometries = {pair: _from_record(journal.read(pair)) for pair in journal.pairs()}
    journal.close()
    return VerifiedMatches(matched, geometries)


def _photo_key(camera: Any, mask: Mask | None) -> str:
    """What the verification of a photo's pairs depends on, beside the matches."""
    masked = ""
    if mask is not None:
        masked = hashlib.sha1(np.packbits(mask).tobytes(), usedforsecurity=False).hexdigest()
    return (
        f"{camera.model_name} {camera.width} {camera.height} {camera.params_to_string()} "
        f"{camera.has_prior_focal_length} {masked}"
    )


def _to_record(result: VerifiedPair, stamp: str) -> Record:
    values: dict[str, npt.NDArray[Any]] = {name: getattr(result, name) for name in ARRAYS}
    values["config"] = np.array(result.config, np.int64)
    values["reason"] = np.frombuffer(result.reason.encode()[:80].ljust(80), np.uint8).copy()
    return Record({"inliers": result.inliers.astype(np.int32)}, values, stamp)


def _from_record(record: Record) -> VerifiedPair:
    return VerifiedPair(
        inliers=record.columns["inliers"].astype(np.int64),
        config=int(record.values["config"]),
        reason=record.values["reason"].tobytes().decode(errors="replace").strip(),
        **{name: record.values[name] for name in ARRAYS},
    )


def _usable(
    matched: PairJournal, pair: Pair, masks: Mapping[str, Mask], border: float
) -> tuple[PairMatches, Ints]:
    """The matches of a pair that may be used, and their indices."""
    matches = record_to_matches(matched.read(pair))
    index = usable_matches(matches, pair, masks, border)
    return matches.select(index), index


def usable_matches(matches: PairMatches, pair: Pair, masks: Mapping[str, Mask], border: float) -> Ints:
    """Indices of the matches that lie on usable pixels of both photos, away from their borders.

    masks: photo name -> (H, W) usable pixels; border: grid steps.
    """
    usable = np.ones(len(matches), np.bool_)
    sides = (
        (matches.ids0, matches.grid0, matches.points0),
        (matches.ids1, matches.grid1, matches.points1),
    )
    for name, (ids, grid, points) in zip(pair, sides, strict=True):
        cells = np.stack([ids % grid.columns, ids // grid.columns], axis=1)
        last = np.array([grid.columns - 1, grid.rows - 1])
        usable &= ((cells >= border) & (cells <= last - border)).all(axis=1)
        if name in masks:
            usable &= usable_at(masks[name], points)
    return np.flatnonzero(usable)


def chance_inliers(matches: int, max_error: float, width: int, height: int) -> float:
    """How many of so many random matches lie within `max_error` pixels of a random epipolar line."""
    band = 2 * max_error * float(np.hypot(width, height)) / (width * height)
    return matches * min(1.0, band)


def narrowness(points: npt.NDArray[Any]) -> float:
    """Standard deviation of points (N, 2) in their narrowest direction, in pixels."""
    return float(np.sqrt(max(0.0, np.linalg.eigvalsh(np.cov(points.T))[0])))


def verify_pair(matches: PairMatches, camera0: Any, camera1: Any, options: VerifyOptions) -> VerifiedPair:
    """Estimate the two-view geometry of one pair, or refuse it.

    From sub-pixel points, not from the quantised keypoints: those are half a cell off.
    """
    import pycolmap

    if matches.overlap < options.min_overlap:  # false for nan
        return VerifiedPair(reason=f"the pair score is {matches.overlap:.2f}")
    pixels = options.max_error * matches.long_side
    needed = options.min_inliers + options.chance * chance_inliers(len(matches), pixels, *matches.size1)
    if len(matches) < needed:
        return VerifiedPair(reason=f"{len(matches)} matches, {needed:.0f} needed")
    plausible = _fundamental_inliers(matches, pixels, options)
    if len(plausible) < needed:
        return VerifiedPair(reason=f"{len(plausible)} of {len(matches)} matches agree, {needed:.0f} needed")
    settings = pycolmap.TwoViewGeometryOptions()
    settings.min_num_inliers = options.min_inliers
    settings.ransac.max_error = pixels
    settings.ransac.random_seed = options.seed
    settings.detect_watermark = False  # sub-pixel offsets of identical framings look like a watermark
    both = camera0, to_colmap(matches.points0), camera1, to_colmap(matches.points1)
    index = np.repeat(plausible.astype(np.uint32)[:, None], 2, axis=1)
    geometry = pycolmap.estimate_two_view_geometry(*both, index, settings)
    inliers = np.asarray(geometry.inlier_matches)[:, 0].astype(np.int64)
    if len(inliers) < needed:
        return VerifiedPair(reason=f"{len(inliers)} of {len(matches)} matches agree, {needed:.0f} needed")
    width = min(narrowness(matches.points0[inliers]), narrowness(matches.points1[inliers]))
    if width < options.min_spread * float(np.hypot(*matches.size1)):
        return VerifiedPair(reason=f"the {len(inliers)} matches that agree lie on one line")
    pycolmap.estimate_two_view_geometry_pose(*both, geometry)
    found: dict[str, Any] = {"essential": geometry.E, "fundamental": geometry.F, "homography": geometry.H}
    if geometry.cam2_from_cam1 is not None:
        found["rotation"] = geometry.cam2_from_cam1.rotation.matrix()
        found["translation"] = geometry.cam2_from_cam1.translation
    found = {name: np.asarray(value, np.float64) for name, value in found.items() if value is not None}
    return VerifiedPair(inliers, int(geometry.config), **found)


def _fundamental_inliers(matches: PairMatches, pixels: float, options: VerifyOptions) -> Ints:
    """Indices of the matches that one fundamental matrix explains; best matches are tried first.

    COLMAP's verification takes seconds on a hopeless pair and milliseconds on what this leaves.
    """
    import poselib

    settings = {
        "max_epipolar_error": options.prefilter_error * pixels,
        "min_iterations": options.prefilter_iterations[0],
        "max_iterations": options.prefilter_iterations[1],
        "progressive_sampling": True,
        "seed": options.seed,
    }
    _, report = poselib.estimate_fundamental(matches.points0, matches.points1, settings, {})
    return np.flatnonzero(np.asarray(report["inliers"], np.bool_))


def verify_with_poses(
    matches: PairMatches, cameras: Sequence[Any], poses: Sequence[Pose], options: VerifyOptions
) -> VerifiedPair:
    """Inliers of known cameras and poses (two each), by Sampson distance and cheirality; all is given."""
    (camera0, camera1), (pose0, pose1) = cameras, poses
    rotation = pose1[0] @ pose0[0].T
    translation = pose1[1] - rotation @ pose0[1]
    baseline = float(np.linalg.norm(translation))
    unit = translation / baseline if baseline > 0 else translation
    essential = essential_from_pose(rotation, unit)
    points0 = camera0.cam_from_img(to_colmap(matches.points0))
    points1 = camera1.cam_from_img(to_colmap(matches.points1))
    focal = (camera0.mean_focal_length() + camera1.mean_focal_length()) / 2
    error = focal * sampson_distance(points0, points1, essential)
    limit = options.max_error * matches.long_side
    rays0, rays1 = (np.c_[points, np.ones(len(matches))] for points in (points0, points1))
    in_front = cheirality(rays0, rays1, rotation, unit, limit / focal)
    inliers = np.flatnonzero(np.isfinite(error) & (error < limit) & in_front)
    if len(inliers) < options.min_inliers:
        reason = f"{len(inliers)} of {len(matches)} matches agree with the known poses"
        return VerifiedPair(rotation=rotation, translation=unit, reason=reason)
    return VerifiedPair(inliers, CALIBRATED, essential, rotation=rotation, translation=unit)

"""Which pairs and matches may carry a model: verification, focal lengths, triangles of rotations, detours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coam.sfm.cycles import CycleReport, check_cycles
from coam.sfm.detours import DetourOptions, check_detours
from coam.sfm.focal import estimate_focals, with_calibrated_rotation
from coam.sfm.journal import Pair, PairJournal
from coam.sfm.match_pairs import PairMatches, record_to_matches
from coam.sfm.photos import PhotoFolder, read_masks
from coam.sfm.verify import VerifiedPair, verify_pairs

if TYPE_CHECKING:
    from coam.sfm.pipeline import SfmOptions

CYCLE_ERROR_OF_GUESSES = 45.0  # degrees: a guessed focal length bends right rotations by up to that much


def trusted_pairs(
    folder: PhotoFolder,
    matched: PairJournal,
    cameras: Sequence[Any],
    camera_of: Sequence[int],
    output: Path,
    options: SfmOptions,
    show_progress: bool = False,
) -> tuple[dict[Pair, VerifiedPair], CycleReport]:
    """Verified pairs and matches without those that contradict stronger ones; the report says which."""
    camera = {photo.name: cameras[camera_of[index]] for index, photo in enumerate(folder.photos)}
    keep = read_masks(folder, options.masks)
    verified = verify_pairs(
        matched,
        camera,
        output / "verified.h5",
        options.verify,
        workers=options.workers,
        keep=keep,
        show_progress=show_progress,
    )
    good = estimate_focals(folder.names, matched, verified, cameras, camera_of)
    if not all(c.has_prior_focal_length for c in cameras):
        for pair, geometry in verified.items():
            if geometry.accepted:
                matches = record_to_matches(matched.read(pair))
                verified[pair] = with_calibrated_rotation(geometry, matches, camera[pair[0]], camera[pair[1]])
    accepted = {pair: geometry for pair, geometry in verified.items() if geometry.accepted}
    cycles = check_cycles(
        {pair: geometry.rotation for pair, geometry in accepted.items()},
        {pair: len(geometry.inliers) for pair, geometry in accepted.items()},
        options.cycle_error if all(good) else max(options.cycle_error, CYCLE_ERROR_OF_GUESSES),
    )
    verified = {pair: geometry for pair, geometry in verified.items() if pair not in cycles.removed}
    return _without_lookalikes(matched, verified, cycles, options.detours)


def pair_evidence(matched: PairJournal, verified: Mapping[Pair, VerifiedPair]) -> dict[Pair, float]:
    """How much speaks for every accepted pair: the sum of the scores of its inliers."""
    return {
        pair: float(record_to_matches(matched.read(pair)).scores[geometry.inliers].sum())
        for pair, geometry in verified.items()
        if geometry.accepted
    }


def _without_lookalikes(
    matched: PairJournal, verified: Mapping[Pair, VerifiedPair], cycles: CycleReport, options: DetourOptions
) -> tuple[dict[Pair, VerifiedPair], CycleReport]:
    """Pairs without the matches that contradict stronger pairs; removed pairs are added to the report."""

    def own_matches(pair: Pair) -> PairMatches:
        return record_to_matches(matched.read(pair)).select(verified[pair].inliers)

    detours = check_detours(pair_evidence(matched, verified), own_matches, options)
    left = {pair: geometry for pair, geometry in verified.items() if pair not in detours.removed}
    for pair, kept in detours.kept.items():
        left[pair] = replace(left[pair], inliers=left[pair].inliers[kept])
    unchecked = tuple(pair for pair in cycles.unchecked if pair in left)
    return left, replace(cycles, removed=cycles.removed | detours.removed, unchecked=unchecked)

"""Multi-view refinement: every track is matched again, directly, from one reference view.

Merging offsets rests on local affine maps. When a model exists, each track can instead be re-correlated: the
refined position in its reference view is given to the matcher as a keypoint, and found again in all other
views of the track.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coam.sfm.journal import Pair, PairJournal, Record
from coam.sfm.keypoints import Keypoints
from coam.sfm.match_pairs import (
    SAVE_EVERY_PAIRS,
    SAVE_EVERY_SECONDS,
    cached_images,
    matcher_key,
    order_pairs,
)
from coam.types import Matches

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class KeypointMatcher(Protocol):
    """A matcher that finds given keypoints of image 0 in image 1."""

    def match(self, image0: Any, image1: Any, keypoints0: Any = None) -> Matches:
        """Matches whose `points0` are rows of `keypoints0` (N, 2)."""
        ...


@dataclass(frozen=True)
class RefineOptions:
    """How re-correlated positions are taken over."""

    max_move: float = 0.5  # grid steps: a position found further away than this is another point
    trust: float = 0.5  # weight of the re-correlated position; the merged one has the rest
    min_tracks: int = 30  # pairs of views with fewer common tracks are not worth a match


def choose_references(tracks: Ints, image_of: Ints) -> Ints:
    """Reference photo of every track (T,): few photos serve many tracks, so that few pairs are matched again.

    Greedy: the photo with most tracks that have no reference yet takes them all.
    """
    count = int(tracks.max(initial=-1)) + 1
    reference = np.full(count, -1, np.int64)
    inside = np.flatnonzero(tracks >= 0)
    by_image = {image: tracks[inside[image_of[inside] == image]] for image in np.unique(image_of[inside])}
    while (reference < 0).any() and by_image:
        open_tracks = {image: int((reference[own] < 0).sum()) for image, own in by_image.items()}
        image = max(open_tracks, key=lambda key: (open_tracks[key], -key))
        if open_tracks[image] == 0:
            break
        own = by_image.pop(image)
        reference[own[reference[own] < 0]] = image
    return reference


def refine_keypoints(
    matcher: KeypointMatcher,
    paths: Mapping[str, Path],
    keypoints: Keypoints,
    output: str | Path,
    options: RefineOptions | None = None,
) -> Keypoints:
    """Keypoints whose positions were re-correlated against the reference view of their track.

    What was found is kept in `output` (.h5) pair by pair, so a killed run goes on.
    """
    options = options or RefineOptions()
    jobs = _plan(keypoints, options)
    key = matcher_key(matcher)
    stamps = {pair: _stamp(job, keypoints, key) for pair, job in jobs.items()}
    journal = PairJournal(output)
    todo = order_pairs(journal.missing(stamps), cached_images(matcher))
    for batch in _find_again(matcher, paths, keypoints, jobs, todo, stamps):
        journal.append(batch)
    journal.finish(stamps)
    positions, steps = keypoints.positions.copy(), keypoints.steps()
    for pair, job in jobs.items():
        found = journal.read(pair).columns
        nodes = job.nodes[found["row"]]
        moved = found["xy"] - keypoints.positions[nodes]
        near = np.linalg.norm(moved, axis=1) < options.max_move * steps[nodes]
        positions[nodes[near]] += options.trust * moved[near]
    journal.close()
    return replace(keypoints, positions=positions)


@dataclass(frozen=True)
class _Job:
    """Tracks to find again in one image."""

    nodes: Ints  # (K,) in the image that is searched
    references: Ints  # (K,) in the reference image


def _plan(keypoints: Keypoints, options: RefineOptions) -> dict[Pair, _Job]:
    """(reference image, other image) -> what to find."""
    image_of, tracks = keypoints.image_of, keypoints.tracks
    reference = choose_references(tracks, image_of)
    inside = np.flatnonzero(tracks >= 0)
    own = inside[image_of[inside] == reference[tracks[inside]]]
    node_of_track = np.full(len(reference), -1, np.int64)
    node_of_track[tracks[own]] = own
    others = inside[image_of[inside] != reference[tracks[inside]]]
    pair_of = reference[tracks[others]] * len(keypoints.names) + image_of[others]
    jobs: dict[Pair, _Job] = {}
    for pair in np.unique(pair_of):
        nodes = others[pair_of == pair]
        if len(nodes) >= options.min_tracks:
            first, second = divmod(int(pair), len(keypoints.names))
            jobs[keypoints.names[first], keypoints.names[second]] = _Job(nodes, node_of_track[tracks[nodes]])
    return jobs


def _stamp(job: _Job, keypoints: Keypoints, key: str) -> str:
    digest = hashlib.sha1(key.encode(), usedforsecurity=False)
    for nodes in (job.references, job.nodes):
        digest.update(np.round(keypoints.positions[nodes], 4).tobytes())
    return digest.hexdigest()


def _find_again(
    matcher: KeypointMatcher,
    paths: Mapping[str, Path],
    keypoints: Keypoints,
    jobs: Mapping[Pair, _Job],
    todo: Sequence[Pair],
    stamps: Mapping[Pair, str],
) -> Iterator[dict[Pair, Record]]:
    """Results in portions worth saving; an image is encoded once while it is among the last ones used."""
    prepare = getattr(matcher, "prepare", None)
    encoded = (
        lru_cache(maxsize=cached_images(matcher))(prepare) if prepare is not None else (lambda path: path)
    )
    batch: dict[Pair, Record] = {}
    saved_at = time.monotonic()
    for pair in todo:
        given = keypoints.positions[jobs[pair].references]
        image0, image1 = (encoded(paths[name]) for name in pair)
        row, xy = _rows_of(matcher.match(image0, image1, keypoints0=given.astype(np.float32)), given)
        batch[pair] = Record({"row": row, "xy": xy}, {"given": np.array(len(given))}, stamps[pair])
        if len(batch) >= SAVE_EVERY_PAIRS or time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
            yield batch
            batch, saved_at = {}, time.monotonic()
    if batch:
        yield batch


def _rows_of(found: Matches, given: Floats) -> tuple[Ints, Floats]:
    """Which row of `given` each match came from, and where it was found (K, 2)."""
    from scipy.spatial import cKDTree

    if len(found) == 0:
        return np.zeros(0, np.int64), np.zeros((0, 2))
    distance, row = cKDTree(given).query(found.points0.astype(np.float64))
    close = distance < 1e-2
    return row[close].astype(np.int64), found.points1[close].astype(np.float64)

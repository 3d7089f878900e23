"""Multi-view refinement: every track is matched again, directly, from one reference view.

Merging offsets rests on local affine maps. When a model exists, each track can instead be re-correlated: the
refined position in its reference view is given to the matcher as a keypoint, and found again in all other
views of the track.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coam.sfm.keypoints import Keypoints
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
    options: RefineOptions | None = None,
) -> Keypoints:
    """Keypoints whose positions were re-correlated against the reference view of their track."""
    options = options or RefineOptions()
    image_of, tracks = keypoints.image_of, keypoints.tracks
    reference = choose_references(tracks, image_of)
    positions = keypoints.positions.copy()
    steps = keypoints.steps()
    reference_node = np.full(len(reference), -1, np.int64)
    inside = np.flatnonzero(tracks >= 0)
    own = inside[image_of[inside] == reference[tracks[inside]]]
    reference_node[tracks[own]] = own
    others = inside[image_of[inside] != reference[tracks[inside]]]
    pair_of = reference[tracks[others]] * len(keypoints.names) + image_of[others]
    for pair in np.unique(pair_of):
        nodes = others[pair_of == pair]
        if len(nodes) < options.min_tracks:
            continue
        names = keypoints.names[pair // len(keypoints.names)], keypoints.names[pair % len(keypoints.names)]
        given = keypoints.positions[reference_node[tracks[nodes]]]
        found = matcher.match(paths[names[0]], paths[names[1]], keypoints0=given.astype(np.float32))
        row, measured = _rows_of(found, given)
        moved = measured - keypoints.positions[nodes[row]]
        near = np.linalg.norm(moved, axis=1) < options.max_move * steps[nodes[row]]
        positions[nodes[row[near]]] += options.trust * moved[near]
    return replace(keypoints, positions=positions)


def _rows_of(found: Matches, given: Floats) -> tuple[Ints, Floats]:
    """Which row of `given` each match came from, and where it was found (K, 2)."""
    from scipy.spatial import cKDTree

    if len(found) == 0:
        return np.zeros(0, np.int64), np.zeros((0, 2))
    distance, row = cKDTree(given).query(found.points0.astype(np.float64))
    close = distance < 1e-2
    return row[close].astype(np.int64), found.points1[close].astype(np.float64)

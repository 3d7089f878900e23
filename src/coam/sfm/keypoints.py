"""Keypoints of all photos: the grid positions that verified matches use, numbered without gaps, and where
they lie.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.sfm.detours import strong_pairs
from coam.sfm.journal import Pair, PairJournal, replacing, require_space
from coam.sfm.match_pairs import grid_from_array, grid_to_array, record_to_matches
from coam.sfm.tracks import Measurements, MergeOptions, local_affine, refine_positions
from coam.sfm.verify import VerifiedPair
from coam.types import Grid

Variant = Literal["quantised", "merged"]


@dataclass(frozen=True)
class Keypoints:
    """Keypoints of all photos. Those of photo i are nodes start[i] .. start[i + 1], sorted by grid id."""

    names: tuple[str, ...]
    grids: tuple[Grid | None, ...]  # None for photos without a verified match
    start: npt.NDArray[np.int64]  # (images + 1,)
    ids: npt.NDArray[np.int64]  # (N,) grid ids
    positions: npt.NDArray[np.float64]  # (N, 2) pixels
    tracks: npt.NDArray[np.int64]  # (N,) track numbers, -1 for none

    @property
    def image_of(self) -> npt.NDArray[np.int64]:
        """(N,) photo of each node."""
        return np.repeat(np.arange(len(self.names)), np.diff(self.start))

    def of(self, image: int) -> slice:
        """The nodes of photo number `image`."""
        return slice(int(self.start[image]), int(self.start[image + 1]))

    def grid_positions(self) -> npt.NDArray[np.float64]:
        """(N, 2) positions of the nodes on their grids."""
        parts = [
            np.zeros((0, 2)) if grid is None else grid.positions(self.ids[self.of(image)]).astype(np.float64)
            for image, grid in enumerate(self.grids)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, 2))

    def steps(self) -> npt.NDArray[np.float64]:
        """(N,) grid step of each node in pixels."""
        steps = [0.0 if grid is None else (grid.step[0] + grid.step[1]) / 2 for grid in self.grids]
        return np.repeat(np.array(steps, np.float64), np.diff(self.start))


@dataclass(frozen=True)
class Links:
    """The verified matches as edges between nodes, and which pair each came from."""

    pairs: tuple[Pair, ...]
    start: npt.NDArray[np.int64]  # (pairs + 1,): edges of pair p are start[p] .. start[p + 1]
    measurements: Measurements
    held: npt.NDArray[np.bool_]  # (M,) edges that agree with the refined positions

    def of(self, pair: int) -> slice:
        """The edges of pair number `pair`."""
        return slice(int(self.start[pair]), int(self.start[pair + 1]))


def collect_keypoints(
    names: Sequence[str], matched: PairJournal, verified: Mapping[Pair, VerifiedPair]
) -> tuple[Keypoints, Links]:
    """Number the grid positions that verified matches use; positions are on the grid, nothing is merged
    yet.
    """
    number = {name: index for index, name in enumerate(names)}
    used: list[list[npt.NDArray[np.int64]]] = [[] for _ in names]
    grids: list[Grid | None] = [None] * len(names)
    accepted = sorted(pair for pair, geometry in verified.items() if geometry.accepted)
    for pair in accepted:
        matches = record_to_matches(matched.read(pair)).select(verified[pair].inliers)
        for name, ids, grid in zip(
            pair, (matches.ids0, matches.ids1), (matches.grid0, matches.grid1), strict=True
        ):
            image = number[name]
            if grids[image] not in (None, grid):
                raise DataError(
                    f"{name}: has two different grids; match all pairs with one matcher and resolution"
                )
            grids[image] = grid
            used[image].append(ids)
    own_ids = [np.unique(np.concatenate(parts)) if parts else np.zeros(0, np.int64) for parts in used]
    start = np.concatenate([[0], np.cumsum([len(part) for part in own_ids])]).astype(np.int64)
    flat = np.concatenate(own_ids) if own_ids else np.zeros(0, np.int64)
    tracks = np.full(len(flat), -1, np.int64)
    keypoints = Keypoints(tuple(names), tuple(grids), start, flat, np.zeros((len(flat), 2)), tracks)
    keypoints = replace(keypoints, positions=keypoints.grid_positions())
    return keypoints, _collect_links(keypoints, number, accepted, matched, verified)


def _collect_links(
    keypoints: Keypoints,
    number: Mapping[str, int],
    accepted: Sequence[Pair],
    matched: PairJournal,
    verified: Mapping[Pair, VerifiedPair],
) -> Links:
    first, second, offsets, affine, weights = [], [], [], [], []
    lengths = [0]
    for pair in accepted:
        matches = record_to_matches(matched.read(pair)).select(verified[pair].inliers)
        a, b = number[pair[0]], number[pair[1]]
        first.append(keypoints.start[a] + np.searchsorted(keypoints.ids[keypoints.of(a)], matches.ids0))
        second.append(keypoints.start[b] + np.searchsorted(keypoints.ids[keypoints.of(b)], matches.ids1))
        offsets.append(matches.offsets.astype(np.float64))
        affine.append(local_affine(matches.points0.astype(np.float64), matches.points1.astype(np.float64)))
        weights.append(matches.scores.astype(np.float64))
        lengths.append(len(matches))
    empty = Measurements(
        np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros((0, 2)), np.zeros((0, 2, 2)), np.zeros(0)
    )
    measurements = (
        Measurements(*(np.concatenate(part) for part in (first, second, offsets, affine, weights)))
        if accepted
        else empty
    )
    return Links(
        tuple(accepted),
        np.cumsum(lengths).astype(np.int64),
        measurements,
        np.ones(len(measurements), np.bool_),
    )


def place_keypoints(
    keypoints: Keypoints, links: Links, variant: Variant = "merged", options: MergeOptions | None = None
) -> tuple[Keypoints, Links]:
    """Keypoints where the variant puts them, and links without those that contradict it.

    "quantised": on the grid. "merged": at the refined position of their track.
    """
    from coam.sfm.tracks import build_tracks

    edges = links.measurements
    if variant == "quantised":
        tracks = build_tracks(edges.first, edges.second, edges.weights, keypoints.image_of)
        return replace(keypoints, positions=keypoints.grid_positions(), tracks=tracks), links
    tracks, displacement, held = refine_positions(edges, keypoints.image_of, keypoints.steps(), options)
    positions = keypoints.grid_positions() + displacement
    return replace(keypoints, positions=positions, tracks=tracks), replace(links, held=held)


def strongest_links(keypoints: Keypoints, links: Links, per_pair: int) -> Links:
    """Links without the weaker tracks: of every pair, those in its `per_pair` longest and surest tracks stay.

    A track that one pair needs stays in all its photos.
    """
    edges = links.measurements
    tracks = keypoints.tracks
    length = np.bincount(tracks[tracks >= 0], minlength=1)
    within = links.held & (tracks[edges.first] == tracks[edges.second]) & (tracks[edges.first] >= 0)
    number = tracks[edges.first]
    value = np.where(within, length[number] + edges.weights / 2, -1.0)  # weights are at most 1
    needed = np.zeros(len(length), np.bool_)
    for pair in range(len(links.pairs)):
        own = np.flatnonzero(within[links.of(pair)]) + links.start[pair]
        best = own[np.argsort(-value[own], kind="stable")[:per_pair]]
        needed[number[best]] = True
    return replace(links, held=within & needed[number])


def links_of_strong_pairs(links: Links, share: float) -> Links:
    """Links of the `strong_pairs`; evidence is the sum of the weights of a pair's links."""
    edges = links.measurements
    held = np.where(links.held, edges.weights, 0.0)
    evidence = np.add.reduceat(np.append(held, 0.0), links.start[:-1]) if links.pairs else np.zeros(0)
    evidence[np.diff(links.start) == 0] = 0.0  # reduceat gives the next element for an empty part
    chosen = strong_pairs(dict(zip(links.pairs, evidence.tolist(), strict=True)), share)
    strong = np.array([pair in chosen for pair in links.pairs], np.bool_)
    return replace(links, held=links.held & np.repeat(strong, np.diff(links.start)))


def save_keypoints(keypoints: Keypoints, path: str | Path) -> Path:
    """Write keypoints (.h5): what lifts new matches of a photo to the 3D points of a model."""
    import h5py

    path = Path(path)
    require_space(path, 2 * keypoints.positions.nbytes + (1 << 20))
    with replacing(path) as temporary, h5py.File(temporary, "w") as file:
        file.attrs["format"] = "coam-keypoints-1"
        file.create_dataset("names", data=np.array(keypoints.names, object), dtype=h5py.string_dtype())
        grids = [np.full(6, np.nan) if grid is None else grid_to_array(grid) for grid in keypoints.grids]
        file["grids"] = np.array(grids, np.float64).reshape(-1, 6)
        for name in ("start", "ids", "positions", "tracks"):
            file.create_dataset(name, data=getattr(keypoints, name))
    return path


def load_keypoints(path: str | Path) -> Keypoints:
    """Read what `save_keypoints` wrote."""
    import h5py

    path = Path(path)
    try:
        with h5py.File(path, "r") as file:
            if file.attrs.get("format") != "coam-keypoints-1":
                raise DataError(f"{path}: holds no coam keypoints; give a model folder made by coam sfm")
            names = tuple(name.decode() for name in file["names"][:])
            grids = tuple(None if np.isnan(row).any() else grid_from_array(row) for row in file["grids"][:])
            return Keypoints(names, grids, *(file[key][:] for key in ("start", "ids", "positions", "tracks")))
    except OSError as error:
        raise DataError(f"{path}: cannot be read; give a model folder made by coam sfm") from error

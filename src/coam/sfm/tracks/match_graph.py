"""The match graph: keypoints of all photos as nodes, verified matches as edges; tracks are its components."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import h5py
import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.geometry.local_affine import local_affine
from coam.sfm.matching.pair_matches import grid_from_array, grid_to_array
from coam.sfm.tracks.merge import Measurements, MergeOptions, build_tracks, refine_positions
from coam.sfm.verification.path_consistency import strong_pairs
from coam.sfm.verification.two_view import VerifiedMatches
from coam.store.atomic import atomic_write, require_space
from coam.store.checksums import CHECKSUMMED, utf8_strings
from coam.store.journal import Pair
from coam.types import Grid

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
FORMAT = "coam-keypoints-1"
MOST_IDS = 1 << 40  # grid positions of a photo


@dataclass(frozen=True)
class Keypoints:
    """The grid positions that verified matches use, of all photos, and their sub-pixel positions.

    Those of photo i are nodes start[i] .. start[i + 1], sorted by grid id.
    """

    names: tuple[str, ...]
    grids: tuple[Grid | None, ...]  # None for photos without a verified match
    start: Ints  # (images + 1,)
    ids: Ints  # (N,) grid ids
    positions: Floats  # (N, 2) pixels
    tracks: Ints  # (N,) track numbers, -1 for none

    @property
    def image_of(self) -> Ints:
        """(N,) photo of each node."""
        return np.repeat(np.arange(len(self.names)), np.diff(self.start))

    @property
    def track_count(self) -> int:
        """How many tracks the keypoints are in."""
        return int(self.tracks.max(initial=-1)) + 1

    def of(self, image: int) -> slice:
        """The nodes of photo number `image`."""
        return slice(int(self.start[image]), int(self.start[image + 1]))

    def grid_positions(self) -> Floats:
        """(N, 2) positions of the nodes on their grids."""
        positions = np.zeros((len(self.ids), 2))
        for image, grid in enumerate(self.grids):
            if grid is not None:
                positions[self.of(image)] = grid.positions(self.ids[self.of(image)])
        return positions

    def cells(self, count: int) -> Ints:
        """(N,) in which of `count` x `count` parts of its photo each node lies."""
        cells = np.zeros(len(self.ids), np.int64)
        for image, grid in enumerate(self.grids):
            if grid is not None:
                row, column = np.divmod(self.ids[self.of(image)], grid.columns)
                cells[self.of(image)] = row * count // grid.rows * count + column * count // grid.columns
        return cells

    def steps(self) -> Floats:
        """(N,) grid step of each node in pixels."""
        steps = [0.0 if grid is None else (grid.step[0] + grid.step[1]) / 2 for grid in self.grids]
        return np.repeat(np.array(steps, np.float64), np.diff(self.start))


def save_keypoints(keypoints: Keypoints, path: str | Path) -> Path:
    """Write keypoints (.h5): what lifts new matches of a photo to the 3D points of a model."""
    path = Path(path)
    require_space(path, 2 * keypoints.positions.nbytes + (1 << 20))
    with atomic_write(path) as temporary, h5py.File(temporary, "w", libver=CHECKSUMMED) as file:
        file.attrs["format"] = np.bytes_(FORMAT)
        file.create_dataset("names", data=utf8_strings(keypoints.names))
        grids = [np.full(6, np.nan) if grid is None else grid_to_array(grid) for grid in keypoints.grids]
        file["grids"] = np.array(grids, np.float64).reshape(-1, 6)
        for name in ("start", "ids", "positions", "tracks"):
            file.create_dataset(name, data=getattr(keypoints, name))
    return path


class StoredKeypoints:
    """What `save_keypoints` wrote; a photo's keypoints are read when they are asked for."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        try:
            self._file = h5py.File(path, "r")
            if self._file.attrs.get("format") not in (FORMAT, FORMAT.encode()):
                raise DataError(f"{path}: holds no coam keypoints; give a model folder made by coam sfm")
            self.names = tuple(name.decode() for name in self._file["names"][:])
            rows = self._file["grids"][:]
            self.grids = tuple(None if np.isnan(row).any() else grid_from_array(row) for row in rows)
            self._start = self._file["start"][:]
        except DataError:
            raise
        except Exception as error:  # a damaged file can make its reader raise anything at all
            raise self._damage() from error

    def _damage(self) -> DataError:
        return DataError(f"{self.path}: is missing or damaged; give a model folder made by coam sfm")

    def of(self, image: int) -> tuple[Ints, Floats]:
        """Grid ids (K,), ascending, and positions (K, 2) of the keypoints of photo number `image`."""
        try:
            own = slice(int(self._start[image]), int(self._start[image + 1]))
            return self._file["ids"][own], self._file["positions"][own]
        except Exception as error:
            raise self._damage() from error

    def all(self) -> Keypoints:
        """The keypoints of all photos."""
        try:
            columns = (self._file[key][:] for key in ("start", "ids", "positions", "tracks"))
            return Keypoints(self.names, self.grids, *columns)
        except Exception as error:
            raise self._damage() from error

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def load_keypoints(path: str | Path) -> Keypoints:
    """Read what `save_keypoints` wrote."""
    with closing(StoredKeypoints(path)) as stored:
        return stored.all()


@dataclass(frozen=True)
class MatchGraph:
    """The verified matches as edges between keypoints, and which pair each came from."""

    keypoints: Keypoints
    pairs: tuple[Pair, ...]
    start: Ints  # (pairs + 1,): edges of pair p are start[p] .. start[p + 1]
    edges: Measurements  # (M)
    inlier: npt.NDArray[np.bool_]  # (M,) edges that agree with the refined positions

    def of(self, pair: int) -> slice:
        """The edges of pair number `pair`."""
        return slice(int(self.start[pair]), int(self.start[pair + 1]))

    def nodes(self, pair: int) -> tuple[Ints, Ints]:
        """The nodes (K,), (K,) that the inlier edges of pair number `pair` join."""
        own, inlier = self.of(pair), self.inlier[self.of(pair)]
        return self.edges.first[own][inlier], self.edges.second[own][inlier]


def build_graph(names: Sequence[str], verified: VerifiedMatches) -> MatchGraph:
    """Number the grid positions that verified matches use; they are on the grid, nothing is merged yet."""
    number = {name: index for index, name in enumerate(names)}
    grids: list[Grid | None] = [None] * len(names)
    none = np.zeros(0, np.int64)
    parts = [(none, none, np.zeros((0, 2)), np.zeros((0, 2, 2)), np.zeros(0))]
    for pair in verified.accepted:
        matches = verified.inliers(pair)
        first, second = (number[name] for name in pair)
        for image, grid in ((first, matches.grid0), (second, matches.grid1)):
            if grids[image] not in (None, grid):
                raise DataError(
                    f"{names[image]}: has two different grids; match all pairs with one matcher and "
                    "resolution"
                )
            grids[image] = grid
        ids = first * MOST_IDS + matches.ids0, second * MOST_IDS + matches.ids1
        affine = local_affine(matches.points0, matches.points1)
        parts.append((*ids, matches.offsets.astype(float), affine, matches.scores.astype(float)))
    start = np.cumsum([len(part[0]) for part in parts])
    ends0, ends1, *measured = (np.concatenate(column) for column in zip(*parts, strict=True))
    nodes, ends = np.unique(np.concatenate([ends0, ends1]), return_inverse=True)
    edges = Measurements(*ends.reshape(2, -1), *measured)
    of_image = np.searchsorted(nodes, np.arange(len(names) + 1) * MOST_IDS)
    positions, tracks = np.zeros((len(nodes), 2)), np.full(len(nodes), -1, np.int64)
    keypoints = Keypoints(tuple(names), tuple(grids), of_image, nodes % MOST_IDS, positions, tracks)
    keypoints = replace(keypoints, positions=keypoints.grid_positions())
    return MatchGraph(keypoints, tuple(verified.accepted), start, edges, np.ones(len(edges), np.bool_))


def place_keypoints(graph: MatchGraph, merge: MergeOptions | None) -> MatchGraph:
    """Build tracks and place keypoints; edges that contradict the positions are no inliers any more.

    merge: how offsets are merged to the refined position of a track; None: keypoints stay on the grid.
    """
    edges, keypoints = graph.edges, graph.keypoints
    if merge is None:
        tracks = build_tracks(edges.first, edges.second, edges.weights, keypoints.image_of)
        return replace(graph, keypoints=replace(keypoints, tracks=tracks))
    tracks, displacement, inlier = refine_positions(edges, keypoints.image_of, keypoints.steps(), merge)
    refined = keypoints.grid_positions() + displacement
    return replace(graph, keypoints=replace(keypoints, positions=refined, tracks=tracks), inlier=inlier)


def longest_tracks(graph: MatchGraph, per_pair: int) -> MatchGraph:
    """The graph without its weaker tracks: of every pair the `per_pair` longest and surest tracks stay.

    A track that one pair needs stays in all its photos.
    """
    edges, tracks = graph.edges, graph.keypoints.tracks
    length = np.bincount(tracks[tracks >= 0], minlength=1)
    number = tracks[edges.first]
    within = graph.inlier & (number == tracks[edges.second]) & (number >= 0)
    value = np.where(within, length[number] + edges.weights / 2, -1.0)  # weights are at most 1
    needed = np.zeros(len(length), np.bool_)
    for pair in range(len(graph.pairs)):
        own = np.flatnonzero(within[graph.of(pair)]) + graph.start[pair]
        best = own[np.argsort(-value[own], kind="stable")[:per_pair]]
        needed[number[best]] = True
    return replace(graph, inlier=within & needed[number])


def well_spread_tracks(graph: MatchGraph, per_photo: int, per_pair: int, cells: int) -> MatchGraph:
    """The graph with few tracks: of every photo `per_photo`, of every pair at least `per_pair`.

    The longest and surest come first, from `cells` x `cells` parts of a photo in turn. A track that one photo
    or pair needs stays in all its photos.
    """
    edges, keypoints = graph.edges, graph.keypoints
    number = keypoints.tracks[edges.first]
    within = graph.inlier & (number == keypoints.tracks[edges.second]) & (number >= 0)
    used = np.zeros(len(keypoints.ids), np.bool_)
    used[edges.first[within]] = used[edges.second[within]] = True
    nodes = np.flatnonzero(used)
    track, image = keypoints.tracks[nodes], keypoints.image_of[nodes]
    weight, count = (
        np.bincount(number[within], own, keypoints.track_count) for own in (edges.weights[within], None)
    )
    # weights are at most 1
    value = np.bincount(track, minlength=keypoints.track_count) + weight / np.maximum(count, 1) / 2
    cell = image * cells**2 + keypoints.cells(cells)[nodes]
    turn = _rank_within(cell, value[track])
    needed = np.zeros(keypoints.track_count, np.bool_)
    needed[track[_rank_within(image, -turn + value[track] / (value.max(initial=0.0) + 1)) < per_photo]] = True
    for pair in range(len(graph.pairs)):
        own = np.flatnonzero(within[graph.of(pair)]) + graph.start[pair]
        others = own[~needed[number[own]]]
        lacking = max(0, per_pair - (len(own) - len(others)))
        needed[number[others[np.argsort(-value[number[others]], kind="stable")[:lacking]]]] = True
    return replace(graph, inlier=within & needed[number])


def _rank_within(group: Ints, value: Floats) -> Ints:
    """(N,) 0 for the largest value of each group (N,), 1 for the next, ..."""
    order = np.lexsort((-value, group))
    begin = np.searchsorted(group[order], group[order])
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order)) - begin
    return rank


def growing_order(graph: MatchGraph) -> list[str]:
    """Photos in the order in which a maximum spanning tree grows from the strongest pair.

    Each comes with the strongest pair that joins it to those before it; parts that no pair joins follow, the
    one with the strongest pair first. Photos without a pair are not there.
    """
    linked: dict[str, list[tuple[float, str]]] = {}
    for (first, second), evidence in pair_evidence(graph).items():
        if evidence > 0:
            linked.setdefault(first, []).append((-evidence, second))
            linked.setdefault(second, []).append((-evidence, first))
    order: list[str] = []
    seen: set[str] = set()
    for start in sorted(linked, key=lambda name: (min(linked[name])[0], name)):
        waiting = [(0.0, start)]
        while waiting:
            _, name = heapq.heappop(waiting)
            if name not in seen:
                seen.add(name)
                order.append(name)
                for link in linked[name]:
                    heapq.heappush(waiting, link)
    return order


def pair_evidence(graph: MatchGraph) -> dict[Pair, float]:
    """How much speaks for every pair: the sum of the weights of its edges."""
    pair_of = np.repeat(np.arange(len(graph.pairs)), np.diff(graph.start))
    evidence = np.bincount(pair_of, np.where(graph.inlier, graph.edges.weights, 0.0), len(graph.pairs))
    return dict(zip(graph.pairs, evidence.tolist(), strict=True))


def graph_of_strong_pairs(graph: MatchGraph, share: float) -> MatchGraph:
    """The graph with the edges of `strong_pairs` only, by the sum of the weights of a pair's edges."""
    pair_of = np.repeat(np.arange(len(graph.pairs)), np.diff(graph.start))
    chosen = strong_pairs(pair_evidence(graph), share)
    strong = np.array([pair in chosen for pair in graph.pairs], np.bool_)
    return replace(graph, inlier=graph.inlier & strong[pair_of])


def find_places(graph: MatchGraph, min_matches: int) -> list[set[str]]:
    """Photos that pairs of at least `min_matches` edges join, directly or through others; most first."""
    from scipy.cluster.hierarchy import DisjointSet

    parts = DisjointSet(graph.keypoints.names)
    for number, pair in enumerate(graph.pairs):
        if graph.inlier[graph.of(number)].sum() >= min_matches:
            parts.merge(*pair)
    return sorted(parts.subsets(), key=lambda part: (-len(part), min(part)))


def graph_of_place(graph: MatchGraph, names: Collection[str]) -> MatchGraph:
    """The graph with the edges between the photos `names` only."""
    wanted = set(names)
    own = np.array([wanted.issuperset(pair) for pair in graph.pairs], np.bool_)
    return replace(graph, inlier=graph.inlier & np.repeat(own, np.diff(graph.start)))

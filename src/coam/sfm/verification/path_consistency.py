"""Path consistency: a match must lead where the path over stronger pairs leads; look-alike places do not.

The houses of a street look alike. A pair of photos taken some houses apart then has hundreds of matches from
house to house that fit one epipolar geometry (a camera that moves forward sees all epipolar lines run through
one point) and whose rotation is right, so neither two-view verification nor rotation cycles object. But what
two photos share most is what was taken side by side: the maximum spanning tree of the match graph joins all
photos by their strongest pairs, and a point can be transferred along it from one photo of a weaker pair to
the other. Where it arrives elsewhere than the pair's own match says, the match is wrong.

Photos of different places have matches too, and some hundreds of them can fit one epipolar geometry: those of
a network with attention are not independent. But the network does not believe in them. The sum of the scores
of a pair's inliers is how many of them are expected to be right; where that is next to nothing the pair joins
no photos (it is in no tree, and confirms nobody), and stays only where a path over other pairs confirms it.
In some it does believe, as in one house front for another; but then nobody else agrees. Pairs of one place
confirm each other: a path over the one leads where the other does. A pair of the tree that is part of no such
path joins photos only where much more speaks for it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from coam.sfm.matching.pair_matches import PairMatches
from coam.sfm.verification.rotation_cycles import CycleReport, check_cycles
from coam.sfm.verification.two_view import VerifiedMatches
from coam.store.journal import Pair

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# Both directions of the pairs of the tree of 2,000 photos; 21 kB each where 400 matches are inliers.
PAIRS_IN_MEMORY = 4096


@dataclass(frozen=True)
class PathConsistencyOptions:
    """How matches are compared with the paths over stronger pairs."""

    radius: float = 2.0  # grid steps: a point is transferred by the nearest match of a pair, if it is so near
    max_error: float = 0.02  # of the long side of a photo: further off than this it arrived elsewhere
    min_transferred: int = 20  # matches: a path that fewer survive says nothing
    trusted_share: float = 0.8  # of transferred matches that agree: above, those that were lost are kept too
    strong_share: float = 0.25  # of a photo's best pair: weaker pairs that no path confirms are left out
    # Sums of scores of a pair's inliers, chosen on photos of five sets (alexander, fox, lund, sacre_coeur,
    # sceaux) and eight of elsewhere at 448 px, checked on nine other sets and sixteen photos: docs/scale.md.
    min_evidence: float = 10.0  # below it a pair joins no photos: pairs of different places had up to 7.2
    alone_evidence: float = 100.0  # below it a pair must be confirmed by others: two house fronts had 86

    RECORDED: ClassVar[str] = (
        "DetourOptions(reach=radius, max_error, few=min_transferred, trusted=trusted_share, "
        "strong=strong_share)"
    )


def trusted_pairs(
    verified: VerifiedMatches, max_cycle_error: float, options: PathConsistencyOptions
) -> tuple[VerifiedMatches, CycleReport]:
    """Remove pairs and matches that contradict stronger pairs; the report says which pairs.

    max_cycle_error: degrees within which triangles of relative rotations must close.
    """
    accepted = {pair: verified.geometries[pair] for pair in verified.accepted}
    if any(np.isnan(verified.inliers(pair).overlap) for pair in verified.accepted[:1]):
        options = replace(options, min_evidence=0.0, alone_evidence=0.0)  # these scores are no probabilities
    cycles = check_cycles(
        {pair: geometry.rotation for pair, geometry in accepted.items()},
        {pair: len(geometry.inliers) for pair, geometry in accepted.items()},
        max_cycle_error,
    )
    left = {pair: geometry for pair, geometry in verified.geometries.items() if pair not in cycles.removed}
    verified = replace(verified, geometries=left)
    consistent, removed = check_path_consistency(verified.evidence(), verified.inliers, options)
    left = {pair: geometry for pair, geometry in left.items() if pair not in removed}
    for pair, index in consistent.items():
        left[pair] = replace(left[pair], inliers=left[pair].inliers[index])
    unchecked = tuple(pair for pair in cycles.unchecked if pair in left)
    cycles = replace(cycles, removed=cycles.removed | removed, unchecked=unchecked)
    return replace(verified, geometries=left), cycles


def check_path_consistency(
    evidence: Mapping[Pair, float],
    matches_of: Callable[[Pair], PairMatches],
    options: PathConsistencyOptions | None = None,
) -> tuple[dict[Pair, Ints], dict[Pair, str]]:
    """Find the matches that contradict the path over stronger pairs in the maximum spanning tree.

    evidence: pair -> how much speaks for it; matches_of: its verified matches. Gives pair -> indices (K,) of
    its matches that stay, and the pairs of which too little is left, with one line each.
    """
    options = options or PathConsistencyOptions()
    joining = {pair: value for pair, value in evidence.items() if value >= options.min_evidence}
    forest = SpanningForest(joining)
    strong = strong_pairs(joining, options.strong_share)

    @lru_cache(maxsize=PAIRS_IN_MEMORY)
    def transfer(first: str, second: str) -> PointTransfer:
        if (first, second) in evidence:
            return PointTransfer(matches_of((first, second)), 0, options.radius)
        return PointTransfer(matches_of((second, first)), 1, options.radius)

    consistent: dict[Pair, Ints] = {}
    removed: dict[Pair, str] = {}
    paths: dict[Pair, list[Pair]] = {}  # the pairs of the tree that each pair was compared with
    confirmed: set[Pair] = set()  # pairs of the tree
    for pair in sorted(evidence):
        matches = matches_of(pair)
        stays, reason = np.ones(len(matches), np.bool_), ""
        if pair not in forest.pairs:
            path = forest.path(*pair)
            paths[pair] = [(a, b) if (a, b) in forest.pairs else (b, a) for a, b in pairwise(path)]
            arrived = agrees = np.zeros(len(matches), np.bool_)
            if path:
                arrived, agrees = transfer_along(matches, path, transfer, options)
            stays, reason = _consistent_matches(arrived, agrees, pair in strong, options)
            known, right = int(arrived.sum()), int(agrees.sum())
            if pair in joining and right >= max(options.min_transferred, known / 2):
                confirmed.update(paths[pair])
        if reason:
            removed[pair] = reason
        else:
            consistent[pair] = np.flatnonzero(stays)
    alone = {pair for pair in forest.pairs - confirmed if evidence[pair] < options.alone_evidence}
    for pair in sorted(consistent):
        if pair in alone or alone.intersection(paths.get(pair, ())):
            del consistent[pair]
            removed[pair] = "too weak to stand alone, and nothing confirms it"
    return consistent, removed


def strong_pairs(evidence: Mapping[Pair, float], share: float) -> set[Pair]:
    """Pairs whose evidence is at least `share` of the best that one of their photos has.

    Every photo keeps its best pair. What is left is what photos share that were taken side by side.
    """
    best: dict[str, float] = {}
    for pair, value in evidence.items():
        for name in pair:
            best[name] = max(best.get(name, 0.0), value)
    return {pair for pair, value in evidence.items() if value >= share * min(best[name] for name in pair)}


def _consistent_matches(
    arrived: Mask, agrees: Mask, strong: bool, options: PathConsistencyOptions
) -> tuple[Mask, str]:
    """Which matches (N,) of a pair stay, or in one line why none does."""
    known, right = int(arrived.sum()), int(agrees.sum())
    if known < options.min_transferred:
        unconfirmed = "" if strong else "weak, and no path over stronger pairs confirms it"
        return np.ones(len(arrived), np.bool_), unconfirmed
    if right < options.min_transferred:
        return agrees, f"{known - right} of {known} matches lead elsewhere over stronger pairs"
    return (agrees | ~arrived if right >= options.trusted_share * known else agrees), ""


def transfer_along(
    matches: PairMatches,
    path: list[str],
    transfer: Callable[[str, str], PointTransfer],
    options: PathConsistencyOptions,
) -> tuple[Mask, Mask]:
    """Transfer both ends of matches (N) along `path`: which arrive at all, and which at their other end.

    One direction is enough: moving forward, what is near leaves the picture, but can be followed back.
    """
    ends = matches.points0, matches.points1
    limit = options.max_error * matches.long_side
    arrived, agrees = np.zeros(len(matches), np.bool_), np.zeros(len(matches), np.bool_)
    for (start, goal), names in ((ends, path), (ends[::-1], path[::-1])):
        alive, points = np.arange(len(matches)), start
        for first, second in pairwise(names):
            if not len(alive):  # long paths lose all points early
                break
            near, points = transfer(first, second)(points)
            alive = alive[near]
        arrived[alive] = True
        agrees[alive] |= np.linalg.norm(points - goal[alive], axis=1) <= limit
    return arrived, agrees


class PointTransfer:
    """Point transfer from one photo of a pair to the other: a point moves as the nearest match does."""

    def __init__(self, matches: PairMatches, side: int, radius: float) -> None:
        """side: the photo (0 or 1) to start from; radius: grid steps."""
        from scipy.spatial import cKDTree

        ends = matches.points0, matches.points1
        self._index: Any = cKDTree(ends[side])
        self._moves = ends[1 - side] - ends[side]
        self._radius = radius * max((matches.grid0, matches.grid1)[side].step)

    def __call__(self, points: Floats) -> tuple[Ints, Floats]:
        """Indices (K,) of the points (N, 2) that have a match near, and where they go (K, 2)."""
        distance, nearest = self._index.query(points, distance_upper_bound=self._radius)
        near = np.flatnonzero(np.isfinite(distance))
        return near, points[near] + self._moves[nearest[near]]


class SpanningForest:
    """Maximum spanning tree of every connected component of the match graph: its strongest pairs."""

    def __init__(self, evidence: Mapping[Pair, float]) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import breadth_first_order, minimum_spanning_tree

        self._names = sorted({name for pair in evidence for name in pair})
        self._number = {name: index for index, name in enumerate(self._names)}
        pairs = sorted(evidence, key=lambda pair: (-evidence[pair], pair))
        rank = np.arange(1, len(pairs) + 1, dtype=np.float64)  # not the evidence itself: zero means no pair
        ends = np.array([[self._number[name] for name in pair] for pair in pairs]).reshape(-1, 2)
        shape = (len(self._names),) * 2
        tree: Any = minimum_spanning_tree(coo_array((rank, (ends[:, 0], ends[:, 1])), shape=shape))
        self.pairs = {pairs[int(place) - 1] for place in tree.data}
        # for every photo the one before it on the path from the photo `start`
        self._before = lru_cache(maxsize=1)(lambda start: breadth_first_order(tree, start, directed=False)[1])

    def path(self, first: str, second: str) -> list[str]:
        """Photos on the path between two photos, both included; none where they are in different trees."""
        if first not in self._number or second not in self._number:
            return []
        before, names = self._before(self._number[first]), [second]
        while names[-1] != first:
            previous = before[self._number[names[-1]]]
            if previous < 0:
                return []
            names.append(self._names[previous])
        return names[::-1]

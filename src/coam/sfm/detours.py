"""A match must lead where the detour over stronger pairs leads; look-alike places do not.

The houses of a street look alike. A pair of photos taken some houses apart then has hundreds of matches from
house to house that fit one epipolar geometry (walking ahead they all lie on lines through the same point) and
whose rotation is right, so neither two-view verification nor triangles of rotations object. But what two
photos share most is what was taken side by side: the tree of strongest pairs joins all photos, and a point
can be followed along it from one photo of a weaker pair to the other. Where it arrives elsewhere than the
pair's own match says, the match is wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.sfm.journal import Pair
from coam.sfm.match_pairs import PairMatches

Floats = npt.NDArray[np.float64]
Mask = npt.NDArray[np.bool_]
PAIRS_IN_MEMORY = 512


@dataclass(frozen=True)
class DetourOptions:
    """How matches are compared with their detours."""

    reach: float = 2.0  # grid steps: a point follows the nearest match of a pair, if it is so near
    max_error: float = 0.02  # of the long side of a photo: further off than this it arrived elsewhere
    few: int = 20  # matches: a detour that fewer survive says nothing
    trusted: float = 0.8  # share of matches that agree above which those that did not arrive are kept too
    strong: float = 0.25  # of a photo's best pair: weaker pairs that no detour confirms are left out


@dataclass(frozen=True)
class DetourReport:
    """What is left of the pairs."""

    kept: dict[Pair, npt.NDArray[np.int64]]  # pair -> indices (K,) of its matches that stay
    removed: dict[Pair, str]  # pairs of which too little is left, with one line each
    matches: int  # how many matches of all pairs were removed


def check_detours(
    evidence: Mapping[Pair, float],
    matches_of: Callable[[Pair], PairMatches],
    options: DetourOptions | None = None,
) -> DetourReport:
    """Take out matches that contradict the detour over stronger pairs.

    evidence: pair -> how much speaks for it; matches_of: its verified matches.
    """
    options = options or DetourOptions()
    forest = Forest(evidence)
    strong = strong_pairs(evidence, options.strong)

    @lru_cache(maxsize=PAIRS_IN_MEMORY)
    def step(first: str, second: str) -> Step:
        if (first, second) in evidence:
            return Step(matches_of((first, second)), 0, options.reach)
        return Step(matches_of((second, first)), 1, options.reach)

    kept: dict[Pair, npt.NDArray[np.int64]] = {}
    removed: dict[Pair, str] = {}
    before = after = 0
    for pair in sorted(evidence):
        matches = matches_of(pair)
        stays, reason = np.ones(len(matches), np.bool_), ""
        if pair not in forest.pairs:
            arrived, agrees = follow(matches, forest.path(*pair), step, options)
            stays, reason = _judge(arrived, agrees, pair in strong, options)
        before += len(matches)
        if reason:
            removed[pair] = reason
        else:
            kept[pair] = np.flatnonzero(stays)
            after += len(kept[pair])
    return DetourReport(kept, removed, before - after)


def strong_pairs(evidence: Mapping[Pair, float], share: float) -> set[Pair]:
    """Pairs whose evidence is at least `share` of the best that one of their photos has.

    Every photo keeps its best pair. What is left is what photos share that were taken side by side.
    """
    best: dict[str, float] = {}
    for pair, value in evidence.items():
        for name in pair:
            best[name] = max(best.get(name, 0.0), value)
    return {pair for pair, value in evidence.items() if value >= share * min(best[name] for name in pair)}


def _judge(arrived: Mask, agrees: Mask, strong: bool, options: DetourOptions) -> tuple[Mask, str]:
    """Which matches (N,) of a pair stay, or in one line why none does."""
    known, right = int(arrived.sum()), int(agrees.sum())
    if known < options.few:
        return np.ones(len(arrived), np.bool_), "" if strong else "weak, and no detour confirms it"
    if right < options.few:
        return agrees, f"{known - right} of {known} matches lead elsewhere over stronger pairs"
    return (agrees | ~arrived if right >= options.trusted * known else agrees), ""


def follow(
    matches: PairMatches,
    path: list[str],
    step: Callable[[str, str], Step],
    options: DetourOptions,
) -> tuple[Mask, Mask]:
    """Follow both ends of matches (N) along `path`: which arrive at all, and which at their other end.

    One direction is enough: walking ahead, what is near leaves the picture, but can be followed back.
    """
    ends = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    limit = options.max_error * max(*matches.size0, *matches.size1)
    arrived, agrees = np.zeros(len(matches), np.bool_), np.zeros(len(matches), np.bool_)
    for (start, goal), names in ((ends, path), (ends[::-1], path[::-1])):
        alive, points = np.arange(len(matches)), start
        for first, second in pairwise(names):
            near, points = step(first, second)(points)
            alive = alive[near]
        arrived[alive] = True
        agrees[alive] |= np.linalg.norm(points - goal[alive], axis=1) <= limit
    return arrived, agrees


class Step:
    """From one photo of a pair to the other: a point moves as the nearest match does."""

    def __init__(self, matches: PairMatches, side: int, reach: float) -> None:
        """side: the photo (0 or 1) to start from; reach: grid steps."""
        from scipy.spatial import cKDTree

        ends = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
        self._index: Any = cKDTree(ends[side])
        self._moves = ends[1 - side] - ends[side]
        self._reach = reach * max((matches.grid0, matches.grid1)[side].step)

    def __call__(self, points: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        """Indices (K,) of the points (N, 2) that have a match near, and where they go (K, 2)."""
        distance, nearest = self._index.query(points, distance_upper_bound=self._reach)
        near = np.flatnonzero(np.isfinite(distance))
        return near, points[near] + self._moves[nearest[near]]


class Forest:
    """The strongest pairs that join all photos without a circle (a maximum spanning tree of each part)."""

    def __init__(self, evidence: Mapping[Pair, float]) -> None:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import breadth_first_order, connected_components, minimum_spanning_tree

        names = sorted({name for pair in evidence for name in pair})
        number = {name: index for index, name in enumerate(names)}
        pairs = sorted(evidence, key=lambda pair: (-evidence[pair], pair))
        rank = np.arange(1, len(pairs) + 1, dtype=np.float64)  # not the evidence itself: zero means no pair
        ends = np.array([[number[name] for name in pair] for pair in pairs]).reshape(-1, 2)
        tree = minimum_spanning_tree(coo_array((rank, (ends[:, 0], ends[:, 1])), shape=(len(names),) * 2))
        self.pairs = {pairs[int(place) - 1] for place in tree.data}
        self._above: dict[str, str | None] = {}  # the next photo on the way to the top of its part
        _, part = connected_components(tree, directed=False)
        for top in np.unique(part, return_index=True)[1]:
            order, above = breadth_first_order(tree, top, directed=False)
            for photo in order:
                self._above[names[photo]] = None if photo == top else names[above[photo]]

    def path(self, first: str, second: str) -> list[str]:
        """Photos on the way between two photos of one part, both included."""
        up, down = self._to_top(first), self._to_top(second)
        meeting = next(name for name in up if name in down)
        return up[: up.index(meeting) + 1] + down[: down.index(meeting)][::-1]

    def _to_top(self, name: str) -> list[str]:
        names = [name]
        while (above := self._above[names[-1]]) is not None:
            names.append(above)
        return names

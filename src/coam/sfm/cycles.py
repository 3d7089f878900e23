"""Relative rotations must agree around every triangle of photos; the pairs that break triangles are wrong.

A pair of look-alike facades can have hundreds of inliers and a fine reprojection error; but together with two
right pairs it does not close.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import combinations

import numpy as np
import numpy.typing as npt

from coam.sfm.journal import Pair

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class CycleReport:
    """What the triangles say."""

    removed: dict[Pair, str]  # pairs that stronger ones contradict or do not confirm, with one line each
    unchecked: tuple[Pair, ...]  # pairs in no triangle at all: nothing speaks for or against them
    triangles: int  # number of triangles
    closing: int  # how many of them close, after the removals


def rotation_angle(rotation: Floats) -> float:
    """Angle of a rotation matrix (3, 3) in degrees; accurate for small angles too."""
    sine = np.linalg.norm([
        rotation[2, 1] - rotation[1, 2], rotation[0, 2] - rotation[2, 0], rotation[1, 0] - rotation[0, 1]
    ])  # fmt: skip
    return float(np.degrees(np.arctan2(sine, np.trace(rotation) - 1.0)))


def cycle_error(first: Floats, second: Floats, third: Floats) -> float:
    """Degrees by which b-from-a, c-from-b and c-from-a (each (3, 3)) fail to close."""
    return rotation_angle(third.T @ second @ first)


def check_cycles(
    rotations: Mapping[Pair, Floats],
    inliers: Mapping[Pair, int],
    max_error: float = 10.0,
    min_share: float = 0.34,
) -> CycleReport:
    """Remove, worst first, pairs of whose triangles less than `min_share` close within `max_error` degrees.

    rotations: (a, b) -> rotation (3, 3) of camera b from camera a. Of a broken triangle the pair with fewer
    inliers is the suspect, so a triangle counts against a pair in the share of the inliers of the other two.
    """
    directed: dict[Pair, Floats] = {}
    for (a, b), rotation in rotations.items():
        directed[a, b], directed[b, a] = rotation, rotation.T
    neighbours: dict[str, set[str]] = {}
    for a, b in rotations:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    by_pair: dict[Pair, list[tuple[Pair, Pair, bool]]] = {pair: [] for pair in rotations}
    for triangle, closes in _triangles(directed, neighbours, rotations, max_error):
        for pair in triangle:
            others = [other for other in triangle if other != pair]
            by_pair[pair].append((others[0], others[1], closes))
    removed = _remove_worst(by_pair, inliers, max_error, min_share)
    alive = set(rotations) - set(removed)
    closed = {
        tuple(sorted((pair, *t[:2]))): t[2] for pair in alive for t in by_pair[pair] if {*t[:2]} <= alive
    }
    unchecked = tuple(sorted(p for p in alive if not any({*t[:2]} <= alive for t in by_pair[p])))
    return CycleReport(removed, unchecked, len(closed), sum(closed.values()))


def _remove_worst(
    by_pair: Mapping[Pair, list[tuple[Pair, Pair, bool]]],
    inliers: Mapping[Pair, int],
    max_error: float,
    min_share: float,
) -> dict[Pair, str]:
    """Pairs that fall below `min_share`, one after the other: each removal may clear the others of
    suspicion.
    """
    alive = set(by_pair)
    support = {pair: _support(pair, by_pair, alive, inliers) for pair in by_pair}
    queue = [(share, inliers[pair], pair) for pair, share in support.items()]
    heapify(queue)
    removed: dict[Pair, str] = {}
    while queue:
        share, _, pair = heappop(queue)
        if pair not in alive or share != support[pair]:
            continue  # an old entry
        if share >= min_share:
            break
        live = [triangle for triangle in by_pair[pair] if alive.issuperset(triangle[:2])]
        broken = sum(not closes for *_, closes in live)
        removed[pair] = (
            f"{broken} of its {len(live)} triangles of rotations do not close within {max_error:g} degrees"
        )
        alive.discard(pair)
        for other in {name for triangle in live for name in triangle[:2]}:
            support[other] = _support(other, by_pair, alive, inliers)
            heappush(queue, (support[other], inliers[other], other))
    return removed


def _triangles(
    directed: Mapping[Pair, Floats],
    neighbours: Mapping[str, set[str]],
    pairs: Mapping[Pair, Floats],
    max_error: float,
) -> list[tuple[tuple[Pair, Pair, Pair], bool]]:
    found = []
    for a in sorted(neighbours):
        later = sorted(n for n in neighbours[a] if n > a)
        for b, c in combinations(later, 2):
            if c not in neighbours[b]:
                continue
            error = cycle_error(directed[a, b], directed[b, c], directed[a, c])
            keys = tuple(key if key in pairs else (key[1], key[0]) for key in ((a, b), (b, c), (a, c)))
            found.append(((keys[0], keys[1], keys[2]), error <= max_error))
    return found


def _support(
    pair: Pair,
    by_pair: Mapping[Pair, list[tuple[Pair, Pair, bool]]],
    alive: set[Pair],
    inliers: Mapping[Pair, int],
) -> float:
    """Share in [0, 1] of the evidence that speaks for a pair; 1 where there is none."""
    good = bad = 0.0
    for first, second, closes in by_pair[pair]:
        if first not in alive or second not in alive:
            continue
        strength = float(min(inliers[first], inliers[second]))
        if closes:
            good += strength
        else:  # a broken triangle incriminates its weakest pair most
            bad += strength * strength / (strength + inliers[pair])
    return 1.0 if good + bad == 0 else good / (good + bad)

"""Rotation cycle consistency: relative rotations must close around triangles of photos.

A look-alike (doppelganger) pair can have hundreds of inliers and a fine reprojection error; but together with
two right pairs its triangle does not close.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations

import numpy as np
import numpy.typing as npt

from coam.geometry.pose import rotation_angle
from coam.store.journal import Pair

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class CycleReport:
    """Which pairs the triangles of rotations contradict."""

    removed: dict[Pair, str]  # pairs that stronger ones contradict or do not confirm, with one line each
    unchecked: tuple[Pair, ...]  # pairs in no triangle at all: nothing speaks for or against them
    triangles: int  # number of triangles
    closing: int  # how many of them close, after the removals


def check_cycles(
    rotations: Mapping[Pair, Floats],
    inliers: Mapping[Pair, int],
    max_error: float = 10.0,
    min_share: float = 0.34,
) -> CycleReport:
    """Cycle consistency: remove, worst first, pairs of whose triangles less than `min_share` close.

    rotations: (a, b) -> rotation (3, 3) of camera b from camera a. max_error: degrees within which a triangle
    closes. A triangle counts for or against a pair by the inliers of the other two; of a broken one the pair
    with fewest inliers is the suspect, so it counts less against those with more.
    """
    pairs = sorted(rotations)
    triangles, closes = _triangles(pairs, rotations, max_error)
    alive = np.ones(len(triangles), np.bool_)
    counts = np.array([inliers[pair] for pair in pairs], np.float64)
    own = counts[triangles]
    strength = np.minimum(np.roll(own, 1, axis=1), np.roll(own, 2, axis=1)).ravel()
    supports = np.repeat(closes, 3)
    evidence = np.where(supports, strength, strength**2 / (strength + own.ravel()))
    ends = np.cumsum(np.bincount(triangles.ravel(), minlength=len(pairs)))
    places = np.split(np.argsort(triangles.ravel(), kind="stable"), ends[:-1])  # of each pair in `evidence`

    def support(pair: int) -> float:
        """Share in [0, 1] of the evidence that speaks for a pair; 1 where there is none."""
        live = places[pair][alive[places[pair] // 3]]
        total = evidence[live].sum()
        return float(evidence[live][supports[live]].sum() / total) if total else 1.0

    share = np.array([support(pair) for pair in range(len(pairs))])
    removed: dict[Pair, str] = {}
    while share.min(initial=1.0) < min_share:
        worst = min(np.flatnonzero(share == share.min()), key=counts.__getitem__)
        live = places[worst][alive[places[worst] // 3]] // 3
        removed[pairs[worst]] = (
            f"{(~closes[live]).sum()} of its {len(live)} triangles of rotations do not close "
            f"within {max_error:g} degrees"
        )
        alive[live] = False
        for other in np.unique(triangles[live]):  # a removal may clear others
            share[other] = support(other)
    checked = {pairs[index] for index in np.unique(triangles[alive])}
    unchecked = tuple(pair for pair in pairs if pair not in checked and pair not in removed)
    return CycleReport(removed, unchecked, int(alive.sum()), int(closes[alive].sum()))


def _triangles(pairs: list[Pair], rotations: Mapping[Pair, Floats], max_error: float) -> tuple[Ints, Mask]:
    """Triangles (T, 3) as positions in `pairs`, and whether (T,) their rotations close."""
    number: dict[Pair, int] = {}
    directed: dict[Pair, Floats] = {}
    later: dict[str, list[str]] = {}
    for index, (a, b) in enumerate(pairs):
        number[a, b] = number[b, a] = index
        directed[a, b], directed[b, a] = rotations[a, b], rotations[a, b].T
        later.setdefault(min(a, b), []).append(max(a, b))
    found, errors = [], []
    for a in sorted(later):
        for b, c in combinations(sorted(later[a]), 2):
            if (b, c) in directed:
                found.append((number[a, b], number[b, c], number[a, c]))
                errors.append(rotation_angle(directed[a, c].T @ directed[b, c] @ directed[a, b]))
    return np.array(found, np.int64).reshape(-1, 3), np.array(errors) <= max_error

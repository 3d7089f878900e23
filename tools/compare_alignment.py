"""Matches as the network finds them against the same matches aligned in the photos: docs/precision.md.

    python tools/make_warp_benchmark.py WARPS
    python tools/compare_alignment.py MATCHES --warps WARPS --homographies ROOT ... --posed ROOT ...

MATCHES keeps the network's matches of every set (default matcher, `alignment="none"`), computed once. Every
set is then measured twice, as found and aligned, pair by pair: the share of matches within 0.25, 0.5, 1 and 3
of the truth (MMA; of dense truth, only of those it knows), the AUC of the mean corner error of homographies
at 1, 3 and 5 px, of the error of poses at 1, 3 and 5 degrees. The estimator is that of `Matches`.
Differences have 95 % bootstrap intervals over sequences; over pairs, which is rather too narrow, where all
are of one.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from compare_estimators import homography_error, pose_error

from coam.evaluation.benchmarks.hpatches import known_homography, load_hpatches
from coam.evaluation.benchmarks.posed_pairs import load_posed_pairs
from coam.evaluation.benchmarks.warp import TRUTH, VISIBLE, load_warps
from coam.evaluation.matchers.by_name import find_matcher
from coam.evaluation.metrics.bootstrap import compare_paired
from coam.evaluation.metrics.measures import error_auc, matching_accuracy
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.predictions import PredictionStore, predict
from coam.geometry.homography import transfer_errors
from coam.geometry.robust import RansacOptions
from coam.images import load_image
from coam.images.patch_alignment import AlignOptions
from coam.matcher.alignment import align
from coam.store.archives import read_npz
from coam.types import Matches

PIXELS = (0.25, 0.5, 1.0, 3.0)
LIMITS = (1, 3, 5)
FEWEST = 30  # matches whose truth is known: with fewer a pair says little
DEPTH_EDGE = 4.0  # pixels: neighbours whose places differ by more lie on two surfaces


@dataclass(frozen=True)
class Set:
    """Pairs of one kind of truth."""

    name: str
    pairs: list[EvaluationPair]
    errors: Callable[[EvaluationPair, Matches], Array] | None  # pixels (N,), nan: the truth is not known
    model: Callable[[EvaluationPair, Matches], float] | None  # error of the homography or pose


def dense_errors(pair: EvaluationPair, matches: Matches) -> Array:
    """Distance (N,) of matches to the dense truth, nan unless the four pixels around are known and agree."""
    truth = read_npz(pair.image0.parent / TRUTH, ("points", "state"))
    points, visible = truth["points"].astype(np.float64), truth["state"] == VISIBLE
    height, width = visible.shape
    low = np.clip(np.floor(matches.points0).astype(int), 0, [width - 2, height - 2])
    share = matches.points0.astype(np.float64) - low
    corners = [(low[:, 1] + y, low[:, 0] + x) for y in (0, 1) for x in (0, 1)]
    known = np.all([visible[corner] for corner in corners], axis=0)
    values = np.stack([points[corner] for corner in corners])
    spread = np.ptp(values, axis=0).max(axis=1)
    weights = [
        (share[:, 1] if y else 1 - share[:, 1]) * (share[:, 0] if x else 1 - share[:, 0])
        for y in (0, 1)
        for x in (0, 1)
    ]
    place = np.einsum("cn,cnd->nd", np.stack(weights), np.nan_to_num(values))
    smooth = known & (spread < DEPTH_EDGE)
    return np.where(smooth, np.linalg.norm(place - matches.points1, axis=1), np.nan)


def homography_errors(pair: EvaluationPair, matches: Matches) -> Array:
    return transfer_errors(matches.points0, matches.points1, known_homography(pair))


def sets_of(given: argparse.Namespace) -> list[Set]:
    """What the command names, one set for each kind of pair."""
    plain = RansacOptions(3.0, estimator="poselib", prosac=True)
    minding = RansacOptions(1.0, estimator="poselib", prosac=True, planes=True)
    found = []
    for root in given.warps:
        pairs = load_warps(root)
        for subset in sorted({pair.subsets[0] for pair in pairs}):
            found.append(Set(subset, [p for p in pairs if p.subsets[0] == subset], dense_errors, None))
    for root in given.homographies:
        pairs = load_hpatches(root)
        for kind in ("i_", "v_"):
            if chosen := [pair for pair in pairs if pair.name.startswith(kind)]:
                name = f"{root.name} {kind}*"
                found.append(Set(name, chosen, homography_errors, lambda p, m: homography_error(p, m, plain)))
    for root in given.posed:
        pairs = load_posed_pairs(root)
        found.append(Set(root.name, pairs, None, lambda p, m: pose_error(p, m, minding)))
    return found


def stored(folder: Path, chosen: Set) -> list[Matches]:
    """The network's matches of a set, computed where they are missing."""
    spec = find_matcher("coam", alignment="none")
    store = PredictionStore(folder / chosen.name.replace(" ", "_").replace("*", ""), spec.identity)
    predict(chosen.pairs, spec, store)
    return list(store.read(chosen.pairs))


def aligned(pair: EvaluationPair, matches: Matches, options: AlignOptions) -> tuple[Matches, float]:
    """The matches aligned in the photos, and the seconds that took."""
    photos = [load_image(path).rgb for path in (pair.image0, pair.image1)]
    start = time.perf_counter()
    steps = tuple(4 * max(size) / 800 for size in (matches.size0, matches.size1))  # of the default matcher
    result = align(matches, (photos[0], photos[1]), (steps[0], steps[1]), options)
    return result, time.perf_counter() - start


def rows(chosen: Set, matches: Sequence[Matches]) -> dict[str, Array]:
    """Figures (pairs,) by name; nan where a pair says nothing."""
    table: dict[str, Array] = {}
    if chosen.errors is not None:
        found = [chosen.errors(*each) for each in zip(chosen.pairs, matches, strict=True)]
        errors = [each[~np.isnan(each)] for each in found]
        shares = [
            matching_accuracy(e, PIXELS) if len(e) >= FEWEST else [np.nan] * len(PIXELS) for e in errors
        ]
        table |= {f"MMA@{p:g}": np.asarray(shares)[:, i] for i, p in enumerate(PIXELS)}
    if chosen.model is not None:
        table["model"] = np.asarray([chosen.model(*each) for each in zip(chosen.pairs, matches, strict=True)])
    return table


def report(chosen: Set, before: dict[str, Array], after: dict[str, Array], seconds: float) -> list[str]:
    """Lines of Markdown of one set."""
    sequences = [pair.sequence for pair in chosen.pairs]
    if len(set(sequences)) == 1:
        sequences = [pair.name for pair in chosen.pairs]
    figures: list[tuple[str, str, Callable[[Array], float]]] = [
        (
            name,
            name,
            lambda values: 100 * float(np.nanmean(values)) if np.isfinite(values).any() else float("nan"),
        )
        for name in before
        if name != "model"
    ]
    if "model" in before:
        figures += [(f"AUC@{t}", "model", lambda e, t=t: 100 * error_auc(e, t)) for t in LIMITS]
    lines = []
    for label, column, figure in figures:
        old, new = before[column], after[column]
        compared = compare_paired(
            lambda index, v=old, f=figure: f(v[index]), lambda index, v=new, f=figure: f(v[index]), sequences
        ).difference
        interval = "" if np.isnan(compared.low) else f" ({compared.low:+.1f} to {compared.high:+.1f})"
        lines.append(
            f"| {chosen.name} ({len(sequences)}) | {label} | {figure(old):.1f} | {figure(new):.1f} | "
            f"{compared.value:+.1f}{interval} | {1000 * seconds:.0f} |"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matches", type=Path)
    for name in ("--warps", "--homographies", "--posed"):
        parser.add_argument(name, nargs="*", type=Path, default=[], metavar="ROOT")
    given = parser.parse_args()
    print("| set (pairs) | figure | as found | aligned | difference | ms a pair |\n|---|---|---|---|---|---|")
    for chosen in sets_of(given):
        found = stored(given.matches, chosen)
        results = [
            aligned(pair, matches, AlignOptions()) for pair, matches in zip(chosen.pairs, found, strict=True)
        ]
        seconds = float(np.median([taken for _, taken in results]))
        after = rows(chosen, [matches for matches, _ in results])
        print("\n".join(report(chosen, rows(chosen, found), after, seconds)), flush=True)


if __name__ == "__main__":
    main()

"""Robust estimators side by side on the same matches: the tables of docs/geometry.md.

    coam eval posed-pairs --root ROOT -o FOLDER          # matches once; FOLDER keeps them
    coam eval hpatches --root ROOT -o FOLDER
    python tools/compare_estimators.py --posed ROOT FOLDER --homographies ROOT FOLDER [--outliers 0.5]

Every estimator is run plain, with the scores as the order of its draws (PROSAC), and for poses also as
`Matches.pose` does it: minding planes and refined. Intervals are 95 % bootstrap intervals over pairs; pairs
that share photos are not independent, so they are rather too narrow. The last column compares pair by pair
with the first row. `--outliers SHARE` keeps 300 matches of a pair and adds wrong ones until SHARE of all are
wrong, their scores drawn from those of the pair, lowered at random.

SupeRANSAC is left out where it is not installed (pip install 'coam[superansac]').
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.evaluation.benchmarks.hpatches import known_homography, load_hpatches
from coam.evaluation.benchmarks.posed_pairs import load_posed_pairs
from coam.evaluation.metrics.bootstrap import bootstrap, compare_paired
from coam.evaluation.metrics.measures import error_auc
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.predictions import PredictionStore
from coam.geometry.homography import corner_error
from coam.geometry.pose import rotation_error, translation_error
from coam.geometry.robust import RansacOptions, estimate_homography, relative_pose
from coam.store.documents import read_json
from coam.types import Matches

NAMES = ("opencv", "poselib", "superansac")
KEPT = 300  # matches of a pair beside which wrong ones are put
Errors = Callable[[EvaluationPair, Matches, RansacOptions], float]


def cached_matches(pairs: Sequence[EvaluationPair], folder: Path) -> list[Matches]:
    """The matches that `coam eval` left in `folder`."""
    identity = read_json(folder / "predictions.json", dict, "make it with coam eval")
    identity.pop("format")
    return list(PredictionStore(folder, identity).read(pairs))


def with_outliers(matches: Matches, share: float, rng: np.random.Generator) -> Matches:
    """300 of the matches and so many wrong ones that `share` of all are wrong."""
    chosen = matches.select(np.sort(rng.permutation(len(matches))[:KEPT]))
    count = round(len(chosen) * share / (1 - share))
    wrong0, wrong1 = (
        rng.uniform(0, 1, (count, 2)).astype(np.float32) * np.float32(size)
        for size in (matches.size0, matches.size1)
    )
    scores = rng.choice(matches.scores, count) * rng.uniform(0.2, 1.0, count).astype(np.float32)
    none = np.full(count, -1)
    wrong = replace(chosen, points0=wrong0, points1=wrong1, scores=scores, ids0=none, ids1=none)
    return Matches.join([chosen, wrong])


def pose_error(pair: EvaluationPair, matches: Matches, options: RansacOptions) -> float:
    """Larger of rotation and translation error in degrees."""
    assert pair.pose is not None
    cameras = pair.intrinsics0, pair.intrinsics1
    found = relative_pose(matches.points0, matches.points1, *cameras, options, matches.scores)
    if found is None:
        return float("inf")
    turn = rotation_error(found.rotation, pair.pose[:3, :3])
    return max(turn, translation_error(found.translation, pair.pose[:3, 3]))


def homography_error(pair: EvaluationPair, matches: Matches, options: RansacOptions) -> float:
    """Mean error of the four corners in pixels of photo 1."""
    found = estimate_homography(matches.points0, matches.points1, options, matches.scores)
    return corner_error(None if found is None else found.matrix, known_homography(pair), matches.size0)


def table(
    pairs: Sequence[EvaluationPair],
    matches: Sequence[Matches],
    error: Errors,
    variants: dict[str, RansacOptions],
    limits: Sequence[float],
) -> list[str]:
    """Lines of Markdown: one row for each variant, AUC at the limits."""
    lines = [
        "| estimator | " + " | ".join(f"AUC@{limit:g}" for limit in limits)
        + f" | AUC@{limits[-2]:g} against the first | ms a pair |",
        "|---" * (len(limits) + 3) + "|",
    ]  # fmt: skip
    names = [pair.name for pair in pairs]
    first: npt.NDArray[np.float64] | None = None
    for label, options in variants.items():
        start = time.perf_counter()
        errors = np.asarray([error(*each, options) for each in zip(pairs, matches, strict=True)])
        seconds = time.perf_counter() - start
        cells = []
        for limit in limits:
            value = bootstrap(lambda index, at=limit, e=errors: error_auc(e[index], at), names)
            cells.append(f"{100 * value.value:.1f} ({100 * value.low:.0f} to {100 * value.high:.0f})")
        against = "-"
        if first is None:
            first = errors
        else:
            difference = compare_paired(
                lambda index, e=first: error_auc(e[index], limits[-2]),
                lambda index, e=errors: error_auc(e[index], limits[-2]),
                names,
            ).difference
            against = (
                f"{100 * difference.value:+.1f} ({100 * difference.low:+.1f} to {100 * difference.high:+.1f})"
            )
        lines.append(f"| {label} | {' | '.join(cells)} | {against} | {1000 * seconds / len(pairs):.0f} |")
    return lines


def variants(threshold: float, *, poses: bool) -> dict[str, RansacOptions]:
    """What is compared, by name; the default of `Matches` first."""
    plain = {
        (f"{name}, PROSAC" if prosac else name): RansacOptions(threshold, estimator=name, prosac=prosac)
        for name in NAMES
        if name != "superansac" or find_spec("pysuperansac")
        for prosac in (False, True)
    }
    if not poses:
        return {"poselib, PROSAC": plain.pop("poselib, PROSAC")} | plain
    minding = {f"{label}, planes": replace(options, planes=True) for label, options in plain.items()}
    return {"poselib, PROSAC, planes": minding.pop("poselib, PROSAC, planes")} | plain | minding


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in ("--posed", "--homographies"):
        parser.add_argument(name, nargs=2, type=Path, action="append", default=[], metavar=("ROOT", "FOLDER"))
    parser.add_argument("--outliers", type=float, nargs="*", default=[0.0])
    given = parser.parse_args()
    for root, folder in given.posed:
        compare(load_posed_pairs(root), root, folder, given.outliers, pose_error, 1.0, (1, 3, 5, 10))
    for root, folder in given.homographies:
        compare(load_hpatches(root), root, folder, given.outliers, homography_error, 3.0, (1, 3, 5, 10))


def compare(
    pairs: list[EvaluationPair],
    root: Path,
    folder: Path,
    shares: Sequence[float],
    error: Errors,
    threshold: float,
    limits: Sequence[float],
) -> None:
    """Print the tables of one set of pairs."""
    cached = cached_matches(pairs, folder)
    for share in shares:
        rng = np.random.default_rng(0)
        matches = [with_outliers(m, share, rng) for m in cached] if share else cached
        wrong = f"{share:.0%} wrong matches" if share else "matches as found"
        print(f"\n{root.name}: {len(pairs)} pairs, threshold {threshold:g} px, {wrong}\n")
        chosen = variants(threshold, poses=error is pose_error)
        print("\n".join(table(pairs, matches, error, chosen, limits)), flush=True)


if __name__ == "__main__":
    main()

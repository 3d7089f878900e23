"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from coam.errors import ConfigError
from coam.evaluation import hpatches, invariance, megadepth, pair_score, posed_pairs, stylization, wxbs
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.runner import Curve, PairBenchmark
from coam.evaluation.summary import Row

CurveMaker = Callable[[Sequence[EvaluationPair], Sequence[Row]], Curve]


def _by_subset(pairs: Sequence[EvaluationPair], rows: Sequence[Row]) -> dict[str, list[Row]]:
    groups: dict[str, list[Row]] = {"all": list(rows)}
    for pair, row in zip(pairs, rows, strict=True):
        for subset in pair.subsets:
            groups.setdefault(subset, []).append(row)
    return groups


def mean_curves(key: str, thresholds: Sequence[float]) -> CurveMaker:
    """subset -> (threshold, mean over pairs of the row entry "key@threshold")."""

    def curves(pairs: Sequence[EvaluationPair], rows: Sequence[Row]) -> Curve:
        return {
            subset: [(t, float(np.mean([row[f"{key}@{t:g}"] for row in members]))) for t in thresholds]
            for subset, members in _by_subset(pairs, rows).items()
        }

    return curves


def recall_curves(key: str, limit: float, steps: int = 40) -> CurveMaker:
    """subset -> (error, share of pairs with at most that error)."""

    def curves(pairs: Sequence[EvaluationPair], rows: Sequence[Row]) -> Curve:
        xs = np.linspace(0, limit, steps + 1)
        return {
            subset: [(float(x), float(np.mean([row[key] <= x for row in members]))) for x in xs]
            for subset, members in _by_subset(pairs, rows).items()
        }

    return curves


HPATCHES = PairBenchmark(
    name="hpatches",
    protocol=hpatches.__doc__ or "",
    score=hpatches.score_hpatches,
    figures=hpatches.FIGURES,
    rank_by="mma@3",
    rank_higher_is_better=True,
    match_errors=hpatches.match_errors_hpatches,
    correct_below=3.0,
    curves=mean_curves("mma", hpatches.THRESHOLDS),
    curve_axes=("threshold in pixels", "mean matching accuracy"),
    settings={"estimator": "opencv", "threshold": 3.0},
)

POSED_PAIRS = PairBenchmark(
    name="posed-pairs",
    protocol=posed_pairs.__doc__ or "",
    score=posed_pairs.score_pose,
    figures=posed_pairs.FIGURES,
    rank_by="pose_error",
    rank_higher_is_better=False,
    match_errors=posed_pairs.match_errors_pose,
    correct_below=3.0,
    curves=recall_curves("pose_error", 20.0),
    curve_axes=("pose error in degrees", "share of pairs"),
    settings={"estimator": "opencv", "threshold": 1.0},
)

MEGADEPTH = replace(POSED_PAIRS, name="megadepth", protocol=megadepth.__doc__ or "")

WXBS = PairBenchmark(
    name="wxbs",
    protocol=wxbs.__doc__ or "",
    score=wxbs.score_wxbs,
    figures=wxbs.FIGURES,
    rank_by="mAA@10",
    rank_higher_is_better=True,
    match_errors=wxbs.match_errors_wxbs,
    correct_below=5.0,
    curves=mean_curves("recall", wxbs.THRESHOLDS),
    curve_axes=("threshold in pixels", "epipolar recall"),
    settings={"estimator": "opencv", "threshold": 1.0},
)

PAIR_SCORE = PairBenchmark(
    name="pair-score",
    protocol=pair_score.__doc__ or "",
    score=pair_score.score_pair_score,
    figures=pair_score.FIGURES,
    rank_by="wrongness",
    rank_higher_is_better=False,
    curves=pair_score.pair_score_curves,
    curve_axes=("false positives, or predicted probability", "true positives, or share of overlaps"),
)

BENCHMARKS: dict[str, PairBenchmark] = {
    b.name: b
    for b in (
        HPATCHES,
        POSED_PAIRS,
        MEGADEPTH,
        WXBS,
        PAIR_SCORE,
        invariance.INVARIANCE,
        stylization.STYLIZATION,
    )
}


def find_benchmark(name: str) -> PairBenchmark:
    """The benchmark of that name."""
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]

"""The benchmarks by name."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from coam.errors import ConfigError
from coam.evaluation import hpatches, posed_pairs
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


def mma_curves(pairs: Sequence[EvaluationPair], rows: Sequence[Row]) -> Curve:
    """subset -> (threshold in px, MMA)."""
    return {
        subset: [(t, float(np.mean([row[f"mma@{t:g}"] for row in members]))) for t in hpatches.THRESHOLDS]
        for subset, members in _by_subset(pairs, rows).items()
    }


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
    curves=mma_curves,
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

BENCHMARKS: dict[str, PairBenchmark] = {b.name: b for b in (HPATCHES, POSED_PAIRS)}


def find_benchmark(name: str) -> PairBenchmark:
    """The benchmark of that name."""
    if name not in BENCHMARKS:
        raise ConfigError(f"there is no benchmark {name!r}; choose one of {', '.join(BENCHMARKS)}")
    return BENCHMARKS[name]



"""Overlap classification: do two photos show the same place? ROC and calibration of `Matches.overlap`.

Data, either of: ROOT/pairs.txt with lines "name0 name1 1" (same place) or "... 0" (different places); or a
folder in HPatches layout, where the pairs of a sequence are the positives and image 1 of a sequence against
image k of the next sequence, for every k, are as many negatives.

Figures: area under the ROC curve; false-positive rate at the threshold with a true-positive rate of 95 %;
accuracy at 0.5; expected calibration error in ten bins (the gap between what the score promises and what
happens). A matcher without a calibrated score (overlap is nan) is ranked by its number of matches, and only
the first two are given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.metrics.measures import calibration, fpr_at_tpr, roc_auc, roc_curve
from coam.evaluation.metrics.tables import Curves, Metric, Row, Summary, Table
from coam.evaluation.pairs import Array, EvaluationPair, listed_lines, photo_below
from coam.evaluation.runner import Benchmark
from coam.types import Matches

SAME, DIFFERENT = "same place", "different places"


def load_pair_score(root: Path) -> list[EvaluationPair]:
    """Pairs with a yes or no; from pairs.txt where there is one, else from a folder in HPatches layout."""
    listing = root / "pairs.txt"
    if listing.is_file():
        return _load_listing(root, listing)
    positives = load_hpatches(root)
    sequences = list(dict.fromkeys(pair.sequence for pair in positives))
    if len(sequences) < 2:
        raise DataError(f"{root} holds one sequence only; pairs of different places need at least two")
    firsts = {pair.sequence: pair.image0 for pair in positives}
    before = dict(zip(sequences, [sequences[-1], *sequences], strict=False))
    negatives = [
        EvaluationPair(
            name=f"{before[pair.sequence]}/1-{pair.sequence}/{pair.name.split('-')[-1]}",
            image0=firsts[before[pair.sequence]],
            image1=pair.image1,
            sequence=before[pair.sequence],
            subsets=(DIFFERENT,),
            overlaps=False,
        )
        for pair in positives
    ]
    same = [EvaluationPair(p.name, p.image0, p.image1, p.sequence, (SAME,), overlaps=True) for p in positives]
    return sorted([*same, *negatives], key=lambda pair: pair.sequence)


def _load_listing(root: Path, listing: Path) -> list[EvaluationPair]:
    pairs = []
    for where, words in listed_lines(listing):
        if len(words) != 3 or words[2] not in ("0", "1"):
            raise DataError(f"{where}: wanted name0 name1 and 1 (same place) or 0 (different)")
        image0, image1 = (photo_below(root, name, where) for name in words[:2])
        same = words[2] == "1"
        subsets = (SAME if same else DIFFERENT,)
        name = f"{words[0]} {words[1]}"
        pairs.append(EvaluationPair(name, image0, image1, words[0], subsets, overlaps=same))
    if not pairs:
        raise DataError(f"{listing.name} lists no pair")
    return pairs


def score_pair_score(pair: EvaluationPair, matches: Matches) -> Row:
    """The score of one pair, its label (`truth`) and the absolute error between the two."""
    truth = 1.0 if pair.overlaps else 0.0
    return {
        "overlap": matches.overlap,
        "truth": truth,
        "matches": float(len(matches)),
        "absolute_error": abs(matches.overlap - truth),
    }


def _scores(table: Table) -> tuple[Array, Array, bool]:
    """Scores, labels (0 or 1) and whether the scores are probabilities."""
    calibrated = not np.isnan(table["overlap"]).any()
    return table["overlap" if calibrated else "matches"], table["truth"], calibrated


def _of_scores(figure: Callable[[Array, Array], float], of_probabilities: bool = False) -> Summary:
    """A figure of scores (N,) and labels (N,); nan where it needs probabilities and there are none."""

    def summary(table: Table) -> float:
        scores, truth, calibrated = _scores(table)
        return figure(scores, truth) if calibrated or not of_probabilities else float("nan")

    return summary


# The first two are nan where all pairs have one label.
area_under_roc = _of_scores(roc_auc)
fpr_at_95_tpr = _of_scores(partial(fpr_at_tpr, wanted=0.95))
accuracy = _of_scores(lambda scores, truth: float(np.mean((scores >= 0.5) == (truth > 0.5))), True)
calibration_error = _of_scores(lambda scores, truth: calibration(scores, truth)[1], True)
mean_score = _of_scores(lambda scores, truth: float(np.mean(scores)))


def pair_score_curves(pairs: Sequence[EvaluationPair], rows: Sequence[Row]) -> Curves:
    """The ROC curve, and the reliability curve where the score is a probability."""
    scores, truth, calibrated = _scores(Table.of(rows))
    fpr, tpr, _ = roc_curve(scores, truth)
    curves = {"ROC": [(float(x), float(y)) for x, y in zip(fpr, tpr, strict=True)]}
    if calibrated:
        bins, _ = calibration(scores, truth)
        curves["reliability"] = [(b["predicted"], b["observed"]) for b in bins]
    return curves


PAIR_SCORE = Benchmark(
    name="pair-score",
    load=load_pair_score,
    score=score_pair_score,
    metrics=(
        Metric("ROC AUC", area_under_roc, "share", headline=True),
        Metric("FPR at 95 % TPR", fpr_at_95_tpr, "share", headline=True, higher_is_better=False),
        Metric("accuracy at 0.5", accuracy, "share", headline=True),
        Metric("calibration error", calibration_error, "share", headline=True, higher_is_better=False),
        Metric("mean score", mean_score, "value"),
    ),
    rank_by="absolute_error",
    rank_higher_is_better=False,
    curves=pair_score_curves,
    curve_axes=("false positives, or predicted probability", "true positives, or share of overlaps"),
)

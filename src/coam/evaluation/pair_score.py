"""Do these two photos show the same place? ROC and calibration of a matcher's `overlap`.

Data, either of: ROOT/pairs.txt with lines "name0 name1 1" (same place) or "... 0" (different places); or a
folder in HPatches layout, where the pairs of a sequence are the positives and image 1 of a sequence against
image k of the next sequence, for every k, are as many negatives.

Figures: area under the ROC curve, share of wrong pairs that pass at the threshold that keeps 95 % of the true
ones, share of right verdicts at 0.5, expected calibration error in ten bins (the gap between what the score
promises and what happens). A matcher without a calibrated score (overlap is nan) is ranked by its number of
matches, and only the first two are given.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.evaluation.hpatches import load_hpatches
from coam.evaluation.metrics import calibration, false_positives_at, roc_auc, roc_curve
from coam.evaluation.pairs import Array, EvaluationPair
from coam.evaluation.summary import Figure, Row, Table
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
    negatives = [
        EvaluationPair(
            name=f"{_before(sequences, pair.sequence)}/1-{pair.sequence}/{pair.name.split('-')[-1]}",
            image0=firsts[_before(sequences, pair.sequence)],
            image1=pair.image1,
            sequence=_before(sequences, pair.sequence),
            subsets=(DIFFERENT,),
            overlaps=False,
        )
        for pair in positives
    ]
    same = [EvaluationPair(p.name, p.image0, p.image1, p.sequence, (SAME,), overlaps=True) for p in positives]
    return sorted([*same, *negatives], key=lambda pair: pair.sequence)


def _before(sequences: Sequence[str], name: str) -> str:
    return sequences[sequences.index(name) - 1]


def _load_listing(root: Path, listing: Path) -> list[EvaluationPair]:
    pairs = []
    for number, line in enumerate(listing.read_text().splitlines(), start=1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 3 or words[2] not in ("0", "1"):
            raise DataError(
                f"pairs.txt line {number}: wanted name0 name1 and 1 (same place) or 0 (different)"
            )
        for name in words[:2]:
            if not (root / name).is_file():
                raise DataError(f"pairs.txt line {number}: the photo {name} is missing below --root")
        same = words[2] == "1"
        pairs.append(
            EvaluationPair(
                name=f"{words[0]} {words[1]}",
                image0=root / words[0],
                image1=root / words[1],
                sequence=words[0],
                subsets=(SAME if same else DIFFERENT,),
                overlaps=same,
            )
        )
    if not pairs:
        raise DataError(f"{listing.name} lists no pair")
    return pairs


def score_pair_score(pair: EvaluationPair, matches: Matches) -> Row:
    """The verdict of one pair beside the truth; `wrongness` is how far the score is from it."""
    truth = 1.0 if pair.overlaps else 0.0
    wrongness = abs(matches.overlap - truth)
    return {
        "overlap": matches.overlap,
        "truth": truth,
        "matches": float(len(matches)),
        "wrongness": wrongness,
    }


def _scores(table: Table) -> tuple[Array, Array, bool]:
    """Scores, truths (as 0 and 1) and whether the scores are probabilities."""
    calibrated = not np.isnan(table["overlap"]).any()
    return table["overlap" if calibrated else "matches"], table["truth"], calibrated


def area_under_roc(table: Table) -> float:
    """Area under the ROC curve; nan where only one kind of pair is there."""
    scores, truth, _ = _scores(table)
    return roc_auc(scores, truth)


def wrong_pairs_that_pass(table: Table) -> float:
    """Share of wrong pairs above the threshold that keeps 95 % of the true ones; nan without both kinds."""
    scores, truth, _ = _scores(table)
    return false_positives_at(scores, truth, 0.95)


def accuracy(table: Table) -> float:
    """Share of right verdicts when 0.5 decides."""
    scores, truth, calibrated = _scores(table)
    return float(np.mean((scores >= 0.5) == (truth > 0.5))) if calibrated else float("nan")


def calibration_error(table: Table) -> float:
    """Expected calibration error in ten bins."""
    scores, truth, calibrated = _scores(table)
    return calibration(scores, truth)[1] if calibrated else float("nan")


def mean_score(table: Table) -> float:
    """Mean of the score."""
    return float(np.mean(_scores(table)[0]))


def pair_score_curves(
    pairs: Sequence[EvaluationPair], rows: Sequence[Row]
) -> dict[str, list[tuple[float, float]]]:
    """The ROC curve, and the reliability curve where the score is a probability."""
    scores, truth, calibrated = _scores(Table.of(rows))
    fpr, tpr, _ = roc_curve(scores, truth)
    curves = {"ROC": [(float(x), float(y)) for x, y in zip(fpr, tpr, strict=True)]}
    if calibrated:
        bins, _ = calibration(scores, truth)
        curves["reliability"] = [(b["predicted"], b["observed"]) for b in bins]
    return curves


FIGURES: tuple[Figure, ...] = (
    Figure("ROC AUC", area_under_roc, "share", headline=True),
    Figure("wrong at 95 % of true", wrong_pairs_that_pass, "share", headline=True, higher_is_better=False),
    Figure("accuracy at 0.5", accuracy, "share", headline=True),
    Figure("calibration error", calibration_error, "share", headline=True, higher_is_better=False),
    Figure("mean score", mean_score, "value"),
)

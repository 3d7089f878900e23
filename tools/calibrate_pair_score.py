"""Fit the pair score of a model and write it into the card of its weights file.

    python tools/calibrate_pair_score.py WEIGHTS PAIRS --output WEIGHTS.new

PAIRS is a folder as `coam eval pair-score` takes it (tools/make_pair_list.py makes one), one folder in it a
place. Half of the places are held out, and the figures printed are those of the held-out half; the
coefficients are fitted to all pairs.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from logistic_regression import logistic_regression

from coam.evaluation.benchmarks.pair_score import load_pair_score
from coam.evaluation.pairs import EvaluationPair
from coam.matcher import load_matcher
from coam.matching.pair_score import overlap_probability
from coam.models.registry import load_model, save_model


def measure(
    weights: Path, pairs: list[EvaluationPair], looks: str, cache: Path
) -> tuple[np.ndarray, np.ndarray]:
    """Statistics (N, 4) and number of matches (N,) of each pair; `cache` (JSON lines) is used and kept."""
    known = {}
    if cache.is_file():
        entries = map(json.loads, cache.read_text().splitlines())
        known = {(e["pair"], e["looks"]): (e["statistics"], e["matches"]) for e in entries}
    # What is measured comes before the alignment, which only moves matches.
    matcher = load_matcher(weights, looks=looks, alignment="none")
    for pair in pairs:
        if (pair.name, looks) in known:
            continue
        matches = matcher.match(pair.image0, pair.image1)
        known[pair.name, looks] = (matches.meta["statistics"], len(matches))
        statistics, count = known[pair.name, looks]
        entry = {"pair": pair.name, "looks": looks, "statistics": statistics, "matches": count}
        with cache.open("a") as file:
            file.write(json.dumps(entry) + "\n")
    found = [known[pair.name, looks] for pair in pairs]
    return np.array([statistics for statistics, _ in found]), np.array([matches for _, matches in found])


def fit_calibration(
    statistics: npt.ArrayLike, same_place: npt.ArrayLike, ridge: float = 1e-2
) -> dict[str, Any]:
    """Logistic regression of `same_place` (N,) on `statistics` (N, 4).

    The two classes weigh the same whatever their numbers.
    """
    x, y = np.asarray(statistics, dtype=np.float64), np.asarray(same_place, dtype=np.float64)
    weight = np.where(y > 0.5, 0.5 / max(y.sum(), 1), 0.5 / max((1 - y).sum(), 1))
    weights, bias = logistic_regression(x, y, weight, ridge)
    return {"weights": weights.tolist(), "bias": bias}


def held_out_figures(probability: np.ndarray, label: np.ndarray) -> dict[str, float]:
    """At the threshold that keeps 95 % of the true pairs: how many wrong ones pass."""
    threshold = float(np.quantile(probability[label == 1], 0.05))
    wrong = probability[label == 0]
    return {
        "true_pairs": int((label == 1).sum()),
        "wrong_pairs": len(wrong),
        "threshold_at_95_percent": round(threshold, 3),
        "wrong_that_pass": round(float((wrong >= threshold).mean()), 4),
        "accuracy_at_half": round(float(((probability >= 0.5) == (label == 1)).mean()), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cache", type=Path, help="kept statistics; default: beside --output")
    parser.add_argument("--card", type=Path, help="JSON file merged into the card")
    options = parser.parse_args()
    pairs = load_pair_score(options.pairs)
    label = np.array([int(bool(pair.overlaps)) for pair in pairs])
    test = np.array([zlib.crc32(pair.image0.parent.name.encode()) % 2 == 0 for pair in pairs])
    # One calibration for one look and for many: fitted to both.
    cache = options.cache or options.output.with_suffix(".jsonl")
    measured = {looks: measure(options.weights, pairs, looks, cache) for looks in ("once", "search")}
    everything = np.concatenate([statistics for statistics, _ in measured.values()])
    twice = np.concatenate([label, label])
    on_train = fit_calibration(everything[~np.tile(test, 2)], twice[~np.tile(test, 2)])
    figures = {}
    for looks, (statistics, matches) in measured.items():
        p = np.array([overlap_probability(list(row), on_train) for row in statistics])
        figures[looks] = held_out_figures(np.where(matches > 0, p, 0.0)[test], label[test])
    print(json.dumps(figures, indent=2))
    file = load_model(options.weights)
    card = {**file.card, **(json.loads(options.card.read_text()) if options.card else {})}
    card["pair_score"] = {**fit_calibration(everything, twice), "held_out": figures}
    save_model(file.model, options.output, "cdunet-lite1", card)


if __name__ == "__main__":
    main()

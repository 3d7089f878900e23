"""Fit the pair score of a model and write it into the card of its weights file.

    python tools/calibrate_pair_score.py WEIGHTS PAIRS --output WEIGHTS.new

PAIRS is a text file, one pair per line: `1 photo photo` for two photos of one place, `0 photo photo` for two
of different places; `#` starts a comment; an optional fourth word names the place. Half of the places are
held out, and the figures printed are those of the held-out half; the coefficients are fitted to all pairs.
"""

from __future__ import annotations

import argparse
import json
import zlib
from pathlib import Path

import numpy as np

from coam.matcher import load_matcher
from coam.matching.pair_score import fit_calibration, overlap_probability
from coam.models.registry import load_model, save_model


def read_pairs(path: Path) -> list[tuple[int, str, str, str]]:
    """(label, photo, photo, place) of each line."""
    pairs = []
    for line in path.read_text().splitlines():
        words = line.split("#")[0].split()
        if words:
            pairs.append((int(words[0]), words[1], words[2], words[3] if len(words) > 3 else words[1]))
    return pairs


def measure(weights: Path, pairs: list[tuple[int, str, str, str]], cache: Path) -> list[list[float]]:
    """Statistics of each pair; what is in `cache` (JSON lines) is not computed again."""
    known = {}
    if cache.is_file():
        known = {(e["a"], e["b"]): e["stat"] for e in map(json.loads, cache.read_text().splitlines())}
    matcher = None
    for _, a, b, _ in pairs:
        if (a, b) in known:
            continue
        matcher = matcher or load_matcher(weights)
        known[a, b] = matcher.match(a, b).meta["statistics"]
        with cache.open("a") as file:
            file.write(json.dumps({"a": a, "b": b, "stat": known[a, b]}) + "\n")
    return [known[a, b] for _, a, b, _ in pairs]


def held_out_figures(statistics: np.ndarray, label: np.ndarray, test: np.ndarray) -> dict[str, float]:
    """At the threshold that keeps 95 % of the true pairs of the held-out half: how many wrong ones pass."""
    calibration = fit_calibration(statistics[~test], label[~test])
    p = np.array([overlap_probability(list(row), calibration) for row in statistics])
    threshold = float(np.quantile(p[test & (label == 1)], 0.05))
    wrong = p[test & (label == 0)]
    return {
        "true_pairs": int((test & (label == 1)).sum()),
        "wrong_pairs": len(wrong),
        "threshold_at_95_percent": threshold,
        "wrong_that_pass": float((wrong >= threshold).mean()),
        "accuracy_at_half": float(((p >= 0.5) == (label == 1))[test].mean()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("weights", type=Path)
    parser.add_argument("pairs", type=Path)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--cache", type=Path, default=Path("pair_statistics.jsonl"))
    parser.add_argument("--card", type=Path, help="JSON file merged into the card")
    options = parser.parse_args()
    pairs = read_pairs(options.pairs)
    statistics = np.array(measure(options.weights, pairs, options.cache))
    label = np.array([pair[0] for pair in pairs])
    test = np.array([zlib.crc32(pair[3].encode()) % 2 == 0 for pair in pairs])
    figures = held_out_figures(statistics, label, test)
    print(json.dumps(figures, indent=2))
    file = load_model(options.weights)
    card = {**file.card, **(json.loads(options.card.read_text()) if options.card else {})}
    card["pair_score"] = {**fit_calibration(statistics, label), "held_out": figures}
    save_model(file.model, options.output, "cdunet-lite1", card)


if __name__ == "__main__":
    main()

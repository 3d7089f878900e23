"""Fit the probability of a match: the coefficients of `coam.geometry.match_probability.ProbabilityOptions`.

    python tools/calibrate_matches.py MATCHES --warps ROOT ... --homographies ROOT ...

MATCHES and the sets are those of tools/compare_alignment.py, whose matches are reused: pairs of one place. A
match is right within 3 pixels of the truth: of photos up to the matcher's resolution, of larger ones of the
resized photo. A set whose truth is less exact is named with `--truth-error NAME=PIXELS`, which is added.
Every set weighs the same, and so does every pair of a set. What is printed was never fitted to: each set is
predicted from all the others.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
from compare_alignment import sets_of, stored
from logistic_regression import newton, probability

from coam.evaluation.pairs import Array
from coam.geometry.match_probability import log_score
from coam.types import Matches

RIGHT = 3.0  # pixels
RIDGE = 1e-4
RESOLUTION = 800  # of the default matcher
BINS = (0.0, 0.1, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0)


@dataclass(frozen=True)
class Samples:
    """Matches of one set: what is known of them, whether they are right, and how much each counts."""

    name: str
    features: Array  # (N,) logarithms of scores
    right: Array  # (N,) 0 or 1
    weight: Array  # (N,), sum 1


def samples_of(name: str, found: list[tuple[Matches, Array]], truth_error: float) -> Samples:
    """found: matches of each pair and their errors (N,), nan where the truth is not known."""
    features, right, weight = [], [], []
    for matches, errors in found:
        known = ~np.isnan(errors)
        if not known.any():
            continue
        limit = RIGHT * max(1.0, max(matches.size1) / RESOLUTION) + truth_error
        features.append(log_score(matches.scores)[known])
        right.append(errors[known] < limit)
        weight.append(np.full(known.sum(), 1 / known.sum()))
    total = np.concatenate(weight)
    return Samples(name, np.concatenate(features), np.concatenate(right).astype(float), total / total.sum())


def fitted(sets: list[Samples]) -> Array:
    """Weight and bias (2,)."""
    x, y, weight = (
        np.concatenate(parts) for parts in zip(*((s.features, s.right, s.weight) for s in sets), strict=True)
    )
    return newton(x[:, None], y, weight / weight.sum(), RIDGE)


def predicted(sets: Samples, beta: Array) -> Array:
    return probability(beta[0] * sets.features + beta[1])


def table(held_out: list[tuple[Samples, Array]]) -> list[str]:
    """Reliability of all sets together, and the gap of each."""
    probability = np.concatenate([p for _, p in held_out])
    right = np.concatenate([s.right for s, _ in held_out])
    weight = np.concatenate([s.weight for s, _ in held_out]) / len(held_out)
    lines = ["| promised | mean promised | right | share of matches |", "|---|---|---|---|"]
    for low, high in pairwise(BINS):
        inside = (probability >= low) & ((probability < high) | (high == BINS[-1]))
        if inside.any():
            share = weight[inside].sum()
            means = [float((weight * value)[inside].sum() / share) for value in (probability, right)]
            lines.append(f"| {low:g} to {high:g} | {means[0]:.3f} | {means[1]:.3f} | {share:.3f} |")
    lines += ["", "| set, predicted from the others | mean promised | right |", "|---|---|---|"]
    for chosen, own in held_out:
        lines.append(f"| {chosen.name} | {chosen.weight @ own:.3f} | {chosen.weight @ chosen.right:.3f} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matches", type=Path)
    for name in ("--warps", "--homographies"):
        parser.add_argument(name, nargs="*", type=Path, default=[], metavar="ROOT")
    parser.add_argument("--truth-error", nargs="*", default=[], metavar="NAME=PIXELS")
    given = parser.parse_args()
    given.posed = []
    inexact = {
        name: float(pixels) for name, _, pixels in (text.rpartition("=") for text in given.truth_error)
    }
    sets = []
    for chosen in sets_of(given):
        assert chosen.errors is not None
        found = stored(given.matches, chosen)
        errors = [chosen.errors(*each) for each in zip(chosen.pairs, found, strict=True)]
        sets.append(
            samples_of(chosen.name, list(zip(found, errors, strict=True)), inexact.get(chosen.name, 0.0))
        )
    held_out = [(own, predicted(own, fitted([s for s in sets if s is not own]))) for own in sets]
    print("\n".join(table(held_out)))
    beta = fitted(sets)
    print(f"weight {beta[0]:.3f}, bias {beta[1]:.3f}")


if __name__ == "__main__":
    main()

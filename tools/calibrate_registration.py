"""The probability of `coam register` that a result is right: fitted to pairs with truth and to wrong pairs.

    python tools/registration_table.py DATA OUT --groups ALIGNED_VAL
    python tools/calibrate_registration.py OUT

Each pair of OUT/pairs is a true one, whose landmarks decide whether the registration is right; matches are
those of the table. Its first image with the second image of another place of the same kind is a wrong one;
their matches are kept in OUT/calibration. Prints how often the probability in the package is right, then
WEIGHTS and BIAS of `coam.registration.quality` fitted anew, and how these do on pairs left out of the fit (by
scene, five parts).
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from coam.evaluation.benchmarks.registration import REGISTRATION, load_registration
from coam.evaluation.matchers.by_name import MatcherSpec, find_matcher
from coam.evaluation.pairs import EvaluationPair, limit_pairs
from coam.evaluation.predictions import PredictionStore, predict
from coam.geometry.homography import fit_homography
from coam.geometry.motions import misses
from coam.progress import progress
from coam.registration.fitting import FitOptions, fit_transform
from coam.registration.quality import (
    BIAS,
    FEATURES,
    RIGHT_PIXELS,
    RIGHT_SHARE,
    SURE,
    WEIGHTS,
    features,
    judge,
    relative_error,
)
from coam.types import Matches

RIDGE = 0.3  # of the weights of standardised features: some pairs are told apart perfectly
MODEL = "homography"  # what `auto` begins with; local models take long and have nearly the same features
ONE_PLACE = ("courtyard-day", "courtyard-night")  # kinds whose pairs all show the same place


def wrong_pairs(pairs: list[EvaluationPair]) -> list[EvaluationPair]:
    """Every pair's first image with the second one of the next pair of its kind."""
    kinds: dict[str, list[EvaluationPair]] = {}
    for pair in pairs:
        kinds.setdefault(pair.subsets[-1], []).append(pair)
    return [
        EvaluationPair(f"{a.name}--{b.name}", a.image0, b.image1, sequence=a.name, subsets=("wrong",))
        for kind, members in kinds.items()
        if kind not in ONE_PLACE and len(members) > 1
        for a, b in zip(members, members[1:] + members[:1], strict=True)
    ]


def matched(pairs: list[EvaluationPair], spec: MatcherSpec, folder: Path) -> Iterator[Matches]:
    """Matches of pairs, of which a folder of `coam eval registration` may hold some."""
    store = PredictionStore(folder, spec.identity | {"benchmark": REGISTRATION.name})
    with progress("matches", len(pairs), unit="pairs") as bar:
        predict(pairs, spec, store, progress=bar.advance)
    return store.read(pairs)


def row_of(matches: Matches, landmarks: np.ndarray | None) -> tuple[np.ndarray, bool] | None:
    """Features and whether the registration is right; None where there is no transform."""
    fit = fit_transform(matches.points0, matches.points1, matches.size1, FitOptions(model=MODEL))
    if fit is None:
        return None
    both = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    q = judge(fit, *both, (matches.size0, matches.size1), matches.overlap)
    error = relative_error(q.held_out_error, matches.size1)
    values = np.array(features(q.inliers, q.inlier_share, q.coverage, error, q.same_place))
    if landmarks is None:
        return values, False
    own = fit_homography(landmarks[:, :2], landmarks[:, 2:])
    slack = 0.0 if own is None else 2 * float(misses(own, landmarks[:, :2], landmarks[:, 2:]).mean())
    error = float(np.linalg.norm(fit.transform.points(landmarks[:, :2]) - landmarks[:, 2:], axis=1).mean())
    return values, error <= max(RIGHT_PIXELS, RIGHT_SHARE * max(matches.size1), slack)


def fit_logistic(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, float]:
    """Weights (F,) and bias of a ridge-regularised logistic regression, in units of the features."""
    mean, spread = x.mean(axis=0), x.std(axis=0) + 1e-9
    z = np.column_stack([(x - mean) / spread, np.ones(len(x))])
    w = np.zeros(z.shape[1])
    penalty = RIDGE * np.diag([1.0] * x.shape[1] + [0.0])
    for _ in range(100):
        p = probability(z, w, 0.0)
        gradient = z.T @ (p - y) + penalty @ w
        w -= np.linalg.solve((z * (p * (1 - p) + 1e-9)[:, None]).T @ z + penalty, gradient)
    weights = w[:-1] / spread
    return weights, float(w[-1] - weights @ mean)


def probability(x: np.ndarray, weights: np.ndarray, bias: float) -> np.ndarray:
    """Of rows of features (N, F)."""
    return 1 / (1 + np.exp(-np.clip(x @ weights + bias, -60, 60)))


def told(name: str, found: np.ndarray, right: np.ndarray) -> None:
    """Print how often probabilities are right, and how many pass the limits."""
    for limit in (0.5, SURE, 0.95):
        passed = found >= limit
        print(
            f"{name}, at {limit}: {int((passed & right).sum())} of {int(right.sum())} right ones pass, "
            f"{int((passed & ~right).sum())} of {int((~right).sum())} wrong ones"
        )
    print(f"{name}: Brier {float(np.mean((found - right) ** 2)):.4f}")


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("out", type=Path)
    parser.add_argument("-m", "--matcher", default="cdunet-lite1", help="a name or a .safetensors file")
    parser.add_argument("--limit", type=int, help="at most so many wrong pairs")
    parser.add_argument(
        "--right", nargs="*", default=[], help="names A--B of wrong pairs that are right after all"
    )
    options = parser.parse_args()
    spec = find_matcher(options.matcher)
    true = load_registration(options.out / "pairs")
    wrong = [pair for pair in wrong_pairs(true) if pair.name not in options.right]
    wrong = limit_pairs(wrong, options.limit)
    found = [
        *zip(true, matched(true, spec, options.out / "eval" / spec.name), strict=True),
        *zip(wrong, matched(wrong, spec, options.out / "calibration"), strict=True),
    ]
    rows, labels, scenes, names, nothing = [], [], [], [], 0
    for pair, matches in found:
        row = row_of(matches, pair.correspondences)
        if row is None:
            nothing += 1
            continue
        rows.append(row[0])
        labels.append(row[1])
        scenes.append(pair.sequence)
        names.append(pair.name)
    x, y = np.array(rows), np.array(labels)
    print(f"{len(y)} fits: {int(y.sum())} right, {int((~y).sum())} wrong; {nothing} without a transform")
    shipped = probability(x, np.array(WEIGHTS), BIAS)
    told("as shipped", shipped, y)
    number = {scene: index % 5 for index, scene in enumerate(dict.fromkeys(scenes))}
    part = np.array([number[scene] for scene in scenes])
    left_out = np.zeros(len(y))
    for fold in range(5):
        weights, bias = fit_logistic(x[part != fold], y[part != fold].astype(float))
        left_out[part == fold] = probability(x[part == fold], weights, bias)
    weights, bias = fit_logistic(x, y.astype(float))
    print("FEATURES =", FEATURES)
    print("WEIGHTS =", tuple(round(float(w), 3) for w in weights), "BIAS =", round(bias, 3))
    told("fitted anew, left out", left_out, y)
    for title, values in (("as shipped", shipped), ("left out", left_out)):
        for i in np.argsort(-np.abs(values - y))[:8]:
            print(json.dumps([title, names[i], round(float(values[i]), 3), bool(y[i])]))


if __name__ == "__main__":
    main()

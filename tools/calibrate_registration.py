"""The probability of `coam register` that a result is right: fitted to pairs with truth and to wrong pairs.

    coam eval registration --root TRUE... ; python tools/calibrate_registration.py MATCHES...

MATCHES are folders of files of matches KIND-A--B.npz (`Matches.save`) beside KIND/A, one pair of a
registration benchmark each (`--root FOLDER` holds the KINDs): A with itself is a true pair, whose landmarks
decide whether the registration is right; A's first image with B's second is a wrong one. Prints WEIGHTS and
BIAS of `coam.registration.quality`, and how they do on pairs left out of the fit (by scene, five parts).
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np

from coam.evaluation.benchmarks.registration import load_registration
from coam.geometry.homography import fit_homography
from coam.geometry.motions import misses
from coam.registration.fitting import FitOptions, fit_transform
from coam.registration.quality import FEATURES, RIGHT_PIXELS, RIGHT_SHARE, features, judge, relative_error
from coam.types import Matches

RIDGE = 0.3  # of the weights of standardised features: some pairs are told apart perfectly
MODELS = ("homography",)  # what `auto` begins with; local models take long and have nearly the same features


def row_of(matches: Matches, landmarks: np.ndarray | None, model: str) -> tuple[np.ndarray, bool] | None:
    """Features and whether the registration is right; None where there is no transform."""
    fit = fit_transform(matches.points0, matches.points1, matches.size1, FitOptions(model=model))
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
        p = 1 / (1 + np.exp(-z @ w))
        gradient = z.T @ (p - y) + penalty @ w
        w -= np.linalg.solve((z * (p * (1 - p) + 1e-9)[:, None]).T @ z + penalty, gradient)
    weights = w[:-1] / spread
    return weights, float(w[-1] - weights @ mean)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("matches", type=Path, nargs="+")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument(
        "--right", nargs="*", default=[], help="files A--B of wrong pairs that are right after all"
    )
    options = parser.parse_args()
    marks = {
        f"{kind.name}-{pair.name}": pair.correspondences
        for kind in sorted(options.root.iterdir())
        for pair in load_registration(kind)
    }
    rows, labels, scenes, names, nothing = [], [], [], [], 0
    for path in sorted(file for folder in options.matches for file in folder.glob("*--*.npz")):
        first, second = path.stem.split("--")
        if path.stem in options.right:
            continue
        true = first.rsplit("-", 1)[-1] == second
        matches = Matches.load(path)
        for model in MODELS:
            found = row_of(matches, marks[first] if true else None, model)
            if found is None:
                nothing += 1
                continue
            rows.append(found[0])
            labels.append(found[1])
            scenes.append(first)
            names.append(f"{path.stem} {model}" + ("" if true else " WRONG PAIR"))
    x, y = np.array(rows), np.array(labels, float)
    number = {scene: index % 5 for index, scene in enumerate(dict.fromkeys(scenes))}
    part = np.array([number[scene] for scene in scenes])
    left_out = np.zeros(len(y))
    for fold in range(5):
        weights, bias = fit_logistic(x[part != fold], y[part != fold])
        left_out[part == fold] = 1 / (1 + np.exp(-(x[part == fold] @ weights + bias)))
    weights, bias = fit_logistic(x, y)
    print(f"{len(y)} fits: {int(y.sum())} right, {int((1 - y).sum())} wrong; {nothing} without a transform")
    print("FEATURES =", FEATURES)
    print("WEIGHTS =", tuple(round(float(w), 3) for w in weights), "BIAS =", round(bias, 3))
    for limit in (0.5, 0.9):
        passed = left_out >= limit
        print(
            f"left out, at {limit}: {int((passed & (y == 1)).sum())} of {int(y.sum())} right ones pass, "
            f"{int((passed & (y == 0)).sum())} of {int((1 - y).sum())} wrong ones"
        )
    brier = float(np.mean((left_out - y) ** 2))
    print(f"left out: Brier {brier:.4f}")
    doubtful = [
        (names[i], round(float(left_out[i]), 3), bool(y[i])) for i in np.argsort(-np.abs(left_out - y))[:14]
    ]
    for line in doubtful:
        print(json.dumps(line))


if __name__ == "__main__":
    main()

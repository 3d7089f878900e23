"""The figures of the field as pure functions on arrays: hand in errors, get numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from coam.geometry.homography import apply_homography

Array = npt.NDArray[np.float64]


def transfer_errors(points0: npt.ArrayLike, points1: npt.ArrayLike, homography: npt.ArrayLike) -> Array:
    """Distance in pixels (N,) of points1 (N, 2) from points0 (N, 2) mapped into image 1 by the true
    homography.
    """
    mapped = apply_homography(homography, points0)
    with np.errstate(invalid="ignore"):
        distance = np.linalg.norm(mapped - np.asarray(points1, dtype=np.float64).reshape(-1, 2), axis=1)
    return np.asarray(np.nan_to_num(distance, nan=np.inf, posinf=np.inf))


def matching_accuracy(errors: npt.ArrayLike, thresholds: Sequence[float]) -> Array:
    """Share of matches with an error of at most each threshold, (T,). A pair without matches scores 0.

    This is one pair's entry of the mean matching accuracy (MMA) of Mikolajczyk and Schmid as D2-Net reports
    it: every match counts once in its pair, every pair counts once in the mean, however many matches it has.
    """
    values = np.asarray(errors, dtype=np.float64).reshape(-1)
    if len(values) == 0:
        return np.zeros(len(thresholds))
    return np.asarray([(values <= threshold).mean() for threshold in thresholds])


def error_auc(errors: npt.ArrayLike, thresholds: Sequence[float]) -> Array:
    """Area under the recall-against-error curve up to each threshold, divided by it, (T,), in [0, 1].

    The curve joins (0, 0) and (e_i, i / n) for the sorted errors by straight lines and runs flat from the
    last error below the threshold to the threshold (SuperGlue's rule, used by LoFTR and everyone since).
    Failures are inf.
    """
    values = np.sort(np.nan_to_num(np.asarray(errors, dtype=np.float64).reshape(-1), nan=np.inf))
    if len(values) == 0:
        return np.full(len(thresholds), np.nan)
    recall = np.arange(1, len(values) + 1) / len(values)
    x, y = np.concatenate([[0.0], values]), np.concatenate([[0.0], recall])
    areas = []
    for threshold in thresholds:
        last = int(np.searchsorted(x, threshold))
        xs, ys = np.append(x[:last], threshold), np.append(y[:last], y[last - 1])
        areas.append(float(np.trapezoid(ys, xs)) / threshold)
    return np.asarray(areas)


def accuracy_below(errors: npt.ArrayLike, threshold: float) -> float:
    """Share of errors strictly below the threshold; nan without errors."""
    values = np.asarray(errors, dtype=np.float64).reshape(-1)
    return float((values < threshold).mean()) if len(values) else float("nan")


def yfcc_map(errors: npt.ArrayLike, degrees: int, step: int = 5) -> float:
    """mAP by the convention of the YFCC100M tables (OANet): mean of the accuracies at 5, 10, ... `degrees`.

    So "mAP@5" is the accuracy at 5 degrees and "mAP@10" the mean of the accuracies at 5 and at 10 degrees.
    The error of a pair is the larger of its rotation and translation errors.
    """
    return float(np.mean([accuracy_below(errors, limit) for limit in range(step, degrees + 1, step)]))


def roc_curve(scores: npt.ArrayLike, positive: npt.ArrayLike) -> tuple[Array, Array, Array]:
    """False-positive rate, true-positive rate and threshold at each distinct score, from strict to lax, each
    (T,).
    """
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    order = np.argsort(-s, kind="stable")
    s, y = s[order], y[order]
    last_of_tie = np.append(np.nonzero(np.diff(s))[0], len(s) - 1)
    hits, alarms = np.cumsum(y)[last_of_tie], np.cumsum(~y)[last_of_tie]
    tpr, fpr = hits / max(int(y.sum()), 1), alarms / max(int((~y).sum()), 1)
    return (
        np.concatenate([[0.0], fpr]),
        np.concatenate([[0.0], tpr]),
        np.concatenate([[np.inf], s[last_of_tie]]),
    )


def roc_auc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """Probability that a positive scores higher than a negative (ties count half); nan without both."""
    y = np.asarray(positive, dtype=bool)
    if y.all() or not y.any():
        return float("nan")
    fpr, tpr, _ = roc_curve(scores, y)
    return float(np.trapezoid(tpr, fpr))


def false_positives_at(scores: npt.ArrayLike, positive: npt.ArrayLike, kept: float) -> float:
    """Share of negatives that pass at the strictest threshold that keeps this share of the positives.

    nan without both kinds.
    """
    y = np.asarray(positive, dtype=bool)
    if y.all() or not y.any():
        return float("nan")
    fpr, tpr, _ = roc_curve(scores, y)
    return float(fpr[np.argmax(tpr >= kept - 1e-9)])  # rounding must not ask for one positive more


def calibration(
    probabilities: npt.ArrayLike, positive: npt.ArrayLike, bins: int = 10
) -> tuple[list[dict[str, float]], float]:
    """Reliability table (one row per filled bin: mean probability, share of positives, count) and the ECE.

    The expected calibration error is the mean gap between the two columns weighted by the counts.
    """
    p, y = np.asarray(probabilities, dtype=np.float64), np.asarray(positive, dtype=np.float64)
    which = np.clip((p * bins).astype(int), 0, bins - 1)
    rows: list[dict[str, float]] = []
    error = 0.0
    for index in range(bins):
        inside = which == index
        if inside.any():
            predicted, observed, count = float(p[inside].mean()), float(y[inside].mean()), int(inside.sum())
            rows.append({"predicted": predicted, "observed": observed, "count": float(count)})
            error += abs(predicted - observed) * count / len(p)
    return rows, error

"""Metrics as pure functions on arrays: MMA, AUC of errors, mAP, ROC, calibration."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def matching_accuracy(errors: npt.ArrayLike, thresholds: Sequence[float]) -> Array:
    """Precision (T,): share of matches with an error of at most each threshold; 0 without matches.

    This is one pair's entry of the mean matching accuracy (MMA) of Mikolajczyk and Schmid as D2-Net reports
    it: every match counts once in its pair, every pair counts once in the mean, however many matches it has.
    """
    values = np.asarray(errors, dtype=np.float64).reshape(-1)
    if len(values) == 0:
        return np.zeros(len(thresholds))
    return np.asarray([(values <= threshold).mean() for threshold in thresholds])


def error_auc(errors: npt.ArrayLike, threshold: float) -> float:
    """Area under the recall-against-error curve up to the threshold, divided by it, in [0, 1].

    The curve joins (0, 0) and (e_i, i / n) for the sorted errors by straight lines and runs flat from the
    last error below the threshold to the threshold (SuperGlue's rule, used by LoFTR and everyone since).
    Failures are inf; nan without errors.
    """
    values = np.sort(np.nan_to_num(np.asarray(errors, dtype=np.float64).reshape(-1), nan=np.inf))
    if len(values) == 0:
        return float("nan")
    x, y = np.append(0.0, values), np.arange(len(values) + 1) / len(values)
    last = int(np.searchsorted(x, threshold))
    xs, ys = np.append(x[:last], threshold), np.append(y[:last], y[last - 1])
    return float(np.trapezoid(ys, xs)) / threshold


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
    """False-positive rate, true-positive rate and threshold (T,) at each distinct score, highest first."""
    s, y = np.asarray(scores, dtype=np.float64), np.asarray(positive, dtype=bool)
    order = np.argsort(-s, kind="stable")
    s, y = s[order], y[order]
    last_of_tie = np.append(np.nonzero(np.diff(s))[0], len(s) - 1)
    hits, alarms = np.cumsum(y)[last_of_tie], np.cumsum(~y)[last_of_tie]
    tpr, fpr = hits / max(int(y.sum()), 1), alarms / max(int((~y).sum()), 1)
    return np.append(0.0, fpr), np.append(0.0, tpr), np.append(np.inf, s[last_of_tie])


def roc_auc(scores: npt.ArrayLike, positive: npt.ArrayLike) -> float:
    """Area under the ROC curve: chance that a positive scores above a negative; nan without both."""
    y = np.asarray(positive, dtype=bool)
    if y.all() or not y.any():
        return float("nan")
    fpr, tpr, _ = roc_curve(scores, y)
    return float(np.trapezoid(tpr, fpr))


def fpr_at_tpr(scores: npt.ArrayLike, positive: npt.ArrayLike, wanted: float) -> float:
    """False-positive rate at the strictest threshold whose true-positive rate is at least `wanted`.

    nan without both positives and negatives.
    """
    y = np.asarray(positive, dtype=bool)
    if y.all() or not y.any():
        return float("nan")
    fpr, tpr, _ = roc_curve(scores, y)
    return float(fpr[np.argmax(tpr >= wanted - 1e-9)])  # rounding must not ask for one positive more


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

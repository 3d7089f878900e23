"""Logistic regression by Newton's method, as the calibrations fit it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
FARTHEST = 60.0  # of a logit: beyond, its probability is 0 or 1


def logistic_regression(
    x: Array, y: Array, weight: Array, ridge: float, signs: Sequence[int] | None = None
) -> tuple[Array, float]:
    """Weights (K,) and bias, in units of the features x (N, K), of labels y (N,) that count `weight` (N,).

    ridge: on the weights of standardised features, which keeps them finite where labels are told apart
    without error. signs (K,) of the weights, 1 or -1: a feature whose weight would have the other one is left
    out, the worst first.
    """
    mean, deviation = x.mean(axis=0), x.std(axis=0) + 1e-9
    standardised, used = (x - mean) / deviation, np.arange(x.shape[1])
    while True:
        *slopes, constant = newton(standardised[:, used], y, weight, ridge)
        against = np.zeros(1) if signs is None else -np.multiply(slopes, np.asarray(signs)[used])
        if against.max(initial=0.0) <= 0:
            weights = np.zeros(x.shape[1])
            weights[used] = slopes / deviation[used]
            return weights, float(constant - weights @ mean)
        used = np.delete(used, against.argmax())


def newton(x: Array, y: Array, weight: Array, ridge: float) -> Array:
    """Coefficients (K + 1,) of features x (N, K), the constant last; `ridge` is not on the constant."""
    design = np.column_stack([x, np.ones(len(x))])
    penalty = ridge * np.diag([1.0] * x.shape[1] + [0.0])
    beta = np.zeros(design.shape[1])
    for _ in range(100):
        p = probability(design @ beta)
        gradient = design.T @ (weight * (p - y)) + penalty @ beta
        curvature = (design * (weight * p * (1 - p))[:, None]).T @ design
        step = np.linalg.solve(curvature + penalty + 1e-9 * np.eye(len(beta)), gradient)
        beta -= step
        if np.abs(step).max() < 1e-9:
            break
    return beta


def probability(logit: Array) -> Array:
    """The probability of logits of any shape."""
    return np.asarray(1 / (1 + np.exp(-np.clip(logit, -FARTHEST, FARTHEST))))

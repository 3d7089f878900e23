"""Do these two photos show the same place? A calibrated probability from the matches alone.

A few statistics of the matches, a logistic regression on them. The coefficients belong to a model and travel in the
card of its weights file; without them the answer is nan, never a guess.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

FEATURES = ("log_mutual", "mean_probability", "log_confident", "mean_distinctiveness")


def pair_statistics(probability: Tensor, distinctiveness: Tensor, positions: int) -> list[float]:
    """What the score is computed from, in the order of `FEATURES`.

    probability (K,): dual softmax of ALL mutual matches; distinctiveness (K,): product of the two scores of each;
    positions: the number of grid positions of the smaller image.
    """
    if len(probability) == 0:
        return [math.log(1 / positions), 0.0, math.log(1e-3), 0.0]
    confident = (probability * distinctiveness).sum() / positions
    return [
        math.log((len(probability) + 1) / positions),
        float(probability.mean()),
        math.log(float(confident) + 1e-3),
        float(distinctiveness.mean()),
    ]


def overlap_probability(statistics: list[float], calibration: dict[str, Any] | None) -> float:
    """Probability in [0, 1]; nan without a calibration {"weights": [...], "bias": b}."""
    if not calibration:
        return float("nan")
    logit = calibration["bias"] + sum(w * s for w, s in zip(calibration["weights"], statistics, strict=True))
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, logit))))

"""Do these two photos show the same place? A calibrated probability from the matches alone.

A few statistics of the matches, a logistic regression on them. The coefficients belong to a model and travel
in the card of its weights file; without them the answer is nan, never a guess.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

FLOOR = 1e-5  # share of confident positions below which there is nothing to tell apart

FEATURES = ("log_mutual", "mean_probability", "log_confident", "mean_distinctiveness")


def pair_statistics(probability: Tensor, distinctiveness: Tensor, positions: int) -> list[float]:
    """What the score is computed from, in the order of `FEATURES`.

    probability (K,): dual softmax of ALL mutual matches; distinctiveness (K,): product of the two scores of
    each; positions: the number of grid positions of the smaller image.
    """
    counts = torch.ones_like(probability, dtype=torch.bool)
    return statistics_of_sums(sums_of_matches(probability, distinctiveness, counts).tolist(), positions)


def sums_of_matches(probability: Tensor, distinctiveness: Tensor, counts: Tensor) -> Tensor:
    """Number and sums of probability, distinctiveness and their product (4,) where `counts` (K,)."""
    one = counts.float()
    probability, distinctiveness = probability * one, distinctiveness * one
    return torch.stack([one, probability, distinctiveness, probability * distinctiveness]).sum(dim=1)


def statistics_of_sums(sums: Sequence[float], positions: int) -> list[float]:
    """The statistics of `pair_statistics` from `sums_of_matches`."""
    count, probability, distinctiveness, product = sums
    return [
        math.log((count + 1) / positions),
        probability / max(count, 1),
        math.log(product / positions + FLOOR),
        distinctiveness / max(count, 1),
    ]


def overlap_probability(statistics: list[float], calibration: dict[str, Any] | None) -> float:
    """Probability in [0, 1]; nan without a calibration {"weights": [...], "bias": b}."""
    if not calibration:
        return float("nan")
    logit = calibration["bias"] + sum(w * s for w, s in zip(calibration["weights"], statistics, strict=True))
    return 1.0 / (1.0 + math.exp(-max(-60.0, min(60.0, logit))))

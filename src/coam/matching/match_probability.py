"""How far to trust one match: the probability that it lies within 3 pixels of the truth.

A score orders the matches of one pair; what a score is worth depends on whether the two photos show one place
at all. So the probability is a logistic regression on both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEATURES = ("log_score", "logit_overlap")
FLOOR = 1e-3  # of scores and of doubts: below it, nothing more is said


@dataclass(frozen=True)
class ProbabilityOptions:
    """Coefficients, fitted by tools/calibrate_matches.py; see docs/confidence.md."""

    weights: tuple[float, ...] = (1.0, 0.3)  # one for each of FEATURES
    bias: float = 3.0


CALIBRATED = {"cdunet-lite1": ProbabilityOptions()}  # by the name of the model


def match_features(scores: npt.NDArray[np.floating], overlap: float) -> npt.NDArray[np.float64]:
    """What the probability of matches is computed from (N, 2): their scores (N,) and the pair's overlap."""
    sure = float(np.clip(overlap, FLOOR, 1 - FLOOR))
    log_score = np.log(np.maximum(np.asarray(scores, np.float64), FLOOR))
    return np.column_stack([log_score, np.full(len(log_score), np.log(sure / (1 - sure)))])


def match_probability(
    scores: npt.NDArray[np.floating], overlap: float, model: str
) -> npt.NDArray[np.float32]:
    """Probability (N,) that each match is right; nan where model or overlap is unknown."""
    options = CALIBRATED.get(model)
    if options is None:
        return np.full(len(scores), np.nan, np.float32)
    logit = match_features(scores, overlap) @ np.asarray(options.weights) + options.bias
    return (1 / (1 + np.exp(-logit))).astype(np.float32)

"""How far to trust one match: the probability that it lies within 3 pixels of the truth.

That the photos show one place (the overlap), times that a match of one place with such a score is right.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FLOOR = 1e-3  # of scores: below it, nothing more is said


@dataclass(frozen=True)
class ProbabilityOptions:
    """Logistic regression on a score's logarithm, by tools/calibrate_matches.py; see docs/confidence.md."""

    weight: float = 2.67
    bias: float = 6.31


CALIBRATED = {"cdunet-lite1": ProbabilityOptions()}  # by the name of the model


def log_score(scores: npt.NDArray[np.floating]) -> npt.NDArray[np.float64]:
    """What the probability of matches with scores (N,) is computed from (N,)."""
    return np.asarray(np.log(np.maximum(np.asarray(scores, np.float64), FLOOR)))


def match_probability(
    scores: npt.NDArray[np.floating], overlap: float, model: str
) -> npt.NDArray[np.float32]:
    """Probability (N,) that each match is right; nan where model or overlap is unknown."""
    options = CALIBRATED.get(model)
    if options is None:
        return np.full(len(scores), np.nan, np.float32)
    logit = options.weight * log_score(scores) + options.bias
    return (overlap / (1 + np.exp(-logit))).astype(np.float32)

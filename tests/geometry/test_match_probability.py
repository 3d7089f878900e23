"""The probability of a match: by hand, monotone, and unknown where nothing was calibrated."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coam.geometry import match_probability as module
from coam.geometry.match_probability import FLOOR, ProbabilityOptions, log_score, match_probability


def test_what_is_looked_at_by_hand():
    assert log_score(np.array([1.0, 0.1, 0.0])) == pytest.approx([0.0, math.log(0.1), math.log(FLOOR)])


def test_a_probability_by_hand(monkeypatch):
    monkeypatch.setitem(module.CALIBRATED, "toy", ProbabilityOptions(weight=2.0, bias=1.0))
    found = match_probability(np.array([0.5]), 0.8, "toy")
    assert found == pytest.approx(0.8 / (1 + math.exp(-(2 * math.log(0.5) + 1.0))))


def test_better_scores_and_surer_pairs_are_likelier():
    scores = np.linspace(0, 1, 20)
    sure, doubtful = (match_probability(scores, overlap, "cdunet-lite1") for overlap in (0.99, 0.05))
    assert (np.diff(sure) >= 0).all()
    assert (sure > doubtful).all()
    assert doubtful.max() <= 0.05
    assert ((sure > 0) & (sure < 1)).all()


def test_unknown_overlap_and_other_models_are_nan():
    assert np.isnan(match_probability(np.array([0.5]), math.nan, "cdunet-lite1")).all()
    assert np.isnan(match_probability(np.array([0.5]), 0.9, "mine")).all()
    assert match_probability(np.zeros(0), 0.9, "cdunet-lite1").shape == (0,)

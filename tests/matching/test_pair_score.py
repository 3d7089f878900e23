"""The pair score: statistics by hand, the logistic fit, and honesty without a calibration."""

import math

import numpy as np
import pytest
import torch

from coam.matching.pair_score import FLOOR, fit_calibration, overlap_probability, pair_statistics


def test_statistics_by_hand() -> None:
    probability = torch.tensor([0.5, 0.25])
    distinctiveness = torch.tensor([0.8, 0.4])
    got = pair_statistics(probability, distinctiveness, positions=100)
    confident = (0.5 * 0.8 + 0.25 * 0.4) / 100
    assert got == pytest.approx([math.log(3 / 100), 0.375, math.log(confident + FLOOR), 0.6], rel=1e-6)


def test_no_matches_at_all() -> None:
    got = pair_statistics(torch.zeros(0), torch.zeros(0), positions=50)
    assert got == pytest.approx([math.log(1 / 50), 0.0, math.log(FLOOR), 0.0])


def test_without_a_calibration_there_is_no_guess() -> None:
    assert math.isnan(overlap_probability([0.0] * 4, None))


def test_probability_by_hand() -> None:
    calibration = {"weights": [1.0, 0.0, 2.0, 0.0], "bias": -1.0}
    assert overlap_probability([0.5, 9.0, 0.25, 9.0], calibration) == pytest.approx(0.5)
    assert overlap_probability([1e9, 0.0, 0.0, 0.0], calibration) == pytest.approx(1.0)


def test_fit_recovers_a_planted_boundary() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4000, 4))
    truth = 1 / (1 + np.exp(-(2.0 * x[:, 0] - 1.0 * x[:, 2])))
    y = (rng.random(4000) < truth).astype(float)
    fitted = fit_calibration(x, y, ridge=1e-6)
    assert fitted["weights"] == pytest.approx([2.0, 0.0, -1.0, 0.0], abs=0.2)
    assert fitted["bias"] == pytest.approx(0.0, abs=0.15)


def test_fit_stays_finite_when_the_classes_are_apart() -> None:
    x = np.concatenate([np.full((5, 4), -1.0), np.full((5, 4), 1.0)])
    fitted = fit_calibration(x, [0] * 5 + [1] * 5)
    assert all(math.isfinite(w) for w in fitted["weights"])
    assert overlap_probability([1.0] * 4, fitted) > 0.9
    assert overlap_probability([-1.0] * 4, fitted) < 0.1

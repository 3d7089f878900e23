"""The logistic fit of the pair score."""

import math

import numpy as np
import pytest
from tools.calibrate_pair_score import fit_calibration

from coam.matching.pair_score import overlap_probability


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


def test_both_classes_weigh_the_same_whatever_their_numbers() -> None:
    rng = np.random.default_rng(2)
    true, wrong = rng.normal(1, 1, (300, 4)), rng.normal(-1, 1, (300, 4))
    labels = np.r_[np.ones(300), np.zeros(300)]
    even = fit_calibration(np.r_[true, wrong], labels, ridge=0.0)
    # The same wrong pairs twenty times: without weights the bias would fall by about log(20) = 3.
    many = fit_calibration(
        np.r_[true, np.tile(wrong, (20, 1))], np.r_[np.ones(300), np.zeros(6000)], ridge=0.0
    )
    np.testing.assert_allclose(many["weights"], even["weights"], rtol=1e-4)
    assert many["bias"] == pytest.approx(even["bias"], abs=1e-3)

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

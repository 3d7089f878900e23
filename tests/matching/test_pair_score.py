"""The pair score: statistics by hand, and honesty without a calibration."""

import math

import pytest
import torch

from coam.matching.pair_score import FLOOR, overlap_probability, pair_statistics


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


def test_a_calibration_of_other_statistics_is_an_error() -> None:
    with pytest.raises(ValueError, match="zip"):
        overlap_probability([0.5, 9.0], {"weights": [1.0, 0.0, 2.0, 0.0], "bias": -1.0})
    with pytest.raises(ValueError, match="zip"):
        overlap_probability([0.5] * 5, {"weights": [1.0, 0.0, 2.0, 0.0], "bias": -1.0})

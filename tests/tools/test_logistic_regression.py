"""The logistic regression of the calibrations."""

import numpy as np
import pytest
from tools.logistic_regression import logistic_regression, newton, probability


def test_it_finds_what_made_its_labels() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(0, 1, (4000, 2)) * [1, 5] + [0, 3]
    y = (rng.random(4000) < probability(x @ [2.0, -0.4] + 0.7)).astype(float)
    weights, bias = logistic_regression(x, y, np.ones(4000), ridge=0.3)
    assert weights == pytest.approx([2.0, -0.4], abs=0.25)
    assert bias == pytest.approx(0.7, abs=0.2)
    # Where nothing is learnt from another row, the mean of the probabilities is that of the labels.
    assert probability(x @ weights + bias).mean() == pytest.approx(y.mean(), abs=1e-6)


def test_a_weight_of_the_wrong_sign_is_left_out() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(0, 1, (2000, 3))
    y = (rng.random(2000) < probability(x @ [1.5, -1.0, 0.5])).astype(float)
    weights, bias = logistic_regression(x, y, np.ones(2000), 1e-3, signs=[1, 1, 1])
    alone, bias_alone = logistic_regression(x[:, [0, 2]], y, np.ones(2000), 1e-3)
    assert weights[1] == 0.0
    np.testing.assert_allclose(weights[[0, 2]], alone)
    assert bias == pytest.approx(bias_alone)
    kept, _ = logistic_regression(x, y, np.ones(2000), 1e-3, signs=[1, -1, 1])
    assert kept[1] == pytest.approx(-1.0, abs=0.2)


def test_a_row_counts_by_its_weight() -> None:
    x, y = np.array([[0.0], [1.0], [1.0], [2.0]]), np.array([0.0, 1.0, 0.0, 1.0])
    repeated = newton(np.repeat(x, [1, 3, 1, 1], axis=0), np.repeat(y, [1, 3, 1, 1]), np.ones(6), 0.1)
    np.testing.assert_allclose(newton(x, y, np.array([1.0, 3.0, 1.0, 1.0]), 0.1), repeated, rtol=1e-9)


def test_labels_that_are_told_apart_give_finite_weights() -> None:
    x, y = np.array([[-2.0], [-1.0], [1.0], [2.0]]), np.array([0.0, 0.0, 1.0, 1.0])
    weights, bias = logistic_regression(x, y, np.ones(4), ridge=0.01)
    assert 1 < weights[0] < 20
    assert bias == pytest.approx(0.0, abs=1e-6)

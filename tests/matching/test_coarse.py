"""How much two images have in common by coarse descriptors alone, and where."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from coam.matching.coarse import LEAST_PROBABILITY, coarse_matches


def test_matches_by_hand() -> None:
    """Four unlike cells against two of them: each has a softmax of e / (e + 1) over the two, e / (e + 3) over
    the four."""
    four = torch.eye(4).view(4, 2, 2)
    two = torch.eye(4)[:, [3, 0]].reshape(4, 1, 2)
    one_match = math.e / (math.e + 1) * math.e / (math.e + 3)
    found = coarse_matches(four, two, 1.0)
    np.testing.assert_allclose(found.probability, [one_match, one_match], rtol=1e-5)
    np.testing.assert_array_equal(found.points0, [[7.5, 7.5], [23.5, 23.5]])
    np.testing.assert_array_equal(found.points1, [[23.5, 7.5], [7.5, 7.5]])
    back = coarse_matches(two, four, 1.0)
    assert back.probability.sum() == pytest.approx(2 * one_match, rel=1e-5)


def test_the_same_and_strangers() -> None:
    noise = torch.randn(2, 256, 20, 20, generator=torch.Generator().manual_seed(0))
    random = torch.nn.functional.normalize(noise, dim=1)
    same, strange = coarse_matches(random[0], random[0], 46.0), coarse_matches(random[0], random[1], 46.0)
    assert same.probability.sum() > 0.99 * 400
    np.testing.assert_array_equal(same.points0, same.points1)
    assert strange.probability.sum() < 0.2 * 400
    assert strange.probability.min() >= LEAST_PROBABILITY

from __future__ import annotations

import math

import pytest
import torch

from coam.matching.certainty import FEATURES, CertaintyOptions, certainty_features, certainty_of
from coam.matching.flow import find_flow_both_ways
from support.toy_pictures import described

ROWS, COLUMNS = 24, 32


def places() -> torch.Tensor:
    return torch.arange(ROWS * COLUMNS).view(ROWS, COLUMNS)


def test_features_of_an_identical_pair_by_hand() -> None:
    flows = find_flow_both_ways(described(places()), described(places()), 20.0)
    features = certainty_features(*flows)[0]
    assert features.shape == (len(FEATURES), ROWS, COLUMNS)
    wanted = (math.log(2), 1.0, 0.8, math.log(2), 0.0)  # nothing is missed or moves; floors are half a pixel
    for feature, value in zip(features, wanted, strict=True):
        torch.testing.assert_close(feature, torch.full_like(feature, value), atol=1e-3, rtol=0)
    options = CertaintyOptions()
    logit = sum(w * v for w, v in zip(options.weights, wanted, strict=True)) + options.bias
    certainty = certainty_of(*flows)
    assert certainty.mean().item() == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-3)
    assert certainty.min() > 0.95


def test_a_covered_part_is_uncertain_both_ways() -> None:
    covered = places().clone()
    covered[6:18, 8:24] += 5000
    forward, backward = find_flow_both_ways(described(places()), described(covered), 20.0)
    for flow, back in ((forward, backward), (backward, forward)):
        certainty = certainty_of(flow, back, CertaintyOptions(agreement_side=7))[0]
        assert certainty[8:16, 10:22].mean() < 0.3
        assert certainty[:3].mean() > 0.9


def test_no_weight_is_negative() -> None:
    options = CertaintyOptions()
    assert len(options.weights) == len(FEATURES)
    assert min(options.weights) >= 0

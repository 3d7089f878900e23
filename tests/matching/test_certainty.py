from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from coam.matching.certainty import FEATURES, CertaintyOptions, certainty_features, certainty_of
from coam.matching.flow import DenseFlow, find_flow_both_ways
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


def test_features_by_a_plain_loop() -> None:
    """Any flow there, a shift by (3, -1) on the way back: all five features of every cell."""
    forward, backward = find_flow_both_ways(described(places()[:5, :6]), described(places()[:7, :8]), 20.0)
    generator = torch.Generator().manual_seed(1)
    shift = torch.randn(5, 6, 2, generator=generator)
    evidence = torch.rand(1, 4, 5, 6, generator=generator)
    difference = torch.rand(1, 5, 6, generator=generator)
    forward = replace(forward, points=(forward.own + shift)[None], evidence=evidence, difference=difference)
    backward = replace(backward, points=(backward.own + torch.tensor([3.0, -1.0]))[None])
    options = CertaintyOptions(returned=1.5, agreement_side=5, smoothness_side=3, near_side=3)
    found = certainty_features(forward, backward, options)[0]

    def around(values: torch.Tensor, side: int) -> torch.Tensor:
        reach = side // 2
        cells = [
            [
                values[max(r - reach, 0) : r + reach + 1, max(c - reach, 0) : c + reach + 1].mean(dim=(0, 1))
                for c in range(6)
            ]
            for r in range(5)
        ]
        return torch.stack([torch.stack(row) for row in cells])

    missed = (shift + torch.tensor([3.0, -1.0])).norm(dim=2)
    apart = (shift - around(shift, 3)).norm(dim=2)
    likeness = -(difference[0] + 0.01).log()
    sure = evidence[0, 2] ** 2
    expected = [
        -(missed + 0.5).log(),
        around(torch.exp(-((missed / 1.5) ** 2)), 5),
        evidence[0, 1],
        -(around(apart, 3) + 0.5).log(),
        around(likeness, 3) - (likeness * sure).sum() / sure.sum(),
    ]
    for feature, wanted in zip(found, expected, strict=True):
        torch.testing.assert_close(feature, wanted, atol=1e-5, rtol=1e-5)
    weights = torch.tensor(options.weights)
    logit = (torch.stack(expected) * weights.view(-1, 1, 1)).sum(dim=0) + options.bias
    torch.testing.assert_close(
        certainty_of(forward, backward, options)[0], logit.sigmoid(), atol=1e-5, rtol=0
    )


def test_evidence_of_coarser_cells_is_interpolated_between_their_centres() -> None:
    """Two cells over four: the centres of the four lie at -1/4, 1/4, 3/4 and 5/4 of them."""
    forward, backward = find_flow_both_ways(described(places()[:4, :4]), described(places()[:4, :4]), 20.0)
    evidence = torch.tensor([0.2, 0.8]).expand(1, 4, 4, 2)
    features = certainty_features(replace(forward, evidence=evidence), backward)[0]
    distinctiveness = features[FEATURES.index("distinctiveness")]
    torch.testing.assert_close(distinctiveness, torch.tensor([0.2, 0.35, 0.65, 0.8]).expand(4, 4))


def test_pairs_of_a_batch_are_as_certain_as_alone() -> None:
    generator = torch.Generator().manual_seed(2)
    forward, backward = find_flow_both_ways(described(places()[:5, :6]), described(places()[:5, :6]), 20.0)

    def with_batch(flow: DenseFlow) -> DenseFlow:
        shift = torch.randn(2, 5, 6, 2, generator=generator)
        return replace(
            flow,
            points=flow.own + shift,
            evidence=torch.rand(2, 4, 5, 6, generator=generator),
            difference=torch.rand(2, 5, 6, generator=generator),
        )

    def one(flow: DenseFlow, pair: int) -> DenseFlow:
        part = {name: getattr(flow, name)[pair : pair + 1] for name in ("points", "evidence", "difference")}
        return replace(flow, **part)

    forward, backward = with_batch(forward), with_batch(backward)
    together = certainty_of(forward, backward)
    for pair in range(2):
        alone = certainty_of(one(forward, pair), one(backward, pair))
        torch.testing.assert_close(together[pair], alone[0])


def test_no_weight_is_negative() -> None:
    options = CertaintyOptions()
    assert len(options.weights) == len(FEATURES)
    assert min(options.weights) >= 0

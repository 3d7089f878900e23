"""Matching in tensors of fixed size against the matching that picks out: without a GPU, by a plain search."""

import numpy as np
import pytest
import torch
from torch import Tensor

import coam
from coam import samples
from coam.matching.dense import DenseMatching, matching_for
from coam.matching.graphed import GraphedMatching
from coam.matching.mutual import RowChoices, dual_softmax_nearest
from coam.matching.settings import MatcherConfig
from coam.models.outputs import DenseDescriptors


def plain_choices(descriptors0: Tensor, descriptors1: Tensor, logit_scale: float) -> RowChoices:
    """What the kernel gives, from the whole matrix."""
    found = dual_softmax_nearest(descriptors0, descriptors1, logit_scale)
    similarity, index1 = (descriptors0.float() @ descriptors1.float().t()).max(dim=1)
    is_mutual = torch.zeros(len(descriptors0), dtype=torch.bool)
    is_mutual[found.index0] = True
    probability = torch.zeros(len(descriptors0))
    probability[found.index0] = found.probability
    index1[found.index0] = found.index1
    return RowChoices(index1, similarity, is_mutual, probability)


def run(key: object, function: object, inputs: list[Tensor]) -> list[Tensor]:
    return function(inputs)


@pytest.fixture(scope="module")
def dense() -> tuple[DenseDescriptors, DenseDescriptors]:
    pair = samples.motorcycle()
    return coam.load_matcher(device="cpu", resolution=256, backend="float32").describe(pair.left, pair.right)


@pytest.mark.parametrize("options", [{}, {"min_distinctiveness": 0.3, "max_matches": 300}, {"grid": 40}])
def test_the_same_matches(dense, options):
    config = MatcherConfig(**options)
    expected = DenseMatching(config, 40.0).between(*dense)
    found = GraphedMatching(config, 40.0, run, plain_choices).between(*dense)
    assert len(found.score) == len(expected.score) > 100
    pairs = [set(zip(c.index0.tolist(), c.index1.tolist(), strict=True)) for c in (found, expected)]
    assert len(pairs[0] & pairs[1]) >= 0.998 * len(pairs[1])
    np.testing.assert_allclose(found.score.numpy(), expected.score.numpy(), atol=2e-5)
    np.testing.assert_allclose(found.statistics, expected.statistics, rtol=1e-3, atol=1e-5)
    worst = expected.score.min()
    assert (found.score >= worst - 1e-5).all()


def test_points_are_those_of_the_same_pairs(dense):
    config = MatcherConfig()
    expected = DenseMatching(config, 40.0).between(*dense)
    found = GraphedMatching(config, 40.0, run, plain_choices).between(*dense)
    where = {pair: k for k, pair in enumerate(zip(found.index0.tolist(), found.index1.tolist(), strict=True))}
    for k, pair in enumerate(zip(expected.index0.tolist(), expected.index1.tolist(), strict=True)):
        if pair in where:
            torch.testing.assert_close(found.points1[where[pair]], expected.points1[k], rtol=0, atol=1e-3)
            torch.testing.assert_close(found.points0[where[pair]], expected.points0[k], rtol=0, atol=0)


def test_nothing_in_common_gives_no_match_below_the_least_score(dense):
    config = MatcherConfig(min_score=0.99)
    found = GraphedMatching(config, 40.0, run, plain_choices).between(*dense)
    expected = DenseMatching(config, 40.0).between(*dense)
    assert len(found.score) == len(expected.score)


def test_where_it_is_used():
    cpu = torch.device("cpu")
    assert not isinstance(matching_for(MatcherConfig(refinement="fine"), 40.0, cpu), GraphedMatching)
    assert type(matching_for(MatcherConfig(ranking="paper"), 40.0, torch.device("cuda"))) is DenseMatching


def test_many_pairs_as_one_by_one(dense):
    matching = GraphedMatching(MatcherConfig(refinement="fine", max_matches=200), 40.0, run, plain_choices)
    pairs = [dense, dense[::-1]]
    many = list(matching.between_many(pairs))
    for found, pair in zip(many, pairs, strict=True):
        alone = matching.between(*pair)
        torch.testing.assert_close(found.points1, alone.points1, rtol=0, atol=0)
        assert found.statistics == alone.statistics
    assert not torch.equal(many[0].points0, many[1].points0)

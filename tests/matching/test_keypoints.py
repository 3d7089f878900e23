"""Keypoints of both photos: who chooses whom, and scores on the scale of grid matches."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from coam.matching.dense import DenseMatching
from coam.matching.mutual import log_partition
from coam.matching.settings import MatcherConfig
from coam.models.outputs import DenseDescriptors
from support.toy_pictures import described

CONFIG = MatcherConfig(refinement="none", min_score=0.0, crowding=1.0, max_matches=10_000)


def row(descriptors: list[list[float]], score: list[float]) -> DenseDescriptors:
    """One row of cells of 4 pixels."""
    vectors = torch.tensor(descriptors).t()[None, :, None, :]
    return DenseDescriptors(vectors, torch.tensor(score)[None, None, None, :], 4, (4, 4 * len(score)))


def cell(*columns: int) -> Tensor:
    """Centres (K, 2) of cells of a row."""
    return torch.tensor([[1.5 + 4 * column, 1.5] for column in columns])


@pytest.mark.parametrize("logit_scale", [0.5, 20.0, 500.0])
def test_log_partition_is_the_denominator_of_a_softmax(logit_scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    queries, cells = (torch.randn(n, 8, generator=generator) for n in (37, 300))
    expected = torch.logsumexp(logit_scale * queries @ cells.t(), dim=1)
    for chunk in (None, 5):
        found = log_partition(queries, cells, logit_scale, chunk)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert log_partition(queries, cells[:0], logit_scale).tolist() == [-math.inf] * 37


def test_by_hand() -> None:
    """Two places, A = (1, 0) and B = (0, 1); photo 1 shows them in the other order, and (.6, .8) besides."""
    first = row([[1.0, 0.0], [0.0, 1.0]], [0.9, 0.8])
    second = row([[0.0, 1.0], [0.6, 0.8], [1.0, 0.0]], [0.5, 1.0, 1.0])
    found = DenseMatching(CONFIG, 2.0).between_keypoints(first, second, cell(1, 0), cell(0, 2, 1))
    # Keypoint 0 of either photo shows B, keypoint 1 shows A; (.6, .8) is nobody's.
    over_first = math.exp(2) + 1  # sums over the cells of photo 0, from both of these keypoints
    b = math.exp(2) / (math.exp(2) + math.exp(1.6) + 1) * math.exp(2) / over_first
    a = math.exp(2) / (1 + math.exp(1.2) + math.exp(2)) * math.exp(2) / over_first
    expected = sorted([(math.sqrt(b) * 0.8 * 0.5, 0, 0), (math.sqrt(a) * 0.9 * 1.0, 1, 1)], reverse=True)
    assert found.score.tolist() == pytest.approx([score for score, _, _ in expected], rel=1e-5)
    assert found.index0.tolist() == [index for _, index, _ in expected]
    assert found.index1.tolist() == [index for _, _, index in expected]
    assert found.points0.tolist() == cell(1, 0)[found.index0].tolist()


@pytest.mark.parametrize("ranking", ["dual_softmax", "paper"])
def test_keypoints_on_every_cell_are_the_grid(ranking: str) -> None:
    """The same matches with the same scores, whichever way they are asked for."""
    labels = torch.arange(12 * 16).view(12, 16)
    shuffled = labels.flatten()[torch.randperm(192, generator=torch.Generator().manual_seed(1))].view(12, 16)
    dense = described(labels), described(shuffled)
    noise = 0.3 * torch.randn(dense[1].descriptors.shape, generator=torch.Generator().manual_seed(2))
    noisy = torch.nn.functional.normalize(dense[1].descriptors + noise, dim=1)
    dense = dense[0], replace(dense[1], descriptors=noisy)
    matching = DenseMatching(replace(CONFIG, ranking=ranking), 20.0)
    every = matching.positions(dense[0])
    grid = matching.between(*dense)
    sparse = matching.between_keypoints(*dense, every, every)
    assert len(grid.score) > 100
    torch.testing.assert_close(sparse.score, grid.score, rtol=1e-4, atol=1e-6)
    pairs = [set(zip(f.index0.tolist(), f.index1.tolist(), strict=True)) for f in (grid, sparse)]
    assert pairs[0] == pairs[1]


def test_few_keypoints_do_not_make_scores_larger() -> None:
    labels = torch.arange(12 * 16).view(12, 16)
    dense = described(labels), described(labels.flip(1))
    matching = DenseMatching(CONFIG, 4.0)  # a low scale: who else competes matters
    every = matching.positions(dense[0])
    scores = dict(zip(*(t.tolist() for t in _index_and_score(matching, dense, every, every)), strict=True))
    index, score = _index_and_score(matching, dense, every[40:44], every[32:48])
    assert len(index) == 4
    for k, value in zip(index.tolist(), score.tolist(), strict=True):
        assert value == pytest.approx(scores[40 + k], rel=1e-4)


def _index_and_score(
    matching: DenseMatching, dense: tuple[DenseDescriptors, DenseDescriptors], *points: Tensor
) -> tuple[Tensor, Tensor]:
    found = matching.between_keypoints(*dense, *points)
    return found.index0, found.score


def test_the_fine_map_chooses_among_keypoints_of_one_cell() -> None:
    """Three keypoints of one coarse cell: its descriptor cannot tell them apart, the fine map can."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(8 * 8).view(8, 8)
    fine = 6 * torch.nn.functional.normalize(torch.randn(1, 32, 16, 16, generator=generator), dim=1)
    dense = replace(described(labels), fine=fine, fine_stride=2)
    matching = DenseMatching(replace(CONFIG, refinement="fine", min_score=0.001), 40.0)
    # Centres of fine cells are at 2 k + .5: (16.5, 18.5) and its neighbours.
    points0 = torch.tensor([[16.5, 18.5]])
    points1 = torch.tensor([[18.5, 18.5], [16.5, 18.5], [16.5, 16.5]])
    found = matching.between_keypoints(dense, dense, points0, points1)
    assert found.index1.tolist() == [1]
    alone = matching.between_keypoints(dense, dense, points0, points1[:1])  # two pixels off, four tolerances
    assert len(alone.score) == 0 or alone.score.item() < 0.05 * found.score.item()


def test_nothing_to_match() -> None:
    dense = described(torch.arange(16).view(4, 4))
    matching = DenseMatching(CONFIG, 20.0)
    some, none = matching.positions(dense), torch.zeros(0, 2)
    for points in ((some, none), (none, some), (none, none)):
        found = matching.between_keypoints(dense, dense, *points)
        assert found.points0.shape == (0, 2)
        assert found.index1.dtype == torch.int64
    dull = replace(dense, score=torch.zeros_like(dense.score))
    found = DenseMatching(replace(CONFIG, min_distinctiveness=0.02), 20.0).between_keypoints(
        dull, dense, some, some
    )
    assert len(found.score) == 0

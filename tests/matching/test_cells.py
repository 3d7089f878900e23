"""The best match of every cell, against plain loops over all pairs of cells."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from coam.matching import cells as module
from coam.matching.cells import (
    Cells,
    MatchedCells,
    _together,
    match_cells,
    match_cells_both_ways,
    match_cells_guided,
)
from coam.models.outputs import DenseDescriptors

SCALE = 6.0


def cells(batch: int, count: int, seed: int) -> Cells:
    generator = torch.Generator().manual_seed(seed)
    vectors = torch.nn.functional.normalize(torch.randn(batch, count, 4, generator=generator), dim=2)
    score = torch.rand(batch, count, generator=generator)
    return Cells(vectors, torch.where(score < 0.3, 0.01, score))


@pytest.fixture
def all_compared_below(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LEAST_CELLS", 5)


def by_loops(cells0: Cells, cells1: Cells, pair: int) -> tuple[list[int], Tensor, list[float], list[float]]:
    """Partner, similarities, probability and distinctiveness of every cell of photo 0 of one pair."""
    similarity = cells0.descriptors[pair] @ cells1.descriptors[pair].t()
    score0, score1 = cells0.score[pair].tolist(), cells1.score[pair].tolist()
    worth0, worth1 = ([k for k, s in enumerate(scores) if s >= 0.02] for scores in (score0, score1))
    partner = similarity.argmax(dim=1).tolist()
    probability, distinctiveness = [0.0] * len(score0), [0.0] * len(score0)
    for i in worth0:
        j = max(worth1, key=lambda k: float(similarity[i, k]))
        if max(worth0, key=lambda k: float(similarity[k, j])) == i:
            power = math.exp(SCALE * float(similarity[i, j]))
            row = sum(math.exp(SCALE * float(similarity[i, k])) for k in worth1)
            column = sum(math.exp(SCALE * float(similarity[k, j])) for k in worth0)
            partner[i], probability[i], distinctiveness[i] = j, power**2 / row / column, score0[i] * score1[j]
    return partner, similarity, probability, distinctiveness


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("at_once", [1, 2**28])
def test_all_cells_by_loops(
    batch: int, at_once: int, all_compared_below: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SIMILARITIES_AT_ONCE", at_once)
    cells0, cells1 = cells(batch, 20, 1), cells(batch, 25, 2)
    forward, backward = match_cells_both_ways(cells0, cells1, SCALE)
    for found, own, other in (
        (match_cells(cells0, cells1, SCALE), cells0, cells1),
        (forward, cells0, cells1),
        (backward, cells1, cells0),
    ):
        for pair in range(batch):
            partner, similarity, probability, distinctiveness = by_loops(own, other, pair)
            assert found.index1[pair].tolist() == partner
            expected = similarity[torch.arange(len(partner)), partner]
            torch.testing.assert_close(found.similarity[pair], expected, atol=1e-5, rtol=0)
            assert found.probability[pair].tolist() == pytest.approx(probability, abs=1e-5)
            assert found.distinctiveness[pair].tolist() == pytest.approx(distinctiveness, abs=1e-6)
            assert 2 < sum(p > 0 for p in probability) < 20


def test_no_more_similarities_at_once_than_memory_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    """Five pairs of 20 x 25 cells, with room for the similarities of two: two, two and one."""
    monkeypatch.setattr(module, "SIMILARITIES_AT_ONCE", 2 * 20 * 25 + 1)
    at_once = []

    def together(cells0: Cells, cells1: Cells, logit_scale: float) -> MatchedCells:
        at_once.append(len(cells0.score))
        return _together(cells0, cells1, logit_scale)

    monkeypatch.setattr(module, "_together", together)
    assert match_cells(cells(5, 20, 1), cells(5, 25, 2), SCALE).index1.shape == (5, 20)
    assert at_once == [2, 2, 1]


def test_where_few_cells_are_distinctive_all_are_compared() -> None:
    few = cells(1, 20, 3)
    assert few.compared.all()  # twenty are fewer than 64
    many = Cells(torch.zeros(2, 100, 4), torch.zeros(2, 100))
    many.score[0, :64] = 0.02
    many.score[1, :63] = 0.02
    assert many.compared.sum(dim=1).tolist() == [64, 100]
    assert many[0].compared.tolist() == [True] * 64 + [False] * 36


def test_guided_cells_of_low_score_are_in_no_mutual_match(monkeypatch: pytest.MonkeyPatch) -> None:
    """With all of eight coarse cells as candidates: choices of all cells, matches of distinctive ones."""
    monkeypatch.setattr(module, "LEAST_CELLS", 5)
    generator = torch.Generator().manual_seed(5)
    sides = []
    for _ in range(2):
        vectors = torch.nn.functional.normalize(torch.randn(1, 6, 8, 16, generator=generator), dim=1)
        score = torch.rand(1, 1, 8, 16, generator=generator)
        score = torch.where(score < 0.4, 0.01, score)
        coarse = torch.nn.functional.normalize(torch.randn(1, 4, 2, 4, generator=generator), dim=1)
        dense = DenseDescriptors(vectors, score, 4, (32, 64), coarse=coarse)
        sides.append((dense, Cells(vectors.flatten(2).transpose(1, 2), score.flatten(1))))
    (dense0, cells0), (dense1, cells1) = sides
    forward, backward = match_cells_guided(dense0, dense1, cells0, cells1, SCALE)
    similarity = cells0.descriptors[0] @ cells1.descriptors[0].t()
    for found, table, own, other in (
        (forward, similarity, cells0, cells1),
        (backward, similarity.t(), cells1, cells0),
    ):
        assert found.index1[0].tolist() == table.argmax(dim=1).tolist()
        torch.testing.assert_close(found.similarity[0], table.amax(dim=1), atol=1e-5, rtol=0)
        back = table.argmax(dim=0)[found.index1[0]] == torch.arange(128)
        scores = own.score[0], other.score[0][found.index1[0]]
        distinctive = back & (scores[0] >= 0.02) & (scores[1] >= 0.02)
        assert 5 < int(distinctive.sum()) < int(back.sum())
        assert torch.equal(found.probability[0] > 0, distinctive)
        product = torch.where(distinctive, scores[0] * scores[1], 0.0)
        torch.testing.assert_close(found.distinctiveness[0], product)
        rows, columns = (SCALE * table).softmax(dim=1), (SCALE * table).softmax(dim=0)
        both = (rows * columns)[torch.arange(128), found.index1[0]]
        torch.testing.assert_close(
            found.probability[0], torch.where(distinctive, both, 0.0), atol=1e-5, rtol=0
        )

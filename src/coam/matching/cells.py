"""The best match of every cell of photo 0 among those of photo 1, and which of these matches are mutual.

A mutual match stands; every other cell takes the most similar one. One pair is streamed: the similarity
matrix is never held. The many small pairs of a training batch are compared in one product, because a thousand
small operations would wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coam.matching.guided import guided_choices
from coam.matching.mutual import MutualMatches, dual_softmax_nearest, nearest
from coam.models.outputs import DenseDescriptors

LEAST_DISTINCTIVE = 0.02  # cells below it are in no mutual match, as in `MatcherConfig`
LEAST_CELLS = 64  # unless fewer cells than this would be left
SIMILARITIES_AT_ONCE = 2**28  # of a training batch: 1 GB in float32


@dataclass(frozen=True)
class MatchedCells:
    """For each of N cells of photo 0 of B pairs; (B, N) each."""

    index1: Tensor  # int64: the partner in its mutual match, else the most similar cell of photo 1
    similarity: Tensor  # inner product with it
    probability: Tensor  # dual softmax of the mutual match the cell is part of; 0 where it is part of none
    distinctiveness: Tensor  # product of the two scores of that mutual match; 0 where there is none


@dataclass(frozen=True)
class Cells:
    """The cells of one photo of each pair; the batch is the first dimension, where there is one."""

    descriptors: Tensor  # (..., N, D)
    score: Tensor  # (..., N)

    def __getitem__(self, which: int | slice) -> Cells:
        return Cells(self.descriptors[which], self.score[which])

    @property
    def compared(self) -> Tensor:
        """Which cells (..., N) may be part of a mutual match."""
        worth = self.score >= LEAST_DISTINCTIVE
        return worth | (worth.sum(dim=-1, keepdim=True) < LEAST_CELLS)


def match_cells(cells0: Cells, cells1: Cells, logit_scale: float) -> MatchedCells:
    """Match B x N cells with B x M cells; cells of low score take no part in mutual matches.

    `logit_scale` multiplies similarities.
    """
    if len(cells0.score) == 1:
        mutual = _mutual(cells0[0], cells1[0], logit_scale)
        return _completed(cells0[0], cells1[0], mutual)
    together = max(1, SIMILARITIES_AT_ONCE // (cells0.score.shape[1] * cells1.score.shape[1]))
    groups = [slice(start, start + together) for start in range(0, len(cells0.score), together)]
    parts = [_together(cells0[group], cells1[group], logit_scale) for group in groups]
    return MatchedCells(*(torch.cat(field) for field in zip(*parts, strict=True)))


def match_cells_both_ways(
    cells0: Cells, cells1: Cells, logit_scale: float
) -> tuple[MatchedCells, MatchedCells]:
    """`match_cells` from photo 0 to 1 and from 1 to 0; mutual matches of a single pair are sought once."""
    if len(cells0.score) > 1:
        return match_cells(cells0, cells1, logit_scale), match_cells(cells1, cells0, logit_scale)
    mutual = _mutual(cells0[0], cells1[0], logit_scale)
    swapped = MutualMatches(mutual.index1, mutual.index0, mutual.similarity, mutual.probability)
    return _completed(cells0[0], cells1[0], mutual), _completed(cells1[0], cells0[0], swapped)


def match_cells_guided(
    dense0: DenseDescriptors, dense1: DenseDescriptors, cells0: Cells, cells1: Cells, logit_scale: float
) -> tuple[MatchedCells, MatchedCells]:
    """`match_cells_both_ways` of one pair, compared only where coarse descriptors allow a match.

    The cells are those of the descriptor maps. Softmax sums are over the candidates, cells of low score among
    them.
    """
    assert dense0.coarse is not None
    assert dense1.coarse is not None
    found = guided_choices(
        dense0.descriptors[0], dense1.descriptors[0], dense0.coarse[0], dense1.coarse[0], logit_scale
    )
    mutual = found.mutual
    assert mutual.probability is not None
    both = cells0.compared[0][mutual.index0] & cells1.compared[0][mutual.index1]
    index0, index1, probability = mutual.index0[both], mutual.index1[both], mutual.probability[both]
    distinctive = cells0.score[0][index0] * cells1.score[0][index1]
    ways = ((found.best0, found.similarity0, index0), (found.best1, found.similarity1, index1))
    return tuple(  # type: ignore[return-value]
        MatchedCells(
            best.clamp(min=0)[None],
            similarity[None],
            torch.zeros_like(similarity).index_put((index,), probability)[None],
            torch.zeros_like(similarity).index_put((index,), distinctive)[None],
        )
        for best, similarity, index in ways
    )


def _mutual(cells0: Cells, cells1: Cells, logit_scale: float) -> MutualMatches:
    """Mutual matches of one pair, with their probability."""
    index0, index1 = (torch.nonzero(cells.compared).squeeze(1) for cells in (cells0, cells1))
    found = dual_softmax_nearest(cells0.descriptors[index0], cells1.descriptors[index1], logit_scale)
    return MutualMatches(index0[found.index0], index1[found.index1], found.similarity, found.probability)


def _completed(cells0: Cells, cells1: Cells, mutual: MutualMatches) -> MatchedCells:
    """The matches of one pair: the mutual ones, and for every other cell the most similar one."""
    assert mutual.probability is not None
    score = cells0.score
    index1 = torch.zeros(len(score), dtype=torch.int64, device=score.device)
    similarity, probability, distinctiveness = (torch.zeros_like(score) for _ in range(3))
    alone = torch.ones_like(score, dtype=torch.bool)
    alone[mutual.index0] = False
    index1[mutual.index0] = mutual.index1
    similarity[mutual.index0] = mutual.similarity
    index1[alone], similarity[alone] = nearest(cells0.descriptors[alone], cells1.descriptors)
    probability[mutual.index0] = mutual.probability
    distinctiveness[mutual.index0] = score[mutual.index0] * cells1.score[mutual.index1]
    return MatchedCells(index1[None], similarity[None], probability[None], distinctiveness[None])


def _together(cells0: Cells, cells1: Cells, logit_scale: float) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The fields of `MatchedCells` of B pairs, (B, N) each."""
    similarity = torch.bmm(cells0.descriptors.float(), cells1.descriptors.float().transpose(1, 2))
    best = similarity.max(dim=2)
    best_value = best.values.clone()
    compared = cells0.compared.unsqueeze(2) & cells1.compared.unsqueeze(1)
    logits = similarity.mul_(logit_scale).masked_fill_(~compared, -torch.inf)
    value, index1 = logits.max(dim=2)
    chosen_back = logits.max(dim=1).indices.gather(1, index1)
    own = torch.arange(cells0.score.shape[1], device=value.device)
    is_mutual = cells0.compared & (chosen_back == own)
    row_sum, column_sum = logits.logsumexp(dim=2), logits.logsumexp(dim=1)
    probability = (2 * value - row_sum - column_sum.gather(1, index1)).exp()
    distinctiveness = cells0.score * cells1.score.gather(1, index1)
    nothing = torch.zeros_like(probability)
    return (
        torch.where(is_mutual, index1, best.indices),
        torch.where(is_mutual, value / logit_scale, best_value),
        torch.where(is_mutual, probability, nothing),
        torch.where(is_mutual, distinctiveness, nothing),
    )

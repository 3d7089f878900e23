"""Nearest neighbours of VIEW's cells among those of STYLE, and which matches are mutual.

One pair, as the stylizer is used, is streamed: the similarity matrix is never held. The many small pairs of a
training batch are compared in one product, because a thousand small operations would wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coam.matching.mutual import dual_softmax_nearest, nearest

LEAST_DISTINCTIVE = 0.02  # cells below it are in no mutual match, as in `MatcherConfig`
LEAST_CELLS = 64  # unless fewer cells than this would be left
SIMILARITIES_AT_ONCE = 2**28  # of a training batch: 1 GB in float32


@dataclass(frozen=True)
class MatchedCells:
    """For each of N cells of B VIEWs; (B, N) each."""

    index1: Tensor  # int64: the most similar cell of STYLE
    similarity: Tensor  # inner product with it
    probability: Tensor  # dual softmax of the mutual match the cell is part of; 0 where it is part of none
    distinctiveness: Tensor  # product of the two scores of that mutual match; 0 where there is none


@dataclass(frozen=True)
class _Cells:
    """The cells of one image of each pair; the batch is the first dimension, where there is one."""

    descriptors: Tensor  # (..., N, D)
    score: Tensor  # (..., N)
    compared: Tensor  # (..., N) bool: may be part of a mutual match

    def __getitem__(self, which: int | slice) -> _Cells:
        return _Cells(self.descriptors[which], self.score[which], self.compared[which])


def match_cells(
    cells0: Tensor, cells1: Tensor, score0: Tensor, score1: Tensor, logit_scale: float
) -> MatchedCells:
    """Match descriptors (B, N, D) with (B, M, D) of scores (B, N) and (B, M).

    Cells of low score take no part in mutual matches. `logit_scale` multiplies similarities.
    """
    batch, count = cells0.shape[:2]
    view = _Cells(cells0, score0, _worth_comparing(score0))
    style = _Cells(cells1, score1, _worth_comparing(score1))
    if batch == 1:
        parts = [_streamed(view[0], style[0], logit_scale)]
    else:
        together = max(1, SIMILARITIES_AT_ONCE // (count * cells1.shape[1]))
        groups = [slice(start, start + together) for start in range(0, batch, together)]
        parts = [_together(view[group], style[group], logit_scale) for group in groups]
    return MatchedCells(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _worth_comparing(score: Tensor) -> Tensor:
    """Whether cells (B, N) of these scores may be part of a mutual match."""
    worth = score >= LEAST_DISTINCTIVE
    return worth | (worth.sum(dim=1, keepdim=True) < LEAST_CELLS)


Fields = tuple[Tensor, Tensor, Tensor, Tensor]


def _streamed(view: _Cells, style: _Cells, logit_scale: float) -> Fields:
    """The fields of `MatchedCells` of one pair, (1, N) each."""
    index, similarity = nearest(view.descriptors, style.descriptors)
    index0, index1 = (torch.nonzero(cells.compared).squeeze(1) for cells in (view, style))
    mutual = dual_softmax_nearest(view.descriptors[index0], style.descriptors[index1], logit_scale)
    assert mutual.probability is not None
    index0, index1 = index0[mutual.index0], index1[mutual.index1]
    probability, distinctiveness = torch.zeros_like(similarity), torch.zeros_like(similarity)
    probability[index0] = mutual.probability
    distinctiveness[index0] = view.score[index0] * style.score[index1]
    return index[None], similarity[None], probability[None], distinctiveness[None]


def _together(view: _Cells, style: _Cells, logit_scale: float) -> Fields:
    """The fields of `MatchedCells` of B pairs, (B, N) each."""
    similarity = torch.bmm(view.descriptors.float(), style.descriptors.float().transpose(1, 2))
    best = similarity.max(dim=2)
    compared = view.compared.unsqueeze(2) & style.compared.unsqueeze(1)
    logits = similarity.mul_(logit_scale).masked_fill_(~compared, -torch.inf)
    value, index1 = logits.max(dim=2)
    chosen_back = logits.max(dim=1).indices.gather(1, index1)
    own = torch.arange(view.score.shape[1], device=value.device)
    is_mutual = view.compared & (chosen_back == own)
    row_sum, column_sum = logits.logsumexp(dim=2), logits.logsumexp(dim=1)
    probability = (2 * value - row_sum - column_sum.gather(1, index1)).exp()
    distinctiveness = view.score * style.score.gather(1, index1)
    nothing = torch.zeros_like(probability)
    return (
        best.indices,
        best.values.clone(),
        torch.where(is_mutual, probability, nothing),
        torch.where(is_mutual, distinctiveness, nothing),
    )

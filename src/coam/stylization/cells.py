"""Which cell of STYLE each cell of VIEW resembles most, and which matches are mutual.

One pair, as the stylizer is used, is streamed: the similarity matrix is never held. The many small pairs of a
training batch are compared in one product, because a thousand small operations would wait for each other.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coam.matching import dual_softmax_nearest, nearest

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


def match_cells(
    cells0: Tensor, cells1: Tensor, score0: Tensor, score1: Tensor, temperature: float
) -> MatchedCells:
    """Match descriptors (B, N, D) with (B, M, D) of scores (B, N) and (B, M).

    Cells of low score take no part in mutual matches. `temperature` multiplies similarities.
    """
    batch, count = cells0.shape[:2]
    given = (cells0, cells1, _worth_comparing(score0), _worth_comparing(score1), score0, score1)
    if batch == 1:
        parts = [_streamed(*(tensor[0] for tensor in given), temperature=temperature)]
    else:
        together = max(1, SIMILARITIES_AT_ONCE // (count * cells1.shape[1]))
        groups = [slice(start, start + together) for start in range(0, batch, together)]
        parts = [_together(*(tensor[g] for tensor in given), temperature=temperature) for g in groups]
    return MatchedCells(*(torch.cat(field) for field in zip(*parts, strict=True)))


def _worth_comparing(score: Tensor) -> Tensor:
    """Whether cells (B, N) of these scores may be part of a mutual match."""
    worth = score >= LEAST_DISTINCTIVE
    return worth | (worth.sum(dim=1, keepdim=True) < LEAST_CELLS)


Fields = tuple[Tensor, Tensor, Tensor, Tensor]


def _streamed(
    cells0: Tensor,
    cells1: Tensor,
    worth0: Tensor,
    worth1: Tensor,
    score0: Tensor,
    score1: Tensor,
    *,
    temperature: float,
) -> Fields:
    """The fields of `MatchedCells` of one pair, (1, N) each."""
    best = nearest(cells0, cells1)
    index0, index1 = torch.nonzero(worth0).squeeze(1), torch.nonzero(worth1).squeeze(1)
    mutual = dual_softmax_nearest(cells0[index0], cells1[index1], 1.0 / temperature)
    assert mutual.probability is not None
    index0, index1 = index0[mutual.index0], index1[mutual.index1]
    probability, distinctiveness = torch.zeros_like(best.similarity), torch.zeros_like(best.similarity)
    probability[index0] = mutual.probability
    distinctiveness[index0] = score0[index0] * score1[index1]
    return best.index1[None], best.similarity[None], probability[None], distinctiveness[None]


def _together(
    cells0: Tensor,
    cells1: Tensor,
    worth0: Tensor,
    worth1: Tensor,
    score0: Tensor,
    score1: Tensor,
    *,
    temperature: float,
) -> Fields:
    """The fields of `MatchedCells` of B pairs, (B, N) each."""
    similarity = torch.bmm(cells0.float(), cells1.float().transpose(1, 2))
    best = similarity.max(dim=2)
    compared = worth0.unsqueeze(2) & worth1.unsqueeze(1)
    logits = similarity.mul_(temperature).masked_fill_(~compared, -torch.inf)
    value, index1 = logits.max(dim=2)
    chosen_back = logits.max(dim=1).indices.gather(1, index1)
    own = torch.arange(cells0.shape[1], device=cells0.device)
    is_mutual = worth0 & (chosen_back == own)
    row_sum, column_sum = logits.logsumexp(dim=2), logits.logsumexp(dim=1)
    probability = (2 * value - row_sum - column_sum.gather(1, index1)).exp()
    distinctiveness = score0 * score1.gather(1, index1)
    nothing = torch.zeros_like(probability)
    return (
        best.indices,
        best.values.clone(),
        torch.where(is_mutual, probability, nothing),
        torch.where(is_mutual, distinctiveness, nothing),
    )

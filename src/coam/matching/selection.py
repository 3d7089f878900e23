"""Choosing the best matches without crowding them into a few places."""

from __future__ import annotations

import torch
from torch import Tensor

from coam.tensors import fused_kernels

MOST_COMPARED = 16384  # entries of which all are compared with all: it grows with their square


def rank_within(bins: Tensor, score: Tensor) -> Tensor:
    """How many better entries of its own bin each entry has: (N,) int64 from bins (N,) int64 and score (N,).

    Bins count from 0. Equal scores keep their order, so the result is the same on every run.
    """
    kernels = fused_kernels(score.device)
    if kernels is not None and 0 < len(score) <= MOST_COMPARED:
        fused: Tensor = kernels.fused_rank_within(bins, score)
        return fused
    by_score = torch.sort(score, descending=True, stable=True).indices
    sorted_bins, by_bin = torch.sort(bins[by_score], stable=True)
    first = torch.searchsorted(sorted_bins, sorted_bins)
    rank = torch.empty_like(bins)
    rank[by_score[by_bin]] = torch.arange(len(bins), device=bins.device) - first
    return rank


def choose_spread(points: Tensor, score: Tensor, count: int, cell: float, crowding: float) -> Tensor:
    """Spatially balanced selection: indices (at most `count`,) of the best entries, best score first.

    points (N, 2) fall into square cells of side `cell`; the n-th best entry of a cell counts crowding^n of
    its score when it is decided who is chosen. With crowding = 1 these are simply the best.
    """
    columns = (points[:, 0] / cell).floor().long()
    rows = (points[:, 1] / cell).floor().long()
    bins = rows * (columns.max() + 1 if len(columns) else 1) + columns
    worth = score * crowding ** rank_within(bins, score)
    if fused_kernels(score.device) is not None and 0 < len(score) <= MOST_COMPARED:
        return _best_of_worthiest(score, worth, count)
    chosen = torch.sort(worth, descending=True, stable=True).indices[:count]
    return chosen[torch.sort(score[chosen], descending=True, stable=True).indices]


def _best_of_worthiest(score: Tensor, worth: Tensor, count: int) -> Tensor:
    """Indices (at most `count`,) of the entries with the largest worth (N,), ordered by score (N,).

    Everybody's place is the number of better ones, so nothing is sorted: fast where few are compared at once.
    """
    number = len(score)
    is_chosen = rank_within(torch.zeros_like(score, dtype=torch.int32), worth) < count
    place = rank_within(is_chosen.int(), score)
    order = torch.empty(number + 1, dtype=torch.int64, device=score.device)
    order.scatter_(0, place.where(is_chosen, number), torch.arange(number, device=score.device))
    return order[: min(count, number)]

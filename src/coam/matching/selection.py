"""Choosing the best matches without crowding them into a few places."""

from __future__ import annotations

import torch
from torch import Tensor


def rank_within(bins: Tensor, score: Tensor) -> Tensor:
    """How many better entries of its own bin each entry has: (N,) int64 from bins (N,) int64 and score (N,).

    Equal scores keep their order, so the result is the same on every run.
    """
    by_score = torch.sort(score, descending=True, stable=True).indices
    sorted_bins, by_bin = torch.sort(bins[by_score], stable=True)
    first = torch.searchsorted(sorted_bins, sorted_bins)
    rank = torch.empty_like(bins)
    rank[by_score[by_bin]] = torch.arange(len(bins), device=bins.device) - first
    return rank


def choose_spread(points: Tensor, score: Tensor, count: int, cell: float, crowding: float) -> Tensor:
    """Indices (at most `count`,) of the best entries, best score first.

    points (N, 2) fall into square cells of side `cell`; the n-th best entry of a cell counts crowding^n of
    its score when it is decided who is chosen. With crowding = 1 these are simply the best.
    """
    columns = (points[:, 0] / cell).floor().long()
    rows = (points[:, 1] / cell).floor().long()
    bins = rows * (columns.max() + 1 if len(columns) else 1) + columns
    worth = score * crowding ** rank_within(bins, score)
    chosen = torch.sort(worth, descending=True, stable=True).indices[:count]
    return chosen[torch.sort(score[chosen], descending=True, stable=True).indices]

"""Exact nearest neighbours between two sets of descriptors, without ever holding the whole similarity matrix.

The similarity is the inner product, in float32. It is computed in panels of rows; every entry is computed
once, and row maxima and column maxima are both taken from that one number. So "the row's maximum equals the
column's maximum" compares a number with itself and needs no tolerance, whatever the chunking.

Ties are decided by the smallest index on both sides: i and j match if j is the first maximum of row i and i
is the first maximum of column j.

With COAM_TRITON=1, on a CUDA device, the same is done by a fused kernel (`mutual_triton`).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec

import torch
from torch import Tensor

_PANEL_ELEMENTS = 16 * 2**20 - 1  # float32 entries of a panel: under 64 MB
_CPU_PANEL_ROWS = 256  # as fast as higher panels, and 16384 columns of it stay in the L3 cache
_TILE_COLUMNS = 1024  # 256 x 1024 floats are reduced while they are still in the L2 cache
_GROUP = 64  # row maxima are found per group of columns first: plain maxima are 15 times faster than indexed
_SAFE_EXPONENT = 80.0  # exp(-80) is still a normal float32


@dataclass(frozen=True)
class MutualMatches:
    """K pairs that choose each other. Ordered by `index0` as they are found, best first after `top_k`."""

    index0: Tensor  # (K,) int64, positions in descriptors0
    index1: Tensor  # (K,) int64, positions in descriptors1
    similarity: Tensor  # (K,) float32, inner product
    probability: Tensor | None = None  # (K,) float32, softmax over the row times softmax over the column

    def __len__(self) -> int:
        return int(self.index0.shape[0])


@dataclass(frozen=True)
class NearestMatches:
    """For every query the position of its best descriptor."""

    index1: Tensor  # (N,) int64
    similarity: Tensor  # (N,) float32


@dataclass(frozen=True)
class _Panel:
    """Some rows of the similarity matrix, alive until the next panel is asked for."""

    start: int
    similarity: Tensor  # (R, M)
    row_value: Tensor  # (R,) maximum of each row
    row_index: Tensor  # (R,) its first column
    column_value: Tensor  # (M,) maximum of each column within this panel


def fold_score(descriptors: Tensor, score: Tensor) -> Tensor:
    """Descriptors (N, D) times their distinctiveness (N,).

    The inner product of two folded descriptors is r_k r_l <d_k, d_l>, eq. 2 of the paper.
    """
    return descriptors * score.unsqueeze(-1)


@torch.no_grad()
def mutual_nearest(descriptors0: Tensor, descriptors1: Tensor, chunk: int | None = None) -> MutualMatches:
    """Exact mutual nearest neighbours of descriptors0 (N, D) and descriptors1 (M, D) by inner product.

    `chunk` is the number of rows compared at a time: memory grows with it, the result does not depend on it
    (beyond the rounding of the matrix product). The default keeps a chunk's similarities under 64 MB; on a
    CUDA device with Triton it is the fused kernel, which has none.
    """
    if chunk is None and _can_fuse(descriptors0, descriptors1):
        from coam.matching.mutual_triton import fused_mutual_nearest

        return fused_mutual_nearest(descriptors0, descriptors1)
    return _mutual(descriptors0, descriptors1, chunk, None)


@torch.no_grad()
def dual_softmax_nearest(
    descriptors0: Tensor, descriptors1: Tensor, temperature: float, chunk: int | None = None
) -> MutualMatches:
    """The matches of `mutual_nearest`, each with its dual softmax `probability`, in the same single pass.

    probability(i, j) = softmax over row i times softmax over column j of <d_i, d_j> / temperature.
    (The paper's "temperature 20" multiplies: give 1 / 20 here.)
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive, not {temperature}")
    softmax = _DualSoftmax(descriptors0, descriptors1, temperature)
    if chunk is None and softmax.common_shift is not None and _can_fuse(descriptors0, descriptors1):
        from coam.matching.mutual_triton import fused_mutual_nearest

        return fused_mutual_nearest(descriptors0, descriptors1, temperature, softmax.common_shift)
    return _mutual(descriptors0, descriptors1, chunk, softmax)


@torch.no_grad()
def nearest(queries: Tensor, descriptors1: Tensor, chunk: int | None = None) -> NearestMatches:
    """The best of descriptors1 (M, D) for each of queries (N, D); the smallest index among equals."""
    count, others = queries.shape[0], descriptors1.shape[0]
    if count and not others:
        raise ValueError("there are no descriptors to choose from")
    index = torch.empty(count, dtype=torch.int64, device=queries.device)
    value = torch.empty(count, dtype=torch.float32, device=queries.device)
    for panel in _similarity_panels(queries, descriptors1, chunk):
        rows = slice(panel.start, panel.start + len(panel.row_index))
        index[rows], value[rows] = panel.row_index, panel.row_value
    return NearestMatches(index, value)


def top_k(matches: MutualMatches, k: int) -> MutualMatches:
    """The k best matches, best first, by probability where there is one and by similarity otherwise.

    Equal ones keep their order, so the result is the same on every run.
    """
    rank = matches.similarity if matches.probability is None else matches.probability
    best = torch.sort(rank, descending=True, stable=True).indices[: max(k, 0)]
    return MutualMatches(
        matches.index0[best],
        matches.index1[best],
        matches.similarity[best],
        None if matches.probability is None else matches.probability[best],
    )


def _can_fuse(descriptors0: Tensor, descriptors1: Tensor) -> bool:
    # Off until it has been checked on a GPU against the plain path (benchmarks/gpu_check.py).
    if os.environ.get("COAM_TRITON") != "1":
        return False
    if descriptors0.device.type != "cuda" or not torch.version.cuda or find_spec("triton") is None:
        return False
    from coam.matching.mutual_triton import is_supported

    return is_supported(descriptors0, descriptors1)


def _mutual(
    descriptors0: Tensor, descriptors1: Tensor, chunk: int | None, softmax: _DualSoftmax | None
) -> MutualMatches:
    columns, device = descriptors1.shape[0], descriptors1.device
    column_best = torch.full((columns,), -math.inf, device=device)
    # The row that is a column's first maximum, if that row chose this column; -1 if it chose another.
    partner = torch.full((columns,), -1, dtype=torch.int64, device=device)
    for panel in _similarity_panels(descriptors0, descriptors1, chunk):
        # Strictly greater: of equal rows the first panel's wins.
        improved = panel.column_value > column_best
        new_best = torch.maximum(column_best, panel.column_value)
        if softmax is not None:
            softmax.add(panel, column_best, new_best)
        column_best = new_best
        partner.masked_fill_(improved, -1)
        chosen = panel.row_index
        row = torch.nonzero(improved[chosen] & (panel.row_value == column_best[chosen])).squeeze(1)
        column = chosen[row]
        # Rows of this panel may tie within a column; only the first of them is the column's choice.
        attains = panel.similarity.index_select(1, column) == column_best[column]
        is_first = attains.to(torch.uint8).argmax(dim=0) == row
        partner[column[is_first]] = row[is_first] + panel.start
    index1 = torch.nonzero(partner >= 0).squeeze(1)
    index0, order = torch.sort(partner[index1])
    index1 = index1[order]
    similarity = column_best[index1]
    probability = None if softmax is None else softmax.probability(index0, index1, similarity)
    return MutualMatches(index0, index1, similarity, probability)


class _DualSoftmax:
    """Sums of exponentials of all rows and columns, gathered panel by panel.

    Where the exponents cannot spread beyond what float32 holds (Cauchy-Schwarz bounds them), one exponential
    per entry with one common shift serves row and column sums; otherwise each has its own shift, its maximum.
    """

    def __init__(self, descriptors0: Tensor, descriptors1: Tensor, temperature: float) -> None:
        rows, columns = descriptors0.shape[0], descriptors1.shape[0]
        self.sharpness = 1.0 / temperature
        bound = 0.0
        if rows and columns:
            longest = descriptors0.float().norm(dim=1).max() * descriptors1.float().norm(dim=1).max()
            bound = float(longest)
        self.common_shift = bound if 2 * bound * self.sharpness < _SAFE_EXPONENT else None
        self.row_sum = torch.zeros(rows, device=descriptors0.device)
        self.row_shift = torch.full((rows,), bound, device=descriptors0.device)
        self.column_sum = torch.zeros(columns, device=descriptors0.device)
        self.column_shift = torch.full((columns,), bound, device=descriptors0.device)

    def add(self, panel: _Panel, old_best: Tensor, new_best: Tensor) -> None:
        """Take in a panel; `old_best` and `new_best` (M,) are the column maxima before and after it."""
        rows = slice(panel.start, panel.start + len(panel.row_value))
        row_sum = self.row_sum[rows]
        width = _tile_width(panel.similarity)
        for start in range(0, panel.similarity.shape[1], width):
            columns = slice(start, start + width)
            tile = panel.similarity[:, columns]
            if self.common_shift is not None:
                shares = self._exponential(tile, self.common_shift)
                row_sum += shares.sum(dim=1)
                self.column_sum[columns] += shares.sum(dim=0)
                continue
            row_sum += self._exponential(tile, panel.row_value.unsqueeze(1)).sum(dim=1)
            shrink = self._exponential(old_best[columns], new_best[columns])
            added = self._exponential(tile, new_best[columns]).sum(dim=0)
            self.column_sum[columns] = self.column_sum[columns] * shrink + added
        if self.common_shift is None:
            self.row_shift[rows] = panel.row_value
            self.column_shift = new_best

    def probability(self, index0: Tensor, index1: Tensor, similarity: Tensor) -> Tensor:
        """Row softmax times column softmax (K,) at the entries (index0, index1)."""
        row = self._exponential(similarity, self.row_shift[index0]) / self.row_sum[index0]
        column = self._exponential(similarity, self.column_shift[index1]) / self.column_sum[index1]
        return row * column

    def _exponential(self, value: Tensor, shift: Tensor | float) -> Tensor:
        return (value - shift).mul_(self.sharpness).exp_()


def _panel_rows(rows: int, columns: int, chunk: int | None, on_cpu: bool) -> int:
    most = max(1, _PANEL_ELEMENTS // max(columns, 1))
    if chunk is not None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, not {chunk}")
        return min(chunk, rows)
    if on_cpu:
        # Few columns make cheap panels: take more rows, so that the fixed cost of a panel does not count.
        most = min(most, max(_CPU_PANEL_ROWS, _CPU_PANEL_ROWS * 16384 // max(columns, 1)))
    return min(most, rows)


def _tile_width(matrix: Tensor) -> int:
    return _TILE_COLUMNS if matrix.device.type == "cpu" else matrix.shape[1]


def _similarity_panels(descriptors0: Tensor, descriptors1: Tensor, chunk: int | None) -> Iterator[_Panel]:
    """Panels of the similarity matrix of (N, D) and (M, D) from top to bottom; none if one is empty."""
    rows, columns = descriptors0.shape[0], descriptors1.shape[0]
    if rows == 0 or columns == 0:
        return
    descriptors0, descriptors1 = descriptors0.float(), descriptors1.float().t()
    height = _panel_rows(rows, columns, chunk, descriptors0.device.type == "cpu")
    tile_width = _tile_width(descriptors1)
    groups = -(-columns // _GROUP)
    # The columns that fill the last group stay at -inf and so never win.
    buffer = torch.full((height, groups * _GROUP), -math.inf, device=descriptors0.device)
    group_value = torch.empty(height, groups, device=descriptors0.device)
    column_value = torch.empty(columns, device=descriptors0.device)
    for start in range(0, rows, height):
        block = descriptors0[start : start + height]
        panel, group_maxima = buffer[: len(block)], group_value[: len(block)]
        for left in range(0, columns, tile_width):
            right = min(left + tile_width, columns)
            tile = panel[:, left:right]
            torch.mm(block, descriptors1[:, left:right], out=tile)
            torch.amax(tile, dim=0, out=column_value[left:right])
            first, last = left // _GROUP, -(-right // _GROUP)
            whole_groups = panel[:, first * _GROUP : last * _GROUP].view(-1, last - first, _GROUP)
            torch.amax(whole_groups, dim=2, out=group_maxima[:, first:last])
        row_value, group = group_maxima.max(dim=1)
        winners = panel.view(-1, groups, _GROUP)[torch.arange(len(block), device=panel.device), group]
        row_index = group * _GROUP + winners.argmax(dim=1)
        yield _Panel(start, panel[:, :columns], row_value, row_index, column_value)

"""Exact nearest neighbours between two sets of descriptors, without ever holding the whole similarity matrix.

The similarity is the inner product, in float32. It is computed in panels of rows; every entry is computed
once, and row maxima and column maxima are both taken from that one number. So "the row's maximum equals the
column's maximum" compares a number with itself and needs no tolerance, whatever the chunking.

Ties are decided by the smallest index on both sides: i and j match if j is the first maximum of row i and i
is the first maximum of column j.

On a CUDA device with Triton the same is done by a fused kernel (`mutual_triton`); COAM_TRITON=0 turns it off.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from coam.fused import can_fuse
from coam.matching.threads import run_side_by_side

_PANEL_ELEMENTS = 16 * 2**20 - 1  # float32 entries of a panel: under 64 MB
_CPU_PANEL_ROWS = 256  # as fast as higher panels, and 16384 columns of it stay in the L3 cache
_TILE_COLUMNS = 2048  # 256 x 2048 floats are reduced while in the caches; half as many take a tenth longer
_GROUP = 64  # row maxima are found per group of columns first: plain maxima are 15 times faster than indexed
_SAFE_EXPONENT = 70.0  # exp(70), a hundred thousand times it, and exp(-70) are all normal float32
_WORTH_A_THREAD = 2**22  # entries of the similarity matrix from which shares of it run side by side


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
class RowChoices:
    """What every row of the similarity matrix chose, and whether that choice was returned."""

    index1: Tensor  # (N,) int64
    similarity: Tensor  # (N,) float32
    is_mutual: Tensor  # (N,) bool
    probability: Tensor | None = None  # (N,) float32, dual softmax of the choice


@dataclass(frozen=True)
class NearestMatches:
    """For every query the position of its best descriptor."""

    index1: Tensor  # (N,) int64
    similarity: Tensor  # (N,) float32


@dataclass(frozen=True)
class _Panel:
    """Some rows of the similarity matrix, alive until the next panel is asked for."""

    start: int
    descriptors: Tensor  # (R, D) of its rows
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
    softmax = _Softmax.between(descriptors0, descriptors1, temperature)
    if chunk is None and softmax.needs_no_shift and _can_fuse(descriptors0, descriptors1):
        from coam.matching.mutual_triton import fused_mutual_nearest

        return fused_mutual_nearest(descriptors0, descriptors1, temperature)
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
    if not can_fuse(descriptors0.device):
        return False
    from coam.matching.mutual_triton import is_supported

    return is_supported(descriptors0, descriptors1)


@dataclass(frozen=True)
class _Share:
    """What some rows, in one piece, contribute to the search."""

    column_best: Tensor  # (M,) maximum of each column over these rows
    partner: Tensor  # (M,) the row that is a column's first maximum, if it chose this column; else -1
    sums: _ExponentialSums | None


def _mutual(
    descriptors0: Tensor, descriptors1: Tensor, chunk: int | None, softmax: _Softmax | None
) -> MutualMatches:
    rows = descriptors0.shape[0]
    factor = 1.0
    if softmax is not None and softmax.needs_no_shift:
        factor = softmax.scale  # products are exponents at once: a tile is not multiplied any more
        descriptors0 = descriptors0.float() * factor
    starts = _share_starts(rows, descriptors1.shape[0], chunk, descriptors0.device.type == "cpu")
    tasks = [
        partial(_search, descriptors0[start:end], descriptors1, chunk, softmax, start)
        for start, end in zip(starts, [*starts[1:], rows], strict=True)
    ]
    shares = run_side_by_side(tasks)
    column_best, partner = shares[0].column_best, shares[0].partner
    for share in shares[1:]:
        # Strictly greater: of equal rows the first wins.
        improved = share.column_best > column_best
        column_best = torch.where(improved, share.column_best, column_best)
        partner = torch.where(improved, share.partner, partner)
    index1 = torch.nonzero(partner >= 0).squeeze(1)
    index0, order = torch.sort(partner[index1])
    index1 = index1[order]
    similarity = column_best[index1] / factor
    sums = _ExponentialSums.joined([share.sums for share in shares if share.sums is not None])
    return MutualMatches(
        index0, index1, similarity, None if sums is None else sums.probability(index0, index1, similarity)
    )


@torch.no_grad()  # set per thread
def _search(
    descriptors0: Tensor, descriptors1: Tensor, chunk: int | None, softmax: _Softmax | None, offset: int
) -> _Share:
    """The share of descriptors0 (R, D), which are the rows from `offset`."""
    columns, device = descriptors1.shape[0], descriptors1.device
    column_best = torch.full((columns,), -math.inf, device=device)
    partner = torch.full((columns,), -1, dtype=torch.int64, device=device)
    sums = None if softmax is None else _ExponentialSums.of_none(softmax, len(descriptors0), columns, device)
    on_tile = sums.add_tile if sums is not None and softmax is not None and softmax.needs_no_shift else None
    for panel in _similarity_panels(descriptors0, descriptors1, chunk, on_tile):
        improved = panel.column_value > column_best
        new_best = torch.maximum(column_best, panel.column_value)
        if sums is not None and on_tile is None:
            sums.add_panel(panel, column_best, new_best)
        column_best = new_best
        partner.masked_fill_(improved, -1)
        chosen = panel.row_index
        row = torch.nonzero(improved[chosen] & (panel.row_value == column_best[chosen])).squeeze(1)
        column = chosen[row]
        is_first = _first_among_equals(panel.descriptors, descriptors1[column].float(), row)
        partner[column[is_first]] = row[is_first] + (panel.start + offset)
    return _Share(column_best, partner, sums)


def _first_among_equals(rows: Tensor, columns: Tensor, row: Tensor) -> Tensor:
    """Whether no earlier one of rows (R, D) is as similar to columns (K, D) as row[k] is: (K,) bool.

    Only the first of equal rows is a column's choice. The few similarities are computed again: to look them
    up in a panel, each in a cache line of its own, takes ten times as long.
    """
    similarity = rows @ columns.t()
    own = similarity[row, torch.arange(len(row), device=row.device)]
    return (similarity == own).to(torch.uint8).argmax(dim=0) == row


def _share_starts(rows: int, columns: int, chunk: int | None, on_cpu: bool) -> list[int]:
    """First rows of the shares that run side by side: one per thread of torch if that pays."""
    threads = torch.get_num_threads() if on_cpu and chunk is None else 1
    if rows * columns < _WORTH_A_THREAD:
        threads = 1
    return [rows * thread // threads for thread in range(threads)]


@dataclass(frozen=True)
class _Softmax:
    """How exponentials are taken: exp(x / temperature) = 2^(scale x)."""

    scale: float
    needs_no_shift: bool  # float32 holds the exponentials and their sums as they are

    @staticmethod
    def between(descriptors0: Tensor, descriptors1: Tensor, temperature: float) -> _Softmax:
        bound = 0.0
        if descriptors0.shape[0] and descriptors1.shape[0]:
            longest = [d.float().norm(dim=1).max() for d in (descriptors0, descriptors1)]
            bound = float(longest[0] * longest[1])  # Cauchy-Schwarz
        return _Softmax(math.log2(math.e) / temperature, bound / temperature < _SAFE_EXPONENT)

    def power(self, value: Tensor, shift: Tensor) -> Tensor:
        """exp((value - shift) / temperature); torch takes powers of 2 three times as fast as those of e."""
        return (value - shift).mul_(self.scale).exp2_()


@dataclass
class _ExponentialSums:
    """Sums over rows and columns of 2^(scale (similarity - shift)).

    Without shifts one exponential per entry serves row and column, and tiles are taken while they are in the
    cache; otherwise each row and column is shifted by its maximum.
    """

    softmax: _Softmax
    row_sum: Tensor  # (R,)
    row_shift: Tensor  # (R,)
    column_sum: Tensor  # (M,)
    column_shift: Tensor  # (M,)
    buffer: Tensor  # of the size of a tile

    @staticmethod
    def of_none(softmax: _Softmax, rows: int, columns: int, device: torch.device) -> _ExponentialSums:
        zeros = [torch.zeros(count, device=device) for count in (rows, rows, columns, columns, 0)]
        return _ExponentialSums(softmax, *zeros)

    @staticmethod
    def joined(parts: list[_ExponentialSums]) -> _ExponentialSums | None:
        """Sums of all rows from those of consecutive ones."""
        if len(parts) <= 1:
            return parts[0] if parts else None
        softmax = parts[0].softmax
        shift = torch.stack([part.column_shift for part in parts]).amax(dim=0)
        return _ExponentialSums(
            softmax,
            torch.cat([part.row_sum for part in parts]),
            torch.cat([part.row_shift for part in parts]),
            torch.stack([p.column_sum * softmax.power(p.column_shift, shift) for p in parts]).sum(dim=0),
            shift,
            parts[0].buffer,
        )

    def add_tile(self, tile: Tensor, top: int, left: int) -> None:
        """Take in, without shifts, scaled similarities (R, C) of the rows from `top`, columns from `left`."""
        rows, columns = tile.shape
        if self.buffer.shape != tile.shape:
            self.buffer = torch.empty(tile.shape, device=tile.device)
        power = torch.exp2(tile, out=self.buffer)
        self.row_sum[top : top + rows] += power.sum(dim=1)
        self.column_sum[left : left + columns] += power.new_ones(rows) @ power  # faster than sum(dim=0)

    def add_panel(self, panel: _Panel, old_best: Tensor, new_best: Tensor) -> None:
        """Take in a panel; `old_best` and `new_best` (M,) are the column maxima before and after it."""
        rows = slice(panel.start, panel.start + len(panel.row_value))
        width = _tile_width(panel.similarity)
        for start in range(0, panel.similarity.shape[1], width):
            columns = slice(start, start + width)
            tile = panel.similarity[:, columns]
            self.row_sum[rows] += self.softmax.power(tile, panel.row_value.unsqueeze(1)).sum(dim=1)
            shrink = self.softmax.power(old_best[columns], new_best[columns])
            added = self.softmax.power(tile, new_best[columns]).sum(dim=0)
            self.column_sum[columns] = self.column_sum[columns] * shrink + added
        self.row_shift[rows] = panel.row_value
        self.column_shift = new_best

    def probability(self, index0: Tensor, index1: Tensor, similarity: Tensor) -> Tensor:
        """Row softmax times column softmax (K,) at the entries (index0, index1)."""
        row = self.softmax.power(similarity, self.row_shift[index0]) / self.row_sum[index0]
        column = self.softmax.power(similarity, self.column_shift[index1]) / self.column_sum[index1]
        return row * column


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


def _similarity_panels(
    descriptors0: Tensor,
    descriptors1: Tensor,
    chunk: int | None,
    on_tile: Callable[[Tensor, int, int], None] | None = None,
) -> Iterator[_Panel]:
    """Panels of the similarity matrix of (N, D) and (M, D) from top to bottom; none if one is empty.

    `on_tile` gets every tile, its first row and its first column, while it is still in the cache.
    """
    rows, columns = descriptors0.shape[0], descriptors1.shape[0]
    if rows == 0 or columns == 0:
        return
    descriptors0, descriptors1 = descriptors0.float(), descriptors1.float().t()
    height = _panel_rows(rows, columns, chunk, descriptors0.device.type == "cpu")
    tile_width = _tile_width(descriptors1)
    groups = -(-columns // _GROUP)
    # The columns that fill the last group stay at -inf and so never win.
    # A group more than is needed: rows a power of two apart would compete for the same places in the cache.
    buffer = torch.full((height, (groups + 1) * _GROUP), -math.inf, device=descriptors0.device)
    group_value = torch.empty(height, groups, device=descriptors0.device)
    column_value = torch.empty(columns, device=descriptors0.device)
    for start in range(0, rows, height):
        block = descriptors0[start : start + height]
        panel, group_maxima = buffer[: len(block), : groups * _GROUP], group_value[: len(block)]
        for left in range(0, columns, tile_width):
            right = min(left + tile_width, columns)
            tile = panel[:, left:right]
            torch.mm(block, descriptors1[:, left:right], out=tile)
            torch.amax(tile, dim=0, out=column_value[left:right])
            first, last = left // _GROUP, -(-right // _GROUP)
            whole_groups = panel[:, first * _GROUP : last * _GROUP].view(-1, last - first, _GROUP)
            torch.amax(whole_groups, dim=2, out=group_maxima[:, first:last])
            if on_tile is not None:
                on_tile(tile, start, left)
        row_value, group = group_maxima.max(dim=1)
        winners = panel.view(-1, groups, _GROUP)[torch.arange(len(block), device=panel.device), group]
        row_index = group * _GROUP + winners.argmax(dim=1)
        yield _Panel(start, block, panel[:, :columns], row_value, row_index, column_value)

"""Exact nearest neighbours between two sets of descriptors, without ever holding the whole similarity matrix.

The similarity is the inner product, in float32. It is computed in tiles, and row maxima and column maxima
are both taken from the same number. So "the row's maximum equals the column's
maximum" compares a number with itself and needs no tolerance, whatever the tiles.

Ties are decided by the smallest index on both sides: i and j match if j is the first maximum of row i and i
is the first maximum of column j.

On a CUDA device with Triton a fused kernel does the same (`coam.kernels.mutual`); COAM_TRITON=0 turns it off.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor

from coam.tensors import fused_kernels

_TILE_ELEMENTS = 16 * 2**20 - 1  # float32 entries of a tile: under 64 MB
_CPU_TILE = (512, 2048)  # rows and columns of a tile that is reduced while in the caches
_GROUP = 128  # row maxima are found per group of columns first: plain maxima are 15 times faster than indexed
_SAFE_EXPONENT = 70.0  # exp(70), a hundred thousand times it, and exp(-70) are all normal float32
_WORTH_A_THREAD = 2**22  # entries of the similarity matrix from which shares of it run side by side
_alone = threading.Lock()  # torch's number of threads belongs to the process

Result = TypeVar("Result")


@dataclass(frozen=True)
class MutualMatches:
    """K pairs that choose each other. Ordered by `index0`."""

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
class _Tile:
    """A part of the similarity matrix, alive until the next one is asked for."""

    rows: slice
    columns: slice
    similarity: Tensor  # (R, C)
    groups: Tensor  # (R, G, _GROUP), the same memory; -inf fills the last group


@torch.no_grad()
def mutual_nearest(descriptors0: Tensor, descriptors1: Tensor, chunk: int | None = None) -> MutualMatches:
    """Exact mutual nearest neighbours of descriptors0 (N, D) and descriptors1 (M, D) by inner product.

    `chunk` is the number of rows compared at a time: memory grows with it, the result does not depend on it
    (beyond the rounding of the matrix product). The default keeps a chunk's similarities under 64 MB; on a
    CUDA device with Triton it is the fused kernel, which has none.
    """
    fused = _fused(descriptors0, descriptors1, None) if chunk is None else None
    return _mutual(descriptors0, descriptors1, chunk, None) if fused is None else fused


@torch.no_grad()
def dual_softmax_nearest(
    descriptors0: Tensor, descriptors1: Tensor, logit_scale: float, chunk: int | None = None
) -> MutualMatches:
    """The matches of `mutual_nearest`, each with its dual softmax `probability`, in the same single pass.

    probability(i, j) = softmax over row i times softmax over column j of logit_scale <d_i, d_j>.
    (This is what the paper calls its temperature, 20.)
    """
    if not logit_scale > 0:
        raise ValueError(f"logit_scale must be positive, not {logit_scale}")
    softmax = _Softmax.between(descriptors0, descriptors1, logit_scale)
    fusable = chunk is None and softmax.needs_no_shift
    fused = _fused(descriptors0, descriptors1, logit_scale) if fusable else None
    return _mutual(descriptors0, descriptors1, chunk, softmax) if fused is None else fused


@torch.no_grad()
def nearest(queries: Tensor, descriptors1: Tensor, chunk: int | None = None) -> tuple[Tensor, Tensor]:
    """Index and similarity (N,) of the best of descriptors1 (M, D) for each of queries (N, D).

    The smallest index among equals.
    """
    if len(queries) and not len(descriptors1):
        raise ValueError("there are no descriptors to choose from")
    best = _RowMaxima(len(queries), queries.device)
    for tile in _tiles(queries, descriptors1, chunk):
        best.take(tile)
    return best.index, best.value


@torch.no_grad()
def log_partition(
    queries: Tensor, descriptors1: Tensor, logit_scale: float, chunk: int | None = None
) -> Tensor:
    """log of the sum over descriptors1 (M, D) of exp(logit_scale <q, d>), (N,), for each of queries (N, D).

    What a softmax over descriptors1 divides by; -inf where there are none.
    """
    softmax = _Softmax.between(queries, descriptors1, logit_scale)
    total = queries.new_full(
        (len(queries),), 0.0 if softmax.needs_no_shift else -math.inf, dtype=torch.float32
    )
    for tile in _tiles(queries.float() * softmax.scale, descriptors1, chunk):
        if softmax.needs_no_shift:
            total[tile.rows] += tile.similarity.exp2_().sum(dim=1)
        else:
            exponent = torch.logsumexp(tile.similarity * math.log(2), dim=1)
            total[tile.rows] = torch.logaddexp(total[tile.rows], exponent)
    return total.log() if softmax.needs_no_shift else total


def _fused(descriptors0: Tensor, descriptors1: Tensor, logit_scale: float | None) -> MutualMatches | None:
    """The same by a fused kernel, where there is one that takes these."""
    kernels = fused_kernels(descriptors0.device)
    if kernels is None or not kernels.takes_descriptors(descriptors0, descriptors1):
        return None
    found: MutualMatches = kernels.fused_mutual_nearest(descriptors0, descriptors1, logit_scale)
    return found


def _mutual(
    descriptors0: Tensor, descriptors1: Tensor, chunk: int | None, softmax: _Softmax | None
) -> MutualMatches:
    rows = descriptors0.shape[0]
    factor = 1.0
    if softmax is not None and softmax.needs_no_shift:
        factor = softmax.scale  # products are exponents at once: a tile is not multiplied any more
        descriptors0 = descriptors0.float() * factor
    # Shares of the rows that run side by side: one per thread of torch if that pays.
    pays = chunk is None and descriptors0.device.type == "cpu" and rows * len(descriptors1) >= _WORTH_A_THREAD
    threads = torch.get_num_threads() if pays else 1
    edges = [rows * thread // threads for thread in range(threads + 1)]
    shares = run_side_by_side(
        [
            partial(_search, descriptors0[start:end], descriptors1, chunk, softmax, start)
            for start, end in pairwise(edges)
        ]
    )
    column_best, partner, _ = shares[0]
    for best, chosen, _ in shares[1:]:
        # Strictly greater: of equal rows the first wins.
        improved = best > column_best
        column_best = torch.where(improved, best, column_best)
        partner = torch.where(improved, chosen, partner)
    index1 = torch.nonzero(partner >= 0).squeeze(1)
    index0, order = torch.sort(partner[index1])
    index1 = index1[order]
    similarity = column_best[index1] / factor
    sums = _ExponentialSums.joined([part for _, _, part in shares if part is not None])
    return MutualMatches(
        index0, index1, similarity, None if sums is None else sums.probability(index0, index1, similarity)
    )


@torch.no_grad()  # set per thread
def _search(
    descriptors0: Tensor, descriptors1: Tensor, chunk: int | None, softmax: _Softmax | None, offset: int
) -> tuple[Tensor, Tensor, _ExponentialSums | None]:
    """What descriptors0 (R, D), the rows from `offset`, contribute to the search.

    The maximum (M,) of each column over these rows; the row (M,) that is its first maximum, if it chose this
    column, else -1; the sums of exponentials.
    """
    rows, columns, device = descriptors0.shape[0], descriptors1.shape[0], descriptors1.device
    of_rows, of_columns = _RowMaxima(rows, device), _ColumnMaxima(columns, device)
    sums = None if softmax is None else _ExponentialSums.of_none(softmax, rows, columns, device)
    for tile in _tiles(descriptors0, descriptors1, chunk):
        of_rows.take(tile)
        of_columns.take(tile)
        if sums is not None:
            sums.take(tile, of_rows.value, of_columns.value)
    height = _tile_height(rows, columns, chunk, device)
    partner = _partners(descriptors0, descriptors1, of_rows, of_columns, height)
    return of_columns.value, torch.where(partner >= 0, partner + offset, -1), sums


def _partners(
    descriptors0: Tensor, descriptors1: Tensor, of_rows: _RowMaxima, of_columns: _ColumnMaxima, height: int
) -> Tensor:
    """The row (M,) that is a column's first maximum, if it chose this column, else -1. Tiles had `height`."""
    nobody = len(descriptors0)
    partner = torch.full_like(of_columns.top, nobody)
    for top in range(0, nobody if len(partner) else 0, height):
        block = slice(top, top + height)
        chosen = of_rows.index[block]
        is_best = (of_columns.top[chosen] == top) & (of_columns.value[chosen] == of_rows.value[block])
        row = torch.nonzero(is_best).squeeze(1)
        column = chosen[row]
        is_first = _first_among_equals(descriptors0[block].float(), descriptors1[column].float(), row)
        # Equal rows may both seem first where the product rounds them differently: the smaller index wins.
        partner.scatter_reduce_(0, column[is_first], row[is_first] + top, "amin")
    return torch.where(partner < nobody, partner, -1)


def _first_among_equals(rows: Tensor, columns: Tensor, row: Tensor) -> Tensor:
    """Whether no earlier one of rows (R, D) is as similar to columns (K, D) as row[k] is: (K,) bool.

    Only the first of equal rows is a column's choice. The few similarities are computed again: to look them
    up in a tile, each in a cache line of its own, takes ten times as long.
    """
    similarity = rows @ columns.t()
    own = similarity[row, torch.arange(len(row), device=row.device)]
    return (similarity == own).to(torch.uint8).argmax(dim=0) == row


@dataclass(frozen=True)
class _Softmax:
    """How exponentials are taken: exp(logit_scale x) = 2^(scale x)."""

    scale: float
    needs_no_shift: bool  # float32 holds the exponentials and their sums as they are

    @staticmethod
    def between(descriptors0: Tensor, descriptors1: Tensor, logit_scale: float) -> _Softmax:
        bound = 0.0
        if descriptors0.shape[0] and descriptors1.shape[0]:
            longest = [d.float().norm(dim=1).max() for d in (descriptors0, descriptors1)]
            bound = float(longest[0] * longest[1])  # Cauchy-Schwarz
        return _Softmax(math.log2(math.e) * logit_scale, bound * logit_scale < _SAFE_EXPONENT)

    def power(self, value: Tensor, shift: Tensor) -> Tensor:
        """exp(logit_scale (value - shift)); torch takes powers of 2 three times as fast as those of e."""
        return (value - shift).mul_(self.scale).exp2_()


class _RowMaxima:
    """The maximum `value` (N,) of each row so far and the `index` (N,) of its first column."""

    def __init__(self, rows: int, device: torch.device) -> None:
        self.value = torch.full((rows,), -math.inf, device=device)
        self.index = torch.zeros(rows, dtype=torch.int64, device=device)

    def take(self, tile: _Tile) -> None:
        """Take in a tile to the right of those before."""
        best, index = self.value[tile.rows], self.index[tile.rows]
        value, group = tile.groups.amax(dim=2).max(dim=1)
        # Strictly greater: of equal columns the first wins.
        row = torch.nonzero(value > best).squeeze(1)
        group = group[row]
        index[row] = tile.groups[row, group].argmax(dim=1) + (group * _GROUP + tile.columns.start)
        torch.maximum(best, value, out=best)


class _ColumnMaxima:
    """The maximum `value` (M,) of each column so far and the `top` (M,) row of the first tile that has it."""

    def __init__(self, columns: int, device: torch.device) -> None:
        self.value = torch.full((columns,), -math.inf, device=device)
        self.top = torch.zeros(columns, dtype=torch.int64, device=device)

    def take(self, tile: _Tile) -> None:
        """Take in a tile below those before."""
        best = self.value[tile.columns]
        value = tile.similarity.amax(dim=0)
        self.top[tile.columns].masked_fill_(value > best, tile.rows.start)
        torch.maximum(best, value, out=best)


@dataclass
class _ExponentialSums:
    """Sums over rows and columns of 2^(scale (similarity - shift)).

    Without shifts one exponential per entry serves row and column; otherwise each row and column is shifted
    by its maximum so far.
    """

    softmax: _Softmax
    row_sum: Tensor  # (R,)
    row_shift: Tensor  # (R,)
    column_sum: Tensor  # (M,)
    column_shift: Tensor  # (M,)

    @staticmethod
    def of_none(softmax: _Softmax, rows: int, columns: int, device: torch.device) -> _ExponentialSums:
        shift = 0.0 if softmax.needs_no_shift else -math.inf
        row, column = (torch.zeros(count, device=device) for count in (rows, columns))
        return _ExponentialSums(
            softmax, row, torch.full_like(row, shift), column, torch.full_like(column, shift)
        )

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
        )

    def take(self, tile: _Tile, row_best: Tensor, column_best: Tensor) -> None:
        """Take in a tile; `row_best` (R,) and `column_best` (M,) are the maxima up to it.

        Without shifts similarities are already scaled, and their memory is used for the exponentials.
        """
        row_sum, column_sum = self.row_sum[tile.rows], self.column_sum[tile.columns]
        if self.softmax.needs_no_shift:
            power = tile.similarity.exp2_()
            row_sum += power.sum(dim=1)
            column_sum += power.new_ones(len(power)) @ power  # faster than sum(dim=0)
            return
        row_shift, column_shift = row_best[tile.rows], column_best[tile.columns]
        row_sum *= self.softmax.power(self.row_shift[tile.rows], row_shift)
        row_sum += self.softmax.power(tile.similarity, row_shift.unsqueeze(1)).sum(dim=1)
        column_sum *= self.softmax.power(self.column_shift[tile.columns], column_shift)
        column_sum += self.softmax.power(tile.similarity, column_shift).sum(dim=0)
        self.row_shift[tile.rows], self.column_shift[tile.columns] = row_shift, column_shift

    def probability(self, index0: Tensor, index1: Tensor, similarity: Tensor) -> Tensor:
        """Row softmax times column softmax (K,) at the entries (index0, index1)."""
        row = self.softmax.power(similarity, self.row_shift[index0]) / self.row_sum[index0]
        column = self.softmax.power(similarity, self.column_shift[index1]) / self.column_sum[index1]
        return row * column


def _tile_height(rows: int, columns: int, chunk: int | None, device: torch.device) -> int:
    if chunk is not None:
        if chunk < 1:
            raise ValueError(f"chunk must be at least 1, not {chunk}")
        return max(1, min(chunk, rows))
    most = _TILE_ELEMENTS // max(columns, 1)
    if device.type == "cpu":
        # Few columns make small tiles: take more rows, so that the fixed cost of a tile does not count.
        most = _CPU_TILE[0] * _CPU_TILE[1] // min(max(columns, _GROUP), _CPU_TILE[1])
    return max(1, min(most, rows))


def _tiles(descriptors0: Tensor, descriptors1: Tensor, chunk: int | None) -> Iterator[_Tile]:
    """Tiles of the similarity matrix of (N, D) and (M, D), from top to bottom, then to the right.

    In this order the columns' descriptors stay in the cache.
    """
    rows, columns, device = descriptors0.shape[0], descriptors1.shape[0], descriptors0.device
    if rows == 0 or columns == 0:
        return
    descriptors0, descriptors1 = descriptors0.float(), descriptors1.float().t()
    height = _tile_height(rows, columns, chunk, device)
    width = min(_CPU_TILE[1], columns) if device.type == "cpu" else columns
    for left in range(0, columns, width):
        strip = descriptors1[:, left : left + width]
        count = strip.shape[1]
        groups = -(-count // _GROUP)
        # A group more than is needed: rows a power of two apart would compete for the same cache lines.
        buffer = torch.empty(height, (groups + 1) * _GROUP, device=device)
        buffer[:, count:] = -math.inf
        for top in range(0, rows, height):
            block = descriptors0[top : top + height]
            padded = buffer[: len(block), : groups * _GROUP]
            similarity = torch.mm(block, strip, out=padded[:, :count])
            yield _Tile(
                slice(top, top + len(block)),
                slice(left, left + count),
                similarity,
                padded.view(-1, groups, _GROUP),
            )


def one_by_one(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of the tasks."""
    return [task() for task in tasks]


def run_side_by_side(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of the tasks, run in as many threads as torch has, in each of which torch uses one core.

    torch cuts each operation into as many parts as it has threads. An operation of a tenth of a millisecond
    gains nothing from that: waking the other thread takes as long. Two shares of many small operations, each
    on one core, are done in half the time.

    One task or one core, or a second caller at the same time: they are run here, one after the other. Tasks
    are in inference mode where the caller is; what else torch keeps per thread they must set themselves.
    """
    threads = torch.get_num_threads()
    if min(len(tasks), threads) <= 1 or not _alone.acquire(blocking=False):
        return one_by_one(tasks)
    inference = torch.is_inference_mode_enabled()

    def run(task: Callable[[], Result]) -> Result:
        with torch.inference_mode(inference):
            return task()

    try:
        torch.set_num_threads(1)  # new threads begin with this number
        with ThreadPoolExecutor(min(len(tasks), threads)) as pool:
            return list(pool.map(run, tasks))
    finally:
        torch.set_num_threads(threads)
        _alone.release()

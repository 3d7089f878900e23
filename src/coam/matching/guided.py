"""Guided search: mutual nearest neighbours, compared only where coarse descriptors allow a match.

The network's coarse descriptors say which few coarse cells of the other photo can hold the match of a cell.
Positions are compared there alone, from both photos, so that the cost grows with the number of pixels and not
with its square. The exact search of `mutual` is the reference.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.matching.mutual import MutualMatches, run_side_by_side
from coam.models.outputs import DenseDescriptors

_CELLS_AT_ONCE = 512  # cells whose candidates are sought together; of a coarse map: in whole rows of blocks
_CHUNK_ELEMENTS = 2**19  # similarities held at a time by each of two threads: 2 MB stay in the cache
_BLOCK = 2  # cells a side whose positions are compared with the same candidates: larger, faster products
LARGEST_LOGIT_SCALE = 69.0  # float32 holds the exponentials of similarities and their sums as they are


@dataclass(frozen=True)
class GuideOptions:
    """Which coarse cells are candidates."""

    cells: int = 8  # most similar cells of the other photo, for every cell of either photo
    reach: int = 1  # cells by which each candidate is widened on every side


DEFAULT_GUIDE = GuideOptions()


@dataclass(frozen=True)
class _Positions:
    """Descriptors of one photo by coarse cell, and by blocks of cells."""

    by_cell: Tensor  # (cells, positions a cell, D)
    by_block: Tensor  # (blocks, D, positions a block): products with this layout are a third faster
    index_by_cell: Tensor  # (cells * positions a cell,) row-major index in the descriptor map
    index_by_block: Tensor  # (blocks * positions a block,)

    @staticmethod
    def of(descriptors: Tensor, rows: int, columns: int) -> _Positions:
        """descriptors (D, H, W), rows and columns of the coarse map."""
        height, width = descriptors.shape[1:]
        index = torch.arange(height * width, device=descriptors.device).view(1, height, width)
        cell = height // rows
        return _Positions(
            _tiled(descriptors, cell),
            _tiled(descriptors, cell * _BLOCK).transpose(1, 2).contiguous(),
            _tiled(index, cell).flatten(),
            _tiled(index, cell * _BLOCK).flatten(),
        )


def can_guide(dense: DenseDescriptors) -> bool:
    """Whether a descriptor map divides into blocks of the cells of its coarse map."""
    if dense.coarse is None:
        return False
    (height, width), (rows, columns) = dense.descriptors.shape[-2:], dense.coarse.shape[-2:]
    even = rows % _BLOCK == 0 and columns % _BLOCK == 0 and min(rows, columns) > 0
    return even and height % rows == 0 and width % columns == 0 and height // rows == width // columns


@dataclass(frozen=True)
class GuidedChoices:
    """What the positions of two photos choose among their candidates; (N,) and (M,), by row-major index."""

    best0: Tensor  # int64: of photo 1, for every position of photo 0; -1: no similarity is positive
    best1: Tensor
    similarity0: Tensor  # float32, with the choice
    similarity1: Tensor
    mutual: MutualMatches


@torch.no_grad()
def guided_dual_softmax(
    descriptors0: Tensor,
    descriptors1: Tensor,
    coarse0: Tensor,
    coarse1: Tensor,
    logit_scale: float,
    options: GuideOptions = DEFAULT_GUIDE,
) -> MutualMatches:
    """Mutual nearest neighbours of two descriptor maps (D, H, W), by row-major index, with dual softmax.

    coarse0, coarse1: unit descriptors (D', H / s, W / s) of cells of s x s positions. A zero vector stands
    for a position that is not compared: nobody chooses it. Softmax sums are over the candidates.
    """
    return guided_choices(descriptors0, descriptors1, coarse0, coarse1, logit_scale, options).mutual


@torch.no_grad()
def guided_choices(
    descriptors0: Tensor,
    descriptors1: Tensor,
    coarse0: Tensor,
    coarse1: Tensor,
    logit_scale: float,
    options: GuideOptions = DEFAULT_GUIDE,
) -> GuidedChoices:
    """`guided_dual_softmax`, and what every position chose whether or not the choice is returned."""
    near0, near1 = candidates(coarse0, coarse1, options)
    side0 = _Positions.of(descriptors0.float(), *coarse0.shape[1:])
    side1 = _Positions.of(descriptors1.float(), *coarse1.shape[1:])
    factor = math.log2(math.e) * logit_scale
    (value0, best0, sum0), (value1, best1, sum1) = run_side_by_side(
        [partial(_choices, side0, side1, near0, factor), partial(_choices, side1, side0, near1, factor)]
    )
    row = torch.arange(len(best0), device=best0.device)
    index0 = row[(best0 >= 0) & (best1[best0.clamp(min=0)] == row)]
    index1 = best0[index0]
    exponent = value0[index0]
    probability = exponent.exp2() / sum0[index0] * (exponent.exp2() / sum1[index1])
    mutual = MutualMatches(index0, index1, exponent / factor, probability)
    return GuidedChoices(best0, best1, value0 / factor, value1 / factor, mutual)


def candidates(
    coarse0: Tensor, coarse1: Tensor, options: GuideOptions = DEFAULT_GUIDE
) -> tuple[Tensor, Tensor]:
    """Which cells of the other photo may hold the matches of a block of cells, for the blocks of each photo.

    (blocks of 0, cells of 1) and (blocks of 1, cells of 0), bool. Two cells are candidates for each other if
    one is near a most similar cell of the other, or the other way round.
    """
    (own0, others1), (own1, others0) = run_side_by_side(
        [partial(_most_similar, coarse0, coarse1, options), partial(_most_similar, coarse1, coarse0, options)]
    )
    return own0 | others0, own1 | others1


@torch.no_grad()  # set per thread
def _most_similar(queries: Tensor, others: Tensor, options: GuideOptions) -> tuple[Tensor, Tensor]:
    """The candidates that the cells of one coarse map name in the other: (its blocks, other cells) and
    (other blocks, its cells).

    Row by row of blocks: a table of all cells with all takes a gigabyte for two photos of 2048 pixels.
    """
    rows, columns = queries.shape[1:]
    flat, keys = queries.float().flatten(1).t().contiguous(), others.float().flatten(1)
    of_blocks = flat.new_empty(rows * columns // _BLOCK**2, keys.shape[1], dtype=torch.bool)
    of_others = flat.new_empty(keys.shape[1] // _BLOCK**2, rows * columns, dtype=torch.bool)
    height = max(1, _CELLS_AT_ONCE // (columns * _BLOCK)) * _BLOCK
    for top in range(0, rows, height):
        some = slice(top * columns, min(top + height, rows) * columns)
        similarity = flat[some] @ keys
        best = similarity.topk(min(options.cells, similarity.shape[1]), dim=1, sorted=False).indices
        chosen = torch.zeros_like(similarity, dtype=torch.bool).scatter_(1, best, True)
        near = _widened(chosen.view(-1, *others.shape[1:]), options.reach).flatten(1)
        of_blocks[slice(some.start // _BLOCK**2, some.stop // _BLOCK**2)] = _of_blocks(near, columns)
        of_others[:, some] = _of_blocks(near.t(), others.shape[2])
    return of_blocks, of_others


def _widened(chosen: Tensor, reach: int) -> Tensor:
    """Dilation of bool maps (N, H, W) by a square of 2 reach + 1."""
    for axis in (1, 2):
        whole = chosen.clone()
        length = chosen.shape[axis]
        for step in range(1, min(reach, length - 1) + 1):
            low, high = whole.narrow(axis, step, length - step), whole.narrow(axis, 0, length - step)
            low |= chosen.narrow(axis, 0, length - step)
            high |= chosen.narrow(axis, step, length - step)
        chosen = whole
    return chosen


def _of_blocks(near: Tensor, columns: int) -> Tensor:
    """Candidates (blocks, M) of blocks of cells, from those of cells (rows * columns, M)."""
    cells = near.reshape(-1, _BLOCK, columns // _BLOCK, _BLOCK, near.shape[1])
    blocks = torch.zeros_like(cells[:, 0, :, 0])
    for row, column in product(range(_BLOCK), repeat=2):  # any() over two axes takes ten times as long
        blocks |= cells[:, row, :, column]
    return blocks.flatten(0, 1)


def _tiled(feature_map: Tensor, side: int) -> Tensor:
    """(tiles, side * side, D) of a map (D, H, W): square tiles, row by row."""
    depth, height, width = feature_map.shape
    tiles = feature_map.view(depth, height // side, side, width // side, side)
    return tiles.permute(1, 3, 2, 4, 0).reshape(-1, side * side, depth)


@torch.no_grad()  # set per thread
def _choices(
    queries: _Positions, others: _Positions, near: Tensor, factor: float
) -> tuple[Tensor, Tensor, Tensor]:
    """For every position of one photo, by row-major index, over its candidates in the other.

    The largest exponent (N,), the index (N,) of the other's position that has it (-1: none is positive), and
    the sum (N,) of 2^exponent; exponents are factor times similarity. near (blocks, cells): the candidates.
    """
    count, depth, per_block = queries.by_block.shape
    per_cell = others.by_cell.shape[1]
    value, total = (near.new_zeros(count, per_block, dtype=torch.float32) for _ in range(2))
    best = near.new_full((count, per_block), -1, dtype=torch.int64)
    # One cell more, of zero vectors, fills up shorter lists of candidates.
    cells = F.pad(others.by_cell, (0, 0, 0, 0, 0, 1))
    for block, candidates in _chunks(near, per_block * per_cell):
        keys = cells.index_select(0, candidates.flatten()).view(len(block), -1, depth)
        # Queries run along the last axis, so that every reduction below is over a slow one: 5 times as fast.
        exponent = torch.bmm(keys, queries.by_block[block].mul_(factor))
        grouped = exponent.view(len(block), -1, per_cell, per_block)
        # Maxima of cells first: plain maxima are many times faster than indexed ones.
        highest, cell = grouped.amax(dim=2).max(dim=1)
        chosen = grouped.gather(1, cell[:, None, None].expand(-1, 1, per_cell, -1)).squeeze(1)
        found = candidates.gather(1, cell) * per_cell + chosen.argmax(dim=1)
        value[block] = highest
        best[block] = torch.where(highest > 0, found, -1)
        total[block] = exponent.exp2_().sum(dim=1)
    place = queries.index_by_block
    name = F.pad(others.index_by_cell, (0, per_cell), value=-1)
    best = torch.where(best >= 0, name[best.clamp(min=0)], -1)
    return tuple(  # type: ignore[return-value]
        torch.empty_like(part.flatten()).scatter_(0, place, part.flatten()) for part in (value, best, total)
    )


def _chunks(near: Tensor, entries: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Blocks (B,) with about as many candidates, and their candidate cells (B, K), filled up.

    near (blocks, cells); entries: similarities between a block and one cell. What fills up is the cell after
    the last one.
    """
    blocks, cells = near.shape
    # What a block may match, block by block from `first` on. Lists of one length for all blocks, or the sum
    # of the table, which torch widens to 64 bits, would take half a gigabyte for photos of 2048 pixels.
    block, cell = torch.nonzero(near, as_tuple=True)
    counts = torch.bincount(block, minlength=blocks)
    first = counts.cumsum(0) - counts
    cell = F.pad(cell, (0, 1), value=cells)
    order = counts.argsort(descending=True)
    start = 0
    while start < blocks:
        longest = max(1, int(counts[order[start]]))
        chunk = order[start : start + max(1, _CHUNK_ELEMENTS // (longest * entries))]
        step = torch.arange(longest, device=near.device)
        own = step < counts[chunk, None]
        yield chunk, cell[torch.where(own, first[chunk, None] + step, len(cell) - 1)]
        start += len(chunk)

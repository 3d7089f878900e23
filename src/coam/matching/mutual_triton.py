"""Mutual nearest neighbours in one fused pass on a CUDA device. Import only where Triton is installed.

A program keeps one block of rows and streams tiles of columns past it. The similarity of a tile lives in
registers only. What is written per program: the best value and column of each row, and per tile the largest
value of each column; so memory grows with rows * columns / block, a hundredth of the matrix and less, and
rows are taken in slabs, which bounds it.

Finding the place of a maximum costs more than finding its value, and the matrix units leave little time per
entry. So columns keep their value and the block of rows it came from; whether a matched row is the FIRST row
of its block with that value (ties!) is settled afterwards by a small kernel, which compares a block of rows
with only those columns that the rows of the block chose.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from coam.matching.mutual import MutualMatches, RowChoices

LARGEST_DESCRIPTOR = 256
PRECISION = "tf32x3"  # of float32 only: three products of the matrix unit for one, as exact as plain float32
COLUMN_TILE, COLUMN_GROUP = 32, 16  # columns of a program, and blocks at a time, when maxima are collected
SLAB_BLOCKS = 512  # blocks of rows per launch: column maxima of a slab take 512 * columns floats


@dataclass(frozen=True)
class KernelShape:
    """How the work is cut. Changes speed only, never the result."""

    block_rows: int = 128
    tile_columns: int = 64
    warps: int = 4
    stages: int = 3
    programs_per_processor: int = 4  # rows are cut into column splits until there are this many programs


# The fastest of eleven on an H200 (benchmarks/gpu_check.py --parts shapes).
HALF_PRECISION = KernelShape()
HALF_PRECISION_WITH_SUMS = KernelShape(block_rows=64, tile_columns=64)
FULL_PRECISION = KernelShape(block_rows=64, tile_columns=64, warps=4, stages=2)


# One compilation serves all sizes: by default Triton would compile again for sizes that are multiples of 16.
@triton.jit(do_not_specialize=["rows", "columns", "tiles_per_split", "first_block"])  # type: ignore[untyped-decorator]
def _search_kernel(  # type: ignore[no-untyped-def]
    rows_ptr,
    columns_ptr,
    row_value_ptr,
    row_index_ptr,
    row_sum_ptr,
    column_value_ptr,
    column_sum_ptr,
    rows,
    columns,
    tiles_per_split,
    column_stride,
    first_block,
    scale,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WITH_SUMS: tl.constexpr,
    EXACT: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block = tl.program_id(0)
    split = tl.program_id(1)
    row = (first_block + block) * BLOCK + tl.arange(0, BLOCK)
    feature = tl.arange(0, PADDED_SIZE)
    # Beyond the end the last row and column are repeated: a repeated maximum is still the maximum, and of
    # equal places the smallest wins, so entries need no mask.
    known_row = tl.minimum(row, rows - 1).to(tl.int64)
    query = tl.load(
        rows_ptr + known_row[None, :] * SIZE + feature[:, None], mask=feature[:, None] < SIZE, other=0.0
    )
    # Tiles are held transposed, (columns, rows). A thread of the matrix unit holds long stretches along the
    # second axis, so the reduction that every tile needs, over the rows, stays almost within a thread; that
    # over the columns is done entry by entry, and across threads only once, after the last tile.
    best = tl.full([TILE, BLOCK], float("-inf"), dtype=tl.float32)
    best_tile = tl.zeros([TILE, BLOCK], dtype=tl.int32)
    sums = tl.zeros([TILE, BLOCK], dtype=tl.float32)
    first_tile = split * tiles_per_split
    last_tile = tl.minimum(first_tile + tiles_per_split, tl.cdiv(columns, TILE))
    column_offset = block.to(tl.int64) * column_stride
    for tile in range(first_tile, last_tile):
        column = tile * TILE + tl.arange(0, TILE)
        known_column = tl.minimum(column, columns - 1).to(tl.int64)
        other = tl.load(
            columns_ptr + known_column[:, None] * SIZE + feature[None, :],
            mask=feature[None, :] < SIZE,
            other=0.0,
        )
        similarity = tl.dot(other, query, input_precision=PRECISION)
        better = similarity > best
        best_tile = tl.where(better, tile, best_tile)
        best = tl.where(better, similarity, best)
        tl.store(column_value_ptr + column_offset + column, tl.max(similarity, axis=1), mask=column < columns)
        if WITH_SUMS:
            exponential = tl.exp2(similarity * scale)
            if not EXACT:  # a repeated row or column must not be summed again
                exists = (row[None, :] < rows) & (column[:, None] < columns)
                exponential = tl.where(exists, exponential, 0.0)
            sums += exponential
            column_sum = tl.sum(exponential, axis=1)
            tl.store(column_sum_ptr + column_offset + column, column_sum, mask=column < columns)
    value = tl.max(best, axis=0)
    place = best_tile * TILE + tl.arange(0, TILE)[:, None]
    index = tl.min(tl.where(best == value[None, :], place, 2147483647), axis=0)
    row_offset = split.to(tl.int64) * rows
    tl.store(row_value_ptr + row_offset + row, value, mask=row < rows)
    tl.store(row_index_ptr + row_offset + row, index, mask=row < rows)
    if WITH_SUMS:
        tl.store(row_sum_ptr + row_offset + row, tl.sum(sums, axis=0), mask=row < rows)


@triton.jit(do_not_specialize=["blocks", "columns", "first_block"])  # type: ignore[untyped-decorator]
def _columns_kernel(  # type: ignore[no-untyped-def]
    value_ptr,
    sum_ptr,
    best_ptr,
    best_block_ptr,
    total_ptr,
    blocks,
    columns,
    column_stride,
    first_block,
    TILE: tl.constexpr,
    GROUP: tl.constexpr,
    WITH_SUMS: tl.constexpr,
):
    """Of each column the largest value over the blocks of a slab and those before, and its first block."""
    column = tl.program_id(0) * TILE + tl.arange(0, TILE)
    known = column < columns
    part = tl.arange(0, GROUP)
    best = tl.full([GROUP, TILE], float("-inf"), dtype=tl.float32)
    best_block = tl.zeros([GROUP, TILE], dtype=tl.int32)
    total = tl.zeros([GROUP, TILE], dtype=tl.float32)
    for start in range(0, blocks, GROUP):
        block = start + part
        mask = (block < blocks)[:, None] & known[None, :]
        place = block.to(tl.int64)[:, None] * column_stride + column[None, :]
        value = tl.load(value_ptr + place, mask=mask, other=float("-inf"))
        better = value > best
        best_block = tl.where(better, block[:, None], best_block)
        best = tl.where(better, value, best)
        if WITH_SUMS:
            total += tl.load(sum_ptr + place, mask=mask, other=0.0)
    highest = tl.max(best, axis=0)
    first = tl.min(tl.where(best == highest[None, :], best_block, 2147483647), axis=0) + first_block
    sums = tl.sum(total, axis=0)
    if first_block > 0:
        before = tl.load(best_ptr + column, mask=known, other=0.0)
        first = tl.where(highest > before, first, tl.load(best_block_ptr + column, mask=known, other=0))
        highest = tl.maximum(highest, before)
        if WITH_SUMS:
            sums += tl.load(total_ptr + column, mask=known, other=0.0)
    tl.store(best_ptr + column, highest, mask=known)
    tl.store(best_block_ptr + column, first, mask=known)
    if WITH_SUMS:
        tl.store(total_ptr + column, sums, mask=known)


@triton.jit(do_not_specialize=["rows", "splits"])  # type: ignore[untyped-decorator]
def _choice_kernel(  # type: ignore[no-untyped-def]
    rows_ptr,
    columns_ptr,
    row_value_ptr,
    row_index_ptr,
    row_sum_ptr,
    column_value_ptr,
    column_block_ptr,
    column_sum_ptr,
    value_ptr,
    index_ptr,
    is_mutual_ptr,
    probability_ptr,
    rows,
    splits,
    scale,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    WITH_SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """What each row chose over all splits of the columns, and whether the column chose it as well.

    That is so if the column's largest value is the row's, if it came from the row's block, and if no earlier
    row of the block is equally similar.
    """
    place = tl.arange(0, BLOCK)
    row = tl.program_id(0) * BLOCK + place
    known_row = tl.minimum(row, rows - 1)
    value = tl.load(row_value_ptr + known_row)
    chosen = tl.load(row_index_ptr + known_row)
    for split in range(1, splits):
        offset = split * rows
        other_value = tl.load(row_value_ptr + offset + known_row)
        other_index = tl.load(row_index_ptr + offset + known_row)
        chosen = tl.where(other_value > value, other_index, chosen)
        value = tl.maximum(value, other_value)
    feature = tl.arange(0, PADDED_SIZE)
    query = tl.load(
        rows_ptr + known_row.to(tl.int64)[:, None] * SIZE + feature[None, :],
        mask=feature[None, :] < SIZE,
        other=0.0,
    )
    other = tl.load(
        columns_ptr + chosen.to(tl.int64)[None, :] * SIZE + feature[:, None],
        mask=feature[:, None] < SIZE,
        other=0.0,
    )
    similarity = tl.dot(query, other, input_precision=PRECISION)
    own = tl.sum(tl.where(place[:, None] == place[None, :], similarity, 0.0), axis=0)
    earlier_equal = (similarity == own[None, :]) & (place[:, None] < place[None, :])
    is_first = tl.max(earlier_equal.to(tl.int32), axis=0) == 0
    is_mutual = is_first & (value == tl.load(column_value_ptr + chosen))
    is_mutual = is_mutual & (tl.load(column_block_ptr + chosen) == tl.program_id(0))
    known = row < rows
    tl.store(value_ptr + row, value, mask=known)
    tl.store(index_ptr + row, chosen.to(tl.int64), mask=known)
    tl.store(is_mutual_ptr + row, is_mutual.to(tl.int8), mask=known)
    if WITH_SUMS:
        row_sum = tl.zeros([BLOCK], dtype=tl.float32)
        for split in range(splits):
            row_sum += tl.load(row_sum_ptr + split * rows + known_row)
        share = tl.exp2(value * scale)
        probability = (share / row_sum) * (share / tl.load(column_sum_ptr + chosen))
        tl.store(probability_ptr + row, probability, mask=known)


def is_supported(descriptors0: Tensor, descriptors1: Tensor) -> bool:
    """Whether the kernel takes these: equal types of 16 or 32 bits, not empty, not too long."""
    return (
        descriptors0.dtype == descriptors1.dtype
        and descriptors0.dtype in (torch.float16, torch.bfloat16, torch.float32)
        and min(descriptors0.shape[0], descriptors1.shape[0]) > 0
        and 0 < descriptors0.shape[1] <= LARGEST_DESCRIPTOR
    )


def default_shape(dtype: torch.dtype, with_sums: bool) -> KernelShape:
    """The kernel shape for descriptors of this type, with or without the sums of the dual softmax."""
    if dtype == torch.float32:
        return FULL_PRECISION
    return HALF_PRECISION_WITH_SUMS if with_sums else HALF_PRECISION


@torch.no_grad()
def fused_mutual_nearest(
    descriptors0: Tensor,
    descriptors1: Tensor,
    temperature: float | None = None,
    shape: KernelShape | None = None,
) -> MutualMatches:
    """Mutual nearest neighbours of descriptors0 (N, D) and descriptors1 (M, D), neither of them empty.

    With a `temperature`, also the dual softmax probability; the largest absolute similarity must then stay
    below 70 temperatures, so that float32 holds exponentials and their sums as they are.
    """
    chosen = fused_choices(descriptors0, descriptors1, temperature, shape)
    index0 = torch.nonzero(chosen.is_mutual).squeeze(1)
    probability = None if chosen.probability is None else chosen.probability[index0]
    return MutualMatches(index0, chosen.index1[index0], chosen.similarity[index0], probability)


@torch.no_grad()
def fused_choices(
    descriptors0: Tensor,
    descriptors1: Tensor,
    temperature: float | None = None,
    shape: KernelShape | None = None,
) -> RowChoices:
    """What every row chose, mutual or not; arguments as in `fused_mutual_nearest`.

    Nothing here waits for the device, and all sizes are known before: a CUDA graph can hold it.
    """
    descriptors0, descriptors1 = descriptors0.contiguous(), descriptors1.contiguous()
    shape = shape or default_shape(descriptors0.dtype, with_sums=temperature is not None)
    rows, columns = _rows_of(descriptors0, descriptors1, temperature, shape)
    count, size = descriptors0.shape
    device = descriptors0.device
    value = torch.empty(count, device=device)
    index = torch.empty(count, dtype=torch.int64, device=device)
    is_mutual = torch.empty(count, dtype=torch.bool, device=device)
    probability = torch.empty(count if temperature is not None else 0, device=device)
    _choice_kernel[(triton.cdiv(count, shape.block_rows),)](
        descriptors0,
        descriptors1,
        rows.value,
        rows.index,
        rows.sum,
        columns.value,
        columns.index,
        columns.sum,
        value,
        index,
        is_mutual.view(torch.int8),
        probability,
        count,
        len(rows.value),
        _exponent(temperature),
        SIZE=size,
        PADDED_SIZE=max(16, triton.next_power_of_2(size)),
        BLOCK=shape.block_rows,
        WITH_SUMS=temperature is not None,
        PRECISION=PRECISION,
        num_warps=shape.warps,
    )
    return RowChoices(index, value, is_mutual, None if temperature is None else probability)


@dataclass(frozen=True)
class _Best:
    """Largest values, where they are, and sums of exponentials (empty if not asked for)."""

    value: Tensor  # (splits, N) of rows, (M,) of columns
    index: Tensor  # int32: the column; of columns the block of rows
    sum: Tensor


def _exponent(temperature: float | None) -> float:
    """Factor on similarities in powers of two."""
    return 0.0 if temperature is None else math.log2(math.e) / temperature


def _rows_of(
    descriptors0: Tensor, descriptors1: Tensor, temperature: float | None, shape: KernelShape
) -> tuple[_Best, _Best]:
    """Best columns of all rows, by splits of the columns, and best blocks of all columns."""
    (rows, size), columns, device = descriptors0.shape, descriptors1.shape[0], descriptors0.device
    blocks, tiles = triton.cdiv(rows, shape.block_rows), triton.cdiv(columns, shape.tile_columns)
    tiles_per_split = triton.cdiv(tiles, _splits(min(blocks, SLAB_BLOCKS), tiles, shape, device))
    splits = triton.cdiv(tiles, tiles_per_split)
    with_sums = temperature is not None
    of_rows = _Best(
        torch.empty(splits, rows, device=device),
        torch.empty(splits, rows, dtype=torch.int32, device=device),
        torch.empty(splits if with_sums else 0, rows, device=device),
    )
    of_columns = _Best(
        torch.empty(columns, device=device),
        torch.empty(columns, dtype=torch.int32, device=device),
        torch.empty(columns if with_sums else 0, device=device),
    )
    stride = 16 * triton.cdiv(columns, 16)  # lines begin where whole words can be written
    in_slab = min(blocks, SLAB_BLOCKS)
    column_value = torch.empty(in_slab, stride, device=device)
    column_sum = torch.empty(in_slab if with_sums else 0, stride, device=device)
    for first_block in range(0, blocks, SLAB_BLOCKS):
        in_slab = min(SLAB_BLOCKS, blocks - first_block)
        _search_kernel[(in_slab, splits)](
            descriptors0,
            descriptors1,
            of_rows.value,
            of_rows.index,
            of_rows.sum,
            column_value,
            column_sum,
            rows,
            columns,
            tiles_per_split,
            stride,
            first_block,
            _exponent(temperature),
            SIZE=size,
            PADDED_SIZE=max(16, triton.next_power_of_2(size)),
            BLOCK=shape.block_rows,
            TILE=shape.tile_columns,
            WITH_SUMS=with_sums,
            EXACT=rows % shape.block_rows == columns % shape.tile_columns == 0,
            PRECISION=PRECISION,
            num_warps=shape.warps,
            num_stages=shape.stages,
        )
        _columns_kernel[(triton.cdiv(columns, COLUMN_TILE),)](
            column_value,
            column_sum,
            of_columns.value,
            of_columns.index,
            of_columns.sum,
            in_slab,
            columns,
            stride,
            first_block,
            TILE=COLUMN_TILE,
            GROUP=COLUMN_GROUP,
            WITH_SUMS=with_sums,
            num_warps=4,
        )
    return of_rows, of_columns


def _splits(blocks: int, tiles: int, shape: KernelShape, device: torch.device) -> int:
    """Into how many parts the columns are cut, so that few rows still fill the device."""
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    )
    wanted = triton.cdiv(processors * shape.programs_per_processor, blocks)
    return int(max(1, min(wanted, tiles // 8)))

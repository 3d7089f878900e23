"""Mutual nearest neighbours in one fused pass on a CUDA device. Import only where Triton is installed.

A program keeps one block of rows and streams tiles of columns past it. The similarity of a tile lives in
registers only. What is written per program: the best value and column of each row, and per tile the largest
value of each column; so memory grows with rows * columns / block, a hundredth of the matrix and less, and
rows are taken in slabs, which bounds it.

Finding the place of a maximum costs more than finding its value, and the matrix units leave little time per
entry. So columns keep their value and the block of rows it came from; whether a matched row is the FIRST row
of its block with that value (ties!) is settled afterwards by a second, small kernel, which compares a block
of rows with only those columns that the rows of the block chose.
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
@triton.jit(do_not_specialize=["rows", "columns", "tiles_per_split"])  # type: ignore[untyped-decorator]
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
    scale,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    WITH_SUMS: tl.constexpr,
    PRECISION: tl.constexpr,
):
    block = tl.program_id(0)
    split = tl.program_id(1)
    row = block * BLOCK + tl.arange(0, BLOCK)
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


@triton.jit(do_not_specialize=["rows"])  # type: ignore[untyped-decorator]
def _first_kernel(  # type: ignore[no-untyped-def]
    rows_ptr,
    columns_ptr,
    row_index_ptr,
    is_first_ptr,
    rows,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """For each row: is no earlier row of its block equally similar to the column that it chose?"""
    place = tl.arange(0, BLOCK)
    row = tl.program_id(0) * BLOCK + place
    feature = tl.arange(0, PADDED_SIZE)
    known_row = tl.minimum(row, rows - 1).to(tl.int64)
    query = tl.load(
        rows_ptr + known_row[:, None] * SIZE + feature[None, :], mask=feature[None, :] < SIZE, other=0.0
    )
    chosen = tl.load(row_index_ptr + known_row)
    other = tl.load(
        columns_ptr + chosen[None, :] * SIZE + feature[:, None], mask=feature[:, None] < SIZE, other=0.0
    )
    similarity = tl.dot(query, other, input_precision=PRECISION)
    own = tl.sum(tl.where(place[:, None] == place[None, :], similarity, 0.0), axis=0)
    earlier_equal = (similarity == own[None, :]) & (place[:, None] < place[None, :])
    is_first = tl.max(earlier_equal.to(tl.int32), axis=0) == 0
    tl.store(is_first_ptr + row, is_first.to(tl.int8), mask=row < rows)


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
    slab_rows = SLAB_BLOCKS * shape.block_rows
    slabs = [
        _search_slab(slab, descriptors1, temperature, shape) for slab in torch.split(descriptors0, slab_rows)
    ]
    row_value = torch.cat([slab.row_value for slab in slabs])
    row_index = torch.cat([slab.row_index for slab in slabs])
    column_value, first_slab = torch.stack([slab.column_value for slab in slabs]).max(dim=0)
    column_block = (
        torch.stack([slab.column_block for slab in slabs]).gather(0, first_slab.unsqueeze(0)).squeeze(0)
    )
    column_block = column_block + first_slab * SLAB_BLOCKS

    row = torch.arange(len(row_value), device=row_value.device)
    is_mutual = (row_value == column_value[row_index]) & (column_block[row_index] == row // shape.block_rows)
    is_mutual &= _first_of_its_block(descriptors0, descriptors1, row_index, shape)
    if temperature is None:
        return RowChoices(row_index, row_value, is_mutual)
    row_sum = torch.cat([slab.row_sum for slab in slabs])
    column_sum = torch.stack([slab.column_sum for slab in slabs]).sum(dim=0)
    share = torch.exp(row_value / temperature)
    probability = (share / row_sum) * (share / column_sum[row_index])
    return RowChoices(row_index, row_value, is_mutual, probability)


@dataclass(frozen=True)
class _Slab:
    """Maxima (and sums of exponentials, empty if not asked for) of some rows against all columns."""

    row_value: Tensor  # (R,)
    row_index: Tensor  # (R,) int64
    row_sum: Tensor  # (R,)
    column_value: Tensor  # (M,)
    column_block: Tensor  # (M,) int64: first block of rows with that value
    column_sum: Tensor  # (M,)


def _search_slab(
    slab: Tensor,
    descriptors1: Tensor,
    temperature: float | None,
    shape: KernelShape,
) -> _Slab:
    rows, size = slab.shape
    columns, device = descriptors1.shape[0], slab.device
    blocks, tiles = triton.cdiv(rows, shape.block_rows), triton.cdiv(columns, shape.tile_columns)
    tiles_per_split = triton.cdiv(tiles, _splits(blocks, tiles, shape, device))
    splits = triton.cdiv(tiles, tiles_per_split)
    with_sums = temperature is not None
    sharpness = math.log2(math.e) / temperature if temperature is not None else 0.0
    row_value = torch.empty(splits, rows, device=device)
    row_index = torch.empty(splits, rows, dtype=torch.int32, device=device)
    row_sum = torch.empty(splits if with_sums else 0, rows, device=device)
    stride = 16 * triton.cdiv(columns, 16)  # lines begin where whole words can be written
    column_value = torch.empty(blocks, stride, device=device)
    column_sum = torch.empty(blocks if with_sums else 0, stride, device=device)
    _search_kernel[(blocks, splits)](
        slab,
        descriptors1,
        row_value,
        row_index,
        row_sum,
        column_value,
        column_sum,
        rows,
        columns,
        tiles_per_split,
        stride,
        sharpness,
        SIZE=size,
        PADDED_SIZE=max(16, triton.next_power_of_2(size)),
        BLOCK=shape.block_rows,
        TILE=shape.tile_columns,
        WITH_SUMS=with_sums,
        PRECISION=PRECISION,
        num_warps=shape.warps,
        num_stages=shape.stages,
    )
    # max gives the first of equal places: the earliest split and the earliest block.
    value, split = row_value.max(dim=0)
    index = row_index.gather(0, split.unsqueeze(0)).squeeze(0).long()
    best, block = column_value[:, :columns].max(dim=0)
    return _Slab(value, index, row_sum.sum(dim=0), best, block, column_sum[:, :columns].sum(dim=0))


def _splits(blocks: int, tiles: int, shape: KernelShape, device: torch.device) -> int:
    """Into how many parts the columns are cut, so that few rows still fill the device."""
    processors = (
        torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    )
    wanted = triton.cdiv(processors * shape.programs_per_processor, blocks)
    return int(max(1, min(wanted, tiles // 8)))


def _first_of_its_block(
    descriptors0: Tensor, descriptors1: Tensor, row_index: Tensor, shape: KernelShape
) -> Tensor:
    rows, size = descriptors0.shape
    is_first = torch.empty(rows, dtype=torch.int8, device=descriptors0.device)
    _first_kernel[(triton.cdiv(rows, shape.block_rows),)](
        descriptors0,
        descriptors1,
        row_index,
        is_first,
        rows,
        SIZE=size,
        PADDED_SIZE=max(16, triton.next_power_of_2(size)),
        BLOCK=shape.block_rows,
        PRECISION=PRECISION,
        num_warps=shape.warps,
    )
    return is_first.bool()

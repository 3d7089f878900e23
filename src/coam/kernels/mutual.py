"""Mutual nearest neighbours in one fused pass on a CUDA device. Import only where Triton is installed.

The similarities are never written (see `mutual_programs`): memory grows with rows * columns / block, a
hundredth of the matrix and less, and rows are taken in slabs, which bounds it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
from torch import Tensor

from coam.kernels.mutual_programs import choice_kernel, columns_kernel, search_kernel
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
    logit_scale: float | None = None,
    shape: KernelShape | None = None,
) -> MutualMatches:
    """Mutual nearest neighbours of descriptors0 (N, D) and descriptors1 (M, D), neither of them empty.

    With a `logit_scale`, also the dual softmax probability; logit_scale times the largest absolute
    similarity must then stay below 70, so that float32 holds exponentials and their sums as they are.
    """
    chosen = fused_choices(descriptors0, descriptors1, logit_scale, shape)
    index0 = torch.nonzero(chosen.is_mutual).squeeze(1)
    probability = None if chosen.probability is None else chosen.probability[index0]
    return MutualMatches(index0, chosen.index1[index0], chosen.similarity[index0], probability)


@torch.no_grad()
def fused_choices(
    descriptors0: Tensor,
    descriptors1: Tensor,
    logit_scale: float | None = None,
    shape: KernelShape | None = None,
) -> RowChoices:
    """What every row chose, mutual or not; arguments as in `fused_mutual_nearest`.

    Nothing here waits for the device, and all sizes are known before: a CUDA graph can hold it.
    """
    descriptors0, descriptors1 = descriptors0.contiguous(), descriptors1.contiguous()
    shape = shape or default_shape(descriptors0.dtype, with_sums=logit_scale is not None)
    rows, columns = _rows_of(descriptors0, descriptors1, logit_scale, shape)
    count, size = descriptors0.shape
    device = descriptors0.device
    value = torch.empty(count, device=device)
    index = torch.empty(count, dtype=torch.int64, device=device)
    is_mutual = torch.empty(count, dtype=torch.bool, device=device)
    probability = torch.empty(count if logit_scale is not None else 0, device=device)
    choice_kernel[(triton.cdiv(count, shape.block_rows),)](
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
        _exponent(logit_scale),
        SIZE=size,
        PADDED_SIZE=max(16, triton.next_power_of_2(size)),
        BLOCK=shape.block_rows,
        WITH_SUMS=logit_scale is not None,
        PRECISION=PRECISION,
        num_warps=shape.warps,
    )
    return RowChoices(index, value, is_mutual, None if logit_scale is None else probability)


@dataclass(frozen=True)
class _Best:
    """Largest values, where they are, and sums of exponentials (empty if not asked for)."""

    value: Tensor  # (splits, N) of rows, (M,) of columns
    index: Tensor  # int32: the column; of columns the block of rows
    sum: Tensor

    @staticmethod
    def unwritten(shape: tuple[int, ...], with_sums: bool, device: torch.device) -> _Best:
        return _Best(
            torch.empty(shape, device=device),
            torch.empty(shape, dtype=torch.int32, device=device),
            torch.empty(shape if with_sums else 0, device=device),
        )


def _exponent(logit_scale: float | None) -> float:
    """Factor on similarities in powers of two."""
    return 0.0 if logit_scale is None else math.log2(math.e) * logit_scale


def _rows_of(
    descriptors0: Tensor, descriptors1: Tensor, logit_scale: float | None, shape: KernelShape
) -> tuple[_Best, _Best]:
    """Best columns of all rows, by splits of the columns, and best blocks of all columns."""
    (rows, size), columns, device = descriptors0.shape, descriptors1.shape[0], descriptors0.device
    blocks, tiles = triton.cdiv(rows, shape.block_rows), triton.cdiv(columns, shape.tile_columns)
    tiles_per_split = triton.cdiv(tiles, _splits(min(blocks, SLAB_BLOCKS), tiles, shape, device))
    splits = triton.cdiv(tiles, tiles_per_split)
    with_sums = logit_scale is not None
    of_rows = _Best.unwritten((splits, rows), with_sums, device)
    of_columns = _Best.unwritten((columns,), with_sums, device)
    stride = 16 * triton.cdiv(columns, 16)  # lines begin where whole words can be written
    in_slab = min(blocks, SLAB_BLOCKS)
    column_value = torch.empty(in_slab, stride, device=device)
    column_sum = torch.empty(in_slab if with_sums else 0, stride, device=device)
    for first_block in range(0, blocks, SLAB_BLOCKS):
        in_slab = min(SLAB_BLOCKS, blocks - first_block)
        search_kernel[(in_slab, splits)](
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
            _exponent(logit_scale),
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
        columns_kernel[(triton.cdiv(columns, COLUMN_TILE),)](
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

"""Reading maps between their cells, and the sub-pixel search, in one kernel each on a CUDA device.

Import only where Triton is installed.

`refine_softargmax` with its query sampled on the way: twenty small operations, each of which writes what the
next one reads, become one that writes three numbers a match.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from coam.matching.refine import RefinedPoints

MATCHES = 8  # per program: 8 windows of 5 x 5 features of 32 numbers stay in registers
SAMPLES = 32  # per program of `fused_unit_samples`
LARGEST_FEATURE = 64
LARGEST_WINDOW = 64


@triton.jit  # type: ignore[untyped-decorator]
def _sampled(map_ptr, x, y, height, width, feature, known, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Features (MATCHES, size) of a map at cell coordinates x, y, bilinearly, as at the border beyond it."""
    x = tl.minimum(tl.maximum(x, 0.0), (width - 1).to(tl.float32))
    y = tl.minimum(tl.maximum(y, 0.0), (height - 1).to(tl.float32))
    left, top = tl.floor(x), tl.floor(y)
    part_x, part_y = (x - left)[:, None], (y - top)[:, None]
    left, top = left.to(tl.int32), top.to(tl.int32)
    right, bottom = tl.minimum(left + 1, width - 1), tl.minimum(top + 1, height - 1)
    mask = known[:, None] & (feature < SIZE)[None, :]
    place = feature[None, :]
    a = tl.load(map_ptr + (top * width + left)[:, None] * SIZE + place, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(map_ptr + (top * width + right)[:, None] * SIZE + place, mask=mask, other=0.0).to(tl.float32)
    c = tl.load(map_ptr + (bottom * width + left)[:, None] * SIZE + place, mask=mask, other=0.0).to(
        tl.float32
    )
    d = tl.load(map_ptr + (bottom * width + right)[:, None] * SIZE + place, mask=mask, other=0.0).to(
        tl.float32
    )
    upper = a * (1 - part_x) + b * part_x
    lower = c * (1 - part_x) + d * part_x
    return upper * (1 - part_y) + lower * part_y


@triton.jit  # type: ignore[untyped-decorator]
def _rounded(value: tl.tensor) -> tl.tensor:
    """The nearest whole number, the even one of two: positions of a grid lie exactly between two cells."""
    up = tl.floor(value + 0.5)
    odd = (up.to(tl.int32) & 1) == 1
    return tl.where((up - value == 0.5) & odd, up - 1.0, up).to(tl.int32)


@triton.jit(do_not_specialize=["count", "height0", "width0", "height1", "width1"])  # type: ignore[untyped-decorator]
def _seek_kernel(  # type: ignore[no-untyped-def]
    map0_ptr,
    map1_ptr,
    points0_ptr,
    near1_ptr,
    result_ptr,
    count,
    height0,
    width0,
    height1,
    width1,
    stride,
    sharpness,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    RADIUS: tl.constexpr,
    PADDED_WINDOW: tl.constexpr,
    BLOCK: tl.constexpr,
):
    match = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = match < count
    feature = tl.arange(0, PADDED_SIZE)
    x0 = (tl.load(points0_ptr + 2 * match, mask=known, other=0.0) + 0.5) / stride - 0.5
    y0 = (tl.load(points0_ptr + 2 * match + 1, mask=known, other=0.0) + 0.5) / stride - 0.5
    query = _sampled(map0_ptr, x0, y0, height0, width0, feature, known, SIZE)

    column = _rounded((tl.load(near1_ptr + 2 * match, mask=known, other=0.0) + 0.5) / stride - 0.5)
    row = _rounded((tl.load(near1_ptr + 2 * match + 1, mask=known, other=0.0) + 0.5) / stride - 0.5)
    column = tl.minimum(tl.maximum(column, 0), width1 - 1)
    row = tl.minimum(tl.maximum(row, 0), height1 - 1)
    side: tl.constexpr = 2 * RADIUS + 1
    cell = tl.arange(0, PADDED_WINDOW)
    cell_x = column[:, None] + (cell % side - RADIUS)[None, :]
    cell_y = row[:, None] + (cell // side - RADIUS)[None, :]
    inside = (cell < side * side)[None, :] & known[:, None]
    inside = inside & (cell_x >= 0) & (cell_x < width1) & (cell_y >= 0) & (cell_y < height1)
    address = (cell_y * width1 + cell_x)[:, :, None] * SIZE + feature[None, None, :]
    mask = inside[:, :, None] & (feature < SIZE)[None, None, :]
    window = tl.load(map1_ptr + address, mask=mask, other=0.0).to(tl.float32)
    logit = tl.sum(window * query[:, None, :], axis=2) * sharpness
    logit = tl.where(inside, logit, float("-inf"))
    highest = tl.max(logit, axis=1)
    highest = tl.where(known, highest, 0.0)
    weight = tl.exp(logit - highest[:, None])
    weight = tl.where(inside, weight, 0.0)
    total = tl.where(known, tl.sum(weight, axis=1), 1.0)
    weight = weight / total[:, None]
    x = (cell_x.to(tl.float32) + 0.5) * stride - 0.5
    y = (cell_y.to(tl.float32) + 0.5) * stride - 0.5
    mean_x, mean_y = tl.sum(weight * x, axis=1), tl.sum(weight * y, axis=1)
    off_x, off_y = x - mean_x[:, None], y - mean_y[:, None]
    variance = tl.sum(weight * (off_x * off_x + off_y * off_y), axis=1)
    tl.store(result_ptr + 4 * match, mean_x, mask=known)
    tl.store(result_ptr + 4 * match + 1, mean_y, mask=known)
    tl.store(result_ptr + 4 * match + 2, tl.max(weight, axis=1), mask=known)
    tl.store(result_ptr + 4 * match + 3, tl.sqrt(variance), mask=known)


@triton.jit(do_not_specialize=["count", "height", "width"])  # type: ignore[untyped-decorator]
def _sample_kernel(  # type: ignore[no-untyped-def]
    map_ptr,
    points_ptr,
    result_ptr,
    count,
    height,
    width,
    stride,
    SIZE: tl.constexpr,
    PADDED_SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    point = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = point < count
    feature = tl.arange(0, PADDED_SIZE)
    x = (tl.load(points_ptr + 2 * point, mask=known, other=0.0) + 0.5) / stride - 0.5
    y = (tl.load(points_ptr + 2 * point + 1, mask=known, other=0.0) + 0.5) / stride - 0.5
    value = _sampled(map_ptr, x, y, height, width, feature, known, SIZE)
    length = tl.sqrt(tl.sum(value * value, axis=1))
    value = value / tl.maximum(length, 1e-12)[:, None]
    mask = known[:, None] & (feature < SIZE)[None, :]
    place = point.to(tl.int64)[:, None] * SIZE + feature[None, :]
    tl.store(result_ptr + place, value.to(result_ptr.dtype.element_ty), mask=mask)


@torch.no_grad()
def fused_unit_samples(feature_map: Tensor, points: Tensor, stride: float) -> Tensor:
    """Bilinear samples (N, C) of unit length, in the map's type, of a map (C, H, W) at points (N, 2).

    The same as `sample_map` with `normalise`, but for the type.
    """
    size, height, width = feature_map.shape
    cells = feature_map.flatten(1).t().contiguous()
    result = torch.empty(len(points), size, dtype=feature_map.dtype, device=feature_map.device)
    _sample_kernel[(triton.cdiv(len(points), SAMPLES),)](
        cells,
        points.float().contiguous(),
        result,
        len(points),
        height,
        width,
        stride,
        SIZE=size,
        PADDED_SIZE=triton.next_power_of_2(size),
        BLOCK=SAMPLES,
    )
    return result


def is_supported(fine0: Tensor, fine1: Tensor, radius: int) -> bool:
    """Whether the kernel takes these maps: of one type, with features and windows that fit into registers."""
    return (
        fine0.dtype == fine1.dtype
        and fine0.shape[0] == fine1.shape[0] <= LARGEST_FEATURE
        and (2 * radius + 1) ** 2 <= LARGEST_WINDOW
    )


@torch.no_grad()
def fused_seek(
    fine0: Tensor,
    fine1: Tensor,
    points0: Tensor,
    near1: Tensor,
    stride: float,
    radius: int,
    logit_scale: float,
) -> RefinedPoints:
    """Where what fine0 (F, H, W) has at points0 (K, 2) is found in fine1 (F, H, W) around near1 (K, 2).

    The same as sampling fine0 and giving that to `refine_softargmax`. Nothing here waits for the device.
    """
    size, height0, width0 = fine0.shape
    height1, width1 = fine1.shape[1:]
    cells0, cells1 = (fine.flatten(1).t().contiguous() for fine in (fine0, fine1))
    points0, near1 = points0.float().contiguous(), near1.float().contiguous()
    count = len(points0)
    result = torch.empty(count, 4, device=fine0.device)
    _seek_kernel[(triton.cdiv(count, MATCHES),)](
        cells0,
        cells1,
        points0,
        near1,
        result,
        count,
        height0,
        width0,
        height1,
        width1,
        stride,
        logit_scale,
        SIZE=size,
        PADDED_SIZE=max(16, triton.next_power_of_2(size)),
        RADIUS=radius,
        PADDED_WINDOW=triton.next_power_of_2((2 * radius + 1) ** 2),
        BLOCK=MATCHES,
    )
    return RefinedPoints(result[:, :2], result[:, 2], result[:, 3])

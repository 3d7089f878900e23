"""The decoder's convolutions in one kernel each on a CUDA device. Import only where Triton is installed.

Maps are channels-last, (B, H, W, C) in memory, their channels multiples of 8 (see `linear`). Bias,
activation and residual are part of the kernel; cuDNN leaves them to kernels of their own.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from coam.kernels.linear import IDENTITY, PROCESSORS_BUSY, Activation, Linear, TileShape

UPSAMPLED_PIXELS = 64  # per program of `upsample_and_add`


@triton.jit(do_not_specialize=["pixels", "height", "width", "channels8", "outputs8"])  # type: ignore[untyped-decorator]
def _convolution_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    pixels,
    height,
    width,
    channels8,
    outputs8,
    low,
    high,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    RESIDUAL: tl.constexpr,
):
    channels = channels8 * 8
    outputs = outputs8 * 8
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    known_output = output < outputs
    x = pixel % width
    y = pixel // width % height
    own = x_ptr + pixel.to(tl.int64)[:, None] * channels
    weight_column = weight_ptr + output[None, :] * (9 * channels)
    total = tl.zeros([BLOCK, TILE], dtype=tl.float32)
    steps = tl.cdiv(channels, STEP)
    for step in range(9 * steps):  # the nine neighbours, each in steps of its channels
        neighbour = step // steps
        dy = neighbour // 3 - 1
        dx = neighbour % 3 - 1
        channel = (step - neighbour * steps) * STEP + tl.arange(0, STEP)
        inside = (y + dy >= 0) & (y + dy < height) & (x + dx >= 0) & (x + dx < width) & (pixel < pixels)
        value = tl.load(
            own + (dy * width + dx) * channels + channel[None, :],
            mask=inside[:, None] & (channel < channels)[None, :],
            other=0.0,
        )
        weight = tl.load(
            weight_column + neighbour * channels + channel[:, None],
            mask=(channel < channels)[:, None] & known_output[None, :],
            other=0.0,
        )
        total = tl.dot(value, weight, total, input_precision="ieee")
    total += tl.load(bias_ptr + output, mask=known_output, other=0.0).to(tl.float32)[None, :]
    total = tl.minimum(tl.maximum(total, low), high)
    known = (pixel < pixels)[:, None] & known_output[None, :]
    place = pixel.to(tl.int64)[:, None] * outputs + output[None, :]
    if RESIDUAL:
        total += tl.load(residual_ptr + place, mask=known, other=0.0).to(tl.float32)
    tl.store(y_ptr + place, total.to(y_ptr.dtype.element_ty), mask=known)


@triton.jit
def _rows(pixel, channels):  # type: ignore[no-untyped-def]
    """Where the channels of pixels (P,) begin: (P, 1)."""
    return pixel.to(tl.int64)[:, None] * channels


@triton.jit(do_not_specialize=["pixels", "height", "width", "channels8"])  # type: ignore[untyped-decorator]
def _upsample_kernel(  # type: ignore[no-untyped-def]
    coarse_ptr,
    lateral_ptr,
    y_ptr,
    pixels,
    height,
    width,
    channels8,
    low,
    high,
    BLOCK: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    channels = channels8 * 8
    pixel = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    x = pixel % width
    y = pixel // width % height
    image = pixel // (width * height)
    known = (pixel < pixels)[:, None] & (channel < channels)[None, :]
    # A cell takes 3/4 of the coarse cell it lies in and 1/4 of the next one on its side, in both directions.
    coarse_width, coarse_height = width // 2, height // 2
    near_x, near_y = x // 2, y // 2
    far_x = tl.minimum(tl.maximum(near_x + 2 * (x % 2) - 1, 0), coarse_width - 1)
    far_y = tl.minimum(tl.maximum(near_y + 2 * (y % 2) - 1, 0), coarse_height - 1)
    image_row = image * coarse_height
    near_row, far_row = (image_row + near_y) * coarse_width, (image_row + far_y) * coarse_width
    place = channel[None, :]
    a = tl.load(coarse_ptr + _rows(near_row + near_x, channels) + place, mask=known, other=0.0)
    b = tl.load(coarse_ptr + _rows(near_row + far_x, channels) + place, mask=known, other=0.0)
    c = tl.load(coarse_ptr + _rows(far_row + near_x, channels) + place, mask=known, other=0.0)
    d = tl.load(coarse_ptr + _rows(far_row + far_x, channels) + place, mask=known, other=0.0)
    near = 0.75 * a.to(tl.float32) + 0.25 * b.to(tl.float32)
    far = 0.75 * c.to(tl.float32) + 0.25 * d.to(tl.float32)
    own = _rows(pixel, channels) + place
    total = 0.75 * near + 0.25 * far + tl.load(lateral_ptr + own, mask=known, other=0.0).to(tl.float32)
    total = tl.minimum(tl.maximum(total, low), high)
    tl.store(y_ptr + own, total.to(y_ptr.dtype.element_ty), mask=known)


def default_tiles(pixels: int, channels: int, outputs: int) -> TileShape:
    """The largest tiles that still keep the device busy."""
    step = 32 if channels % 64 else 64
    for block, columns in ((128, 64), (64, 64)):
        if triton.cdiv(pixels, block) * triton.cdiv(outputs, columns) >= PROCESSORS_BUSY:
            return TileShape(block, columns, step)
    return TileShape(64, 32, step)


def convolve(
    x: Tensor,
    layer: Linear,
    activation: Activation = IDENTITY,
    residual: Tensor | None = None,
    tiles: TileShape | None = None,
) -> Tensor:
    """(B, H, W, N) = activation(3x3 convolution of x (B, H, W, C) + bias) + residual.

    The weights (N, 9 C) are by row, column and channel, as a channels-last weight lies in memory.
    """
    batch, height, width, channels = x.shape
    outputs = layer.weight.shape[0]
    pixels = batch * height * width
    assert channels % 8 == outputs % 8 == 0
    assert all(part.is_contiguous() for part in (x, layer.weight))
    assert residual is None or residual.is_contiguous()
    tiles = tiles or default_tiles(pixels, channels, outputs)
    y = torch.empty(batch, height, width, outputs, dtype=x.dtype, device=x.device)
    _convolution_kernel[(triton.cdiv(pixels, tiles.rows), triton.cdiv(outputs, tiles.columns))](
        x,
        layer.weight,
        layer.bias,
        layer.bias if residual is None else residual,
        y,
        pixels,
        height,
        width,
        channels // 8,
        outputs // 8,
        activation.low,
        activation.high,
        BLOCK=tiles.rows,
        TILE=tiles.columns,
        STEP=tiles.step,
        RESIDUAL=residual is not None,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )
    return y


def upsample_and_add(coarse: Tensor, lateral: Tensor, activation: Activation) -> Tensor:
    """activation(coarse (B, H / 2, W / 2, C), bilinearly at twice its resolution, + lateral (B, H, W, C))."""
    batch, height, width, channels = lateral.shape
    assert channels % 8 == 0
    assert coarse.shape == (batch, height // 2, width // 2, channels)
    assert all(part.is_contiguous() for part in (coarse, lateral))
    pixels = batch * height * width
    y = torch.empty_like(lateral)
    columns = min(64, triton.next_power_of_2(channels))
    _upsample_kernel[(triton.cdiv(pixels, UPSAMPLED_PIXELS), triton.cdiv(channels, columns))](
        coarse,
        lateral,
        y,
        pixels,
        height,
        width,
        channels // 8,
        activation.low,
        activation.high,
        BLOCK=UPSAMPLED_PIXELS,
        CHANNELS=columns,
        num_warps=4,
    )
    return y

"""Depthwise and stem convolutions of the encoder, one fused kernel each. Import only where Triton is.

Maps are channels-last, (B, H, W, C) in memory, their channels multiples of 8 (see `linear`). Bias and
activation are part of the kernel; cuDNN leaves them to kernels of their own, and for a filter of each channel
with an even side it falls back to one that is ten times slower than the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from coam.kernels.linear import Activation

SIDE = 8  # pixels of a square tile of results: neighbours share what they read
FILTER_CHANNELS = 32  # per program of `convolve_depthwise`
STEM_INPUTS = 32  # 3 colours of 3 x 3 pixels, filled up to a size that the matrix unit takes


@dataclass(frozen=True)
class DepthwiseConvolution:
    """A filter for each channel (k, k, C) and its bias (C,); `before` pixels of padding above and left."""

    weight: Tensor
    bias: Tensor
    stride: int
    before: int


@dataclass(frozen=True)
class Stem:
    """3x3 convolution with stride 2 of a normalised colour image: weight (32, N) by colour, row, column."""

    weight: Tensor
    bias: Tensor  # (N,)
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    before: int


@triton.jit  # type: ignore[untyped-decorator]
def _tile_places(tiles_x, SIDE: tl.constexpr):  # type: ignore[no-untyped-def]
    """Rows and columns (SIDE * SIDE) of the results of this program."""
    tile = tl.program_id(0)
    pixel = tl.arange(0, SIDE * SIDE)
    return tile // tiles_x * SIDE + pixel // SIDE, tile % tiles_x * SIDE + pixel % SIDE


@triton.jit(  # type: ignore[untyped-decorator]
    do_not_specialize=["height", "width", "out_height", "out_width", "channels8", "tiles_x", "before"]
)
def _filter_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    height,
    width,
    out_height,
    out_width,
    channels8,
    tiles_x,
    before,
    low,
    high,
    KERNEL: tl.constexpr,
    STRIDE: tl.constexpr,
    SIDE: tl.constexpr,
    CHANNELS: tl.constexpr,
):
    channels = channels8 * 8
    y, x = _tile_places(tiles_x, SIDE)
    channel = tl.program_id(1) * CHANNELS + tl.arange(0, CHANNELS)
    known = channel < channels
    image = tl.program_id(2).to(tl.int64)
    source = x_ptr + image * height * width * channels
    total = tl.zeros([SIDE * SIDE, CHANNELS], dtype=tl.float32)
    for dy in tl.static_range(KERNEL):
        row = y * STRIDE + dy - before
        for dx in tl.static_range(KERNEL):
            column = x * STRIDE + dx - before
            inside = (row >= 0) & (row < height) & (column >= 0) & (column < width)
            value = tl.load(
                source + ((row * width + column) * channels)[:, None] + channel[None, :],
                mask=inside[:, None] & known[None, :],
                other=0.0,
            )
            weight = tl.load(weight_ptr + (dy * KERNEL + dx) * channels + channel, mask=known, other=0.0)
            total += value.to(tl.float32) * weight.to(tl.float32)[None, :]
    total += tl.load(bias_ptr + channel, mask=known, other=0.0).to(tl.float32)[None, :]
    total = tl.minimum(tl.maximum(total, low), high)
    target = y_ptr + image * out_height * out_width * channels
    tl.store(
        target + ((y * out_width + x) * channels)[:, None] + channel[None, :],
        total.to(y_ptr.dtype.element_ty),
        mask=((y < out_height) & (x < out_width))[:, None] & known[None, :],
    )


@triton.jit(do_not_specialize=["height", "width", "out_height", "out_width", "outputs8", "tiles_x", "before"])  # type: ignore[untyped-decorator]
def _stem_kernel(  # type: ignore[no-untyped-def]
    image_ptr,
    weight_ptr,
    bias_ptr,
    y_ptr,
    image_stride,
    colour_stride,
    row_stride,
    column_stride,
    height,
    width,
    out_height,
    out_width,
    outputs8,
    tiles_x,
    before,
    mean0,
    mean1,
    mean2,
    deviation0,
    deviation1,
    deviation2,
    low,
    high,
    SIDE: tl.constexpr,
    INPUTS: tl.constexpr,
    OUTPUTS: tl.constexpr,
):
    outputs = outputs8 * 8
    y, x = _tile_places(tiles_x, SIDE)
    part = tl.arange(0, INPUTS)  # colour, row and column of the 3 x 3 window
    colour = part // 9
    row = (y * 2 - before)[:, None] + (part // 3 % 3)[None, :]
    column = (x * 2 - before)[:, None] + (part % 3)[None, :]
    inside = (row >= 0) & (row < height) & (column >= 0) & (column < width) & (part < 27)[None, :]
    image = tl.program_id(2).to(tl.int64)
    source = image_ptr + image * image_stride
    place = colour[None, :] * colour_stride + row * row_stride + column * column_stride
    value = tl.load(source + place, mask=inside, other=0.0).to(tl.float32)
    mean = tl.where(colour == 0, mean0, tl.where(colour == 1, mean1, mean2))
    deviation = tl.where(colour == 0, deviation0, tl.where(colour == 1, deviation1, deviation2))
    # Padding is zero after normalisation, as in the network.
    value = tl.where(inside, (value - mean[None, :]) / deviation[None, :], 0.0)
    output = tl.arange(0, OUTPUTS)
    known = output < outputs
    weight = tl.load(weight_ptr + part[:, None] * outputs + output[None, :], mask=known[None, :], other=0.0)
    total = tl.dot(value.to(weight.dtype), weight, input_precision="ieee")
    total += tl.load(bias_ptr + output, mask=known, other=0.0).to(tl.float32)[None, :]
    total = tl.minimum(tl.maximum(total, low), high)
    target = y_ptr + image * out_height * out_width * outputs
    tl.store(
        target + ((y * out_width + x) * outputs)[:, None] + output[None, :],
        total.to(y_ptr.dtype.element_ty),
        mask=((y < out_height) & (x < out_width))[:, None] & known[None, :],
    )


def convolve_depthwise(x: Tensor, layer: DepthwiseConvolution, activation: Activation) -> Tensor:
    """Each channel of x (B, H, W, C) convolved by itself: (B, H / stride, W / stride, C)."""
    batch, height, width, channels = x.shape
    kernel, stride = layer.weight.shape[0], layer.stride
    assert channels % 8 == 0
    assert x.is_contiguous()
    out_height, out_width = height // stride, width // stride
    y = torch.empty(batch, out_height, out_width, channels, dtype=x.dtype, device=x.device)
    tiles_x = triton.cdiv(out_width, SIDE)
    tiles = tiles_x * triton.cdiv(out_height, SIDE)
    _filter_kernel[(tiles, triton.cdiv(channels, FILTER_CHANNELS), batch)](
        x,
        layer.weight,
        layer.bias,
        y,
        height,
        width,
        out_height,
        out_width,
        channels // 8,
        tiles_x,
        layer.before,
        activation.low,
        activation.high,
        KERNEL=kernel,
        STRIDE=stride,
        SIDE=SIDE,
        CHANNELS=FILTER_CHANNELS,
        num_warps=4,
    )
    return y


def stem(image: Tensor, layer: Stem, activation: Activation) -> Tensor:
    """image (B, 3, H, W) in [0, 1], any strides, H and W even -> (B, H / 2, W / 2, N)."""
    batch, _, height, width = image.shape
    outputs = layer.bias.shape[0]
    out_height, out_width = height // 2, width // 2
    y = torch.empty(batch, out_height, out_width, outputs, dtype=layer.weight.dtype, device=image.device)
    tiles_x = triton.cdiv(out_width, SIDE)
    _stem_kernel[(tiles_x * triton.cdiv(out_height, SIDE), 1, batch)](
        image,
        layer.weight,
        layer.bias,
        y,
        *image.stride(),
        height,
        width,
        out_height,
        out_width,
        outputs // 8,
        tiles_x,
        layer.before,
        *layer.mean,
        *layer.deviation,
        activation.low,
        activation.high,
        SIDE=SIDE,
        INPUTS=STEM_INPUTS,
        OUTPUTS=max(16, triton.next_power_of_2(outputs)),
        num_warps=4,
    )
    return y

"""Convolutions in one kernel each on a CUDA device. Import only where Triton is installed.

Maps are channels-last, (B, H, W, C) in memory, their channels multiples of 8 (see `triton_linear`). Bias,
activation and residual are part of the kernel; cuDNN leaves them to kernels of their own, and for a filter of
each channel with an even side it falls back to one that is ten times slower than the memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from coam.backends.triton_linear import IDENTITY, PROCESSORS_BUSY, Activation, Linear, TileShape

SIDE = 8  # pixels of a square tile of results: neighbours share what they read
FILTER_CHANNELS = 32  # per program of `filter_channels`
STEM_INPUTS = 32  # 3 colours of 3 x 3 pixels, filled up to a size that the matrix unit takes


@dataclass(frozen=True)
class ChannelFilter:
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


def filter_channels(x: Tensor, layer: ChannelFilter, activation: Activation) -> Tensor:
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
    y = torch.empty(
        batch, out_height, out_width, outputs, dtype=layer.weight.dtype, device=image.device
    )
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


def upsample_and_add(coarse: Tensor, lateral: Tensor, activation: Activation = IDENTITY) -> Tensor:
    """activation(coarse (B, H / 2, W / 2, C), bilinearly at twice its resolution, + lateral (B, H, W, C))."""
    batch, height, width, channels = lateral.shape
    assert channels % 8 == 0
    assert coarse.shape == (batch, height // 2, width // 2, channels)
    assert all(part.is_contiguous() for part in (coarse, lateral))
    pixels = batch * height * width
    y = torch.empty_like(lateral)
    block = 64
    columns = min(64, triton.next_power_of_2(channels))
    _upsample_kernel[(triton.cdiv(pixels, block), triton.cdiv(channels, columns))](
        coarse,
        lateral,
        y,
        pixels,
        height,
        width,
        channels // 8,
        activation.low,
        activation.high,
        BLOCK=block,
        CHANNELS=columns,
        num_warps=4,
    )
    return y

"""Linear layers in one kernel each on a CUDA device. Import only where Triton is installed.

What comes before (layer norm) and after (bias, activation, residual, unit length, a logistic head) a matrix
product happens while its numbers are in registers; by itself each of these reads and writes them all again.
A 1x1 convolution of a channels-last map is a linear layer of its pixels.

Numbers of channels are multiples of 8 and given to the kernels in eights: so one compilation serves all of
them, and Triton still knows that rows begin where 16 bytes can be read at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

INFINITY = float("inf")
LARGEST_NORMALISED = 256  # channels of a layer norm: a program holds whole rows
LARGEST_HEAD = 128  # outputs of a layer whose rows are reduced afterwards
PROCESSORS_BUSY = 264  # programs that keep a large device busy: two for each of 132 processors


@dataclass(frozen=True)
class Activation:
    """Bounds between which results are cut off; ReLU6 is (0, 6)."""

    low: float = -INFINITY
    high: float = INFINITY


IDENTITY = Activation()
RELU = Activation(0.0)
RELU6 = Activation(0.0, 6.0)


@dataclass(frozen=True)
class LayerNorm:
    """Of the inputs, before they are multiplied."""

    weight: Tensor  # (K,)
    bias: Tensor  # (K,)
    epsilon: float


@dataclass(frozen=True)
class Linear:
    """Weights (N, K) and bias (N,) of a layer, both in the type of its inputs."""

    weight: Tensor
    bias: Tensor


@dataclass(frozen=True)
class TileShape:
    """How a product is cut. Changes speed only, never the result."""

    rows: int
    columns: int
    step: int  # of the inner dimension
    warps: int = 4
    stages: int = 3


@triton.jit(do_not_specialize=["rows", "inner8", "outputs8"])  # type: ignore[untyped-decorator]
def _linear_kernel(  # type: ignore[no-untyped-def]
    x_ptr,
    weight_ptr,
    bias_ptr,
    residual_ptr,
    norm_weight_ptr,
    norm_bias_ptr,
    head_ptr,
    y_ptr,
    rows,
    inner8,
    outputs8,
    low,
    high,
    epsilon,
    head_bias,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
    STEP: tl.constexpr,
    NORMALISE: tl.constexpr,
    RESIDUAL: tl.constexpr,
    UNIT_LENGTH: tl.constexpr,
    HEAD: tl.constexpr,
):
    inner = inner8 * 8
    outputs = outputs8 * 8
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    output = tl.program_id(1) * TILE + tl.arange(0, TILE)
    known_row = (row < rows)[:, None]
    known_output = output < outputs
    x_row = x_ptr + row.to(tl.int64)[:, None] * inner
    weight_column = weight_ptr + output[None, :] * inner
    total = tl.zeros([BLOCK, TILE], dtype=tl.float32)
    if NORMALISE:  # one step holds all
        place = tl.arange(0, STEP)
        inside = place < inner
        wide = tl.load(x_row + place[None, :], mask=known_row & inside[None, :], other=0.0).to(tl.float32)
        mean = tl.sum(wide, axis=1) / inner
        wide = tl.where(inside[None, :], wide - mean[:, None], 0.0)
        scale = tl.rsqrt(tl.sum(wide * wide, axis=1) / inner + epsilon)
        norm_weight = tl.load(norm_weight_ptr + place, mask=inside, other=0.0).to(tl.float32)
        norm_bias = tl.load(norm_bias_ptr + place, mask=inside, other=0.0).to(tl.float32)
        wide = wide * scale[:, None] * norm_weight[None, :] + norm_bias[None, :]
        weight = tl.load(
            weight_column + place[:, None], mask=inside[:, None] & known_output[None, :], other=0.0
        )
        total = tl.dot(wide.to(weight.dtype), weight, total, input_precision="ieee")
    else:
        for start in range(0, inner, STEP):
            place = start + tl.arange(0, STEP)
            inside = place < inner
            x = tl.load(x_row + place[None, :], mask=known_row & inside[None, :], other=0.0)
            weight = tl.load(
                weight_column + place[:, None], mask=inside[:, None] & known_output[None, :], other=0.0
            )
            total = tl.dot(x, weight, total, input_precision="ieee")
    total += tl.load(bias_ptr + output, mask=known_output, other=0.0).to(tl.float32)[None, :]
    total = tl.minimum(tl.maximum(total, low), high)
    known = known_row & known_output[None, :]
    y_place = row.to(tl.int64)[:, None] * outputs + output[None, :]
    if RESIDUAL:
        total += tl.load(residual_ptr + y_place, mask=known, other=0.0).to(tl.float32)
    if HEAD:
        head = tl.load(head_ptr + output, mask=known_output, other=0.0).to(tl.float32)
        logit = tl.sum(total * head[None, :], axis=1) + head_bias
        tl.store(y_ptr + row, 1.0 / (1.0 + tl.exp(-logit)), mask=row < rows)
    else:
        if UNIT_LENGTH:
            length = tl.sqrt(tl.sum(total * total, axis=1))
            total = total / tl.maximum(length, 1e-12)[:, None]
        tl.store(y_ptr + y_place, total.to(y_ptr.dtype.element_ty), mask=known)


def default_tiles(rows: int, inner: int, outputs: int) -> TileShape:
    """The largest tiles that still keep the device busy."""
    columns = 64 if outputs > 32 else max(16, triton.next_power_of_2(outputs))
    step = max(16, min(64, triton.next_power_of_2(inner)))
    for block in (128, 64):
        if triton.cdiv(rows, block) * triton.cdiv(outputs, columns) >= PROCESSORS_BUSY:
            return TileShape(block, columns, step)
    return TileShape(32, min(columns, 32), 128 if inner >= 128 else step)


def linear(
    x: Tensor,
    layer: Linear,
    activation: Activation = IDENTITY,
    norm: LayerNorm | None = None,
    residual: Tensor | None = None,
    tiles: TileShape | None = None,
) -> Tensor:
    """(R, N) = activation(norm(x) W^T + b) + residual of x (R, K), in the type of x."""
    rows, inner = x.shape
    outputs = layer.weight.shape[0]
    y = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    if tiles is None:
        tiles = _norm_tiles(rows, inner, outputs) if norm else default_tiles(rows, inner, outputs)
    _launch(x, layer, y, tiles, activation, norm=norm, residual=residual)
    return y


def unit_linear(x: Tensor, layer: Linear) -> Tensor:
    """Rows (R, N <= 128) of x W^T + b with unit length."""
    rows, inner = x.shape
    outputs = layer.weight.shape[0]
    assert outputs <= LARGEST_HEAD
    y = torch.empty(rows, outputs, dtype=x.dtype, device=x.device)
    _launch(x, layer, y, _row_tiles(inner, outputs), IDENTITY, unit_length=True)
    return y


def logistic_head(x: Tensor, layer: Linear, head: Tensor, head_bias: float) -> Tensor:
    """sigmoid(relu(x W^T + b) head + head_bias), float32 (R,), of x (R, K), W (N <= 128, K), head (N,)."""
    rows, inner = x.shape
    outputs = layer.weight.shape[0]
    assert outputs <= LARGEST_HEAD
    y = torch.empty(rows, dtype=torch.float32, device=x.device)
    _launch(x, layer, y, _row_tiles(inner, outputs), RELU, head=head, head_bias=head_bias)
    return y


def _norm_tiles(rows: int, inner: int, outputs: int) -> TileShape:
    assert inner <= LARGEST_NORMALISED
    step = max(16, triton.next_power_of_2(inner))
    large = triton.cdiv(rows, 64) * triton.cdiv(outputs, 64) >= 4 * PROCESSORS_BUSY
    return TileShape(64, 64, step, warps=8) if large else TileShape(32, 64, step)


def _row_tiles(inner: int, outputs: int) -> TileShape:
    """Tiles as wide as a row of results."""
    step = max(16, min(64, triton.next_power_of_2(inner)))
    return TileShape(64, max(16, triton.next_power_of_2(outputs)), step)


def _launch(
    x: Tensor,
    layer: Linear,
    y: Tensor,
    tiles: TileShape,
    activation: Activation,
    norm: LayerNorm | None = None,
    residual: Tensor | None = None,
    unit_length: bool = False,
    head: Tensor | None = None,
    head_bias: float = 0.0,
) -> None:
    rows, inner = x.shape
    outputs = layer.weight.shape[0]
    assert inner % 8 == outputs % 8 == 0
    assert all(part.is_contiguous() for part in (x, layer.weight))
    assert residual is None or (residual.is_contiguous() and residual.shape == (rows, outputs))
    _linear_kernel[(triton.cdiv(rows, tiles.rows), triton.cdiv(outputs, tiles.columns))](
        x,
        layer.weight,
        layer.bias,
        layer.bias if residual is None else residual,
        layer.bias if norm is None else norm.weight,
        layer.bias if norm is None else norm.bias,
        layer.bias if head is None else head,
        y,
        rows,
        inner // 8,
        outputs // 8,
        activation.low,
        activation.high,
        0.0 if norm is None else norm.epsilon,
        head_bias,
        BLOCK=tiles.rows,
        TILE=tiles.columns,
        STEP=tiles.step,
        NORMALISE=norm is not None,
        RESIDUAL=residual is not None,
        UNIT_LENGTH=unit_length,
        HEAD=head is not None,
        num_warps=tiles.warps,
        num_stages=tiles.stages,
    )

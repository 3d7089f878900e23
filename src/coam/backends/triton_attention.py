"""Multi-head attention in one kernel on a CUDA device. Import only where Triton is installed.

Queries, keys and values are read where one linear layer left them, positions are turned in while they are
read, the other image of a pair is found by its number, and the heads are written side by side: the copies
that a library's attention wants before and after it cost more than the attention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 64  # queries of a program
TILE = 64  # keys at a time


@dataclass(frozen=True)
class Rotation:
    """Positions as angles: cosine and sine (P, Q) of every coordinate 0 ... P - 1 at Q frequencies."""

    cosine: Tensor
    sine: Tensor


def rotation_table(positions: int, frequency: Tensor) -> Rotation:
    """float32, for angles coordinate * frequency; frequency (Q,)."""
    angle = torch.arange(positions, device=frequency.device, dtype=torch.float32)[:, None] * frequency
    return Rotation(angle.cos().contiguous(), angle.sin().contiguous())


@triton.jit  # type: ignore[untyped-decorator]
def _turned(  # type: ignore[no-untyped-def]
    first, second, cosine_ptr, sine_ptr, token, half, width, known, QUARTER: tl.constexpr
):
    """Both halves of heads, turned by the positions of their tokens: one quarter by x, the other by y."""
    position = tl.where(half < QUARTER, token % width, token // width)
    place = position * QUARTER + half % QUARTER
    cosine = tl.load(cosine_ptr + place, mask=known, other=1.0)
    sine = tl.load(sine_ptr + place, mask=known, other=0.0)
    a, b = first.to(tl.float32), second.to(tl.float32)
    return (a * cosine - b * sine).to(first.dtype), (a * sine + b * cosine).to(first.dtype)


@triton.jit(do_not_specialize=["count", "others", "batch", "heads", "shift", "width"])  # type: ignore[untyped-decorator]
def _attention_kernel(  # type: ignore[no-untyped-def]
    own_ptr,
    other_ptr,
    cosine_ptr,
    sine_ptr,
    valid_ptr,
    y_ptr,
    count,
    others,
    batch,
    heads,
    shift,
    width,
    scale,
    HALF: tl.constexpr,
    ROTATE: tl.constexpr,
    MASKED: tl.constexpr,
    BLOCK: tl.constexpr,
    TILE: tl.constexpr,
):
    SIZE: tl.constexpr = 2 * HALF
    channels = heads * SIZE
    stride = 3 * channels
    image = tl.program_id(1) // heads
    head = tl.program_id(1) % heads
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    known = (row < count)[:, None]
    half = tl.arange(0, HALF)
    feature = tl.arange(0, SIZE)
    own = own_ptr + (image * count + row).to(tl.int64)[:, None] * stride + head * SIZE
    other_image = (image + shift) % batch
    other = other_ptr + (other_image * others).to(tl.int64) * stride + channels + head * SIZE
    if ROTATE:
        first = tl.load(own + half[None, :], mask=known, other=0.0)
        second = tl.load(own + HALF + half[None, :], mask=known, other=0.0)
        first, second = _turned(
            first, second, cosine_ptr, sine_ptr, row[:, None], half[None, :], width, known, HALF // 2
        )
    else:
        query = tl.load(own + feature[None, :], mask=known, other=0.0)
    highest = tl.full([BLOCK], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    result = tl.zeros([BLOCK, SIZE], dtype=tl.float32)
    for start in range(0, others, TILE):
        column = start + tl.arange(0, TILE)
        exists = column < others
        key = other + column[None, :] * stride
        if ROTATE:
            key_first = tl.load(key + half[:, None], mask=exists[None, :], other=0.0)
            key_second = tl.load(key + HALF + half[:, None], mask=exists[None, :], other=0.0)
            key_first, key_second = _turned(
                key_first,
                key_second,
                cosine_ptr,
                sine_ptr,
                column[None, :],
                half[:, None],
                width,
                exists[None, :],
                HALF // 2,
            )
            logit = tl.dot(first, key_first, input_precision="ieee")
            logit = tl.dot(second, key_second, logit, input_precision="ieee")
        else:
            logit = tl.dot(
                query,
                tl.load(key + feature[:, None], mask=exists[None, :], other=0.0),
                input_precision="ieee",
            )
        seen = exists
        if MASKED:
            seen = exists & (tl.load(valid_ptr + column, mask=exists, other=0) != 0)
        logit = tl.where(seen[None, :], logit * scale, float("-inf"))
        # The first cell of an image is never padding, so from the first tile on there is a largest logit.
        higher = tl.maximum(highest, tl.max(logit, axis=1))
        weight = tl.exp2(logit - higher[:, None])
        fade = tl.exp2(highest - higher)
        highest = higher
        total = total * fade + tl.sum(weight, axis=1)
        value = tl.load(
            other + channels + column[:, None] * stride + feature[None, :], mask=exists[:, None], other=0.0
        )
        result = tl.dot(weight.to(value.dtype), value, result * fade[:, None], input_precision="ieee")
    result = result / total[:, None]
    place = (image * count + row).to(tl.int64)[:, None] * channels + head * SIZE + feature[None, :]
    tl.store(y_ptr + place, result.to(y_ptr.dtype.element_ty), mask=known)


def attend(
    own: Tensor,
    other: Tensor,
    heads: int,
    rotation: Rotation | None = None,
    width: int = 1,
    valid: Tensor | None = None,
    shift: int = 0,
    block: int = BLOCK,
    tile: int = TILE,
) -> Tensor:
    """What the queries in `own` (B, N, 3 C) gather of the values in `other` (B, M, 3 C): (B, N, C).

    Both hold queries, keys and values side by side. Image i looks at image (i + shift) mod B. With a
    `rotation`, tokens are the cells of a map of that `width`, row by row. valid (M,): tokens to look at.
    """
    batch, count, triple = own.shape
    others, channels = other.shape[1], triple // 3
    size = channels // heads
    assert other.shape[0] == batch
    assert all(part.is_contiguous() for part in (own, other))
    y = torch.empty(batch, count, channels, dtype=own.dtype, device=own.device)
    _attention_kernel[(triton.cdiv(count, block), batch * heads)](
        own,
        other,
        y if rotation is None else rotation.cosine,
        y if rotation is None else rotation.sine,
        y if valid is None else valid.to(torch.int8),
        y,
        count,
        others,
        batch,
        heads,
        shift,
        width,
        math.log2(math.e) / math.sqrt(size),
        HALF=size // 2,
        ROTATE=rotation is not None,
        MASKED=valid is not None,
        BLOCK=block,
        TILE=tile,
        num_warps=4,
        num_stages=2,
    )
    return y

"""What models give back. Batched tensors; sizes are those of the images before padding."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

ImageSize = tuple[int, int]  # (height, width) of an image tensor before padding


@dataclass(frozen=True)
class EncodedImage:
    """All that is computed from one image alone, so that it can be reused in every pair."""

    levels: tuple[Tensor, ...]  # features at strides 2, 4, 8, 16, 32: (B, C_l, H_l, W_l), of the padded image
    size: ImageSize


@dataclass(frozen=True)
class DenseDescriptors:
    """Descriptors of one image, computed while looking at the other. Cropped: no position lies in padding.

    The map cell (row, column) with stride s stands for pixel ((column + .5) s - .5, (row + .5) s - .5).
    """

    descriptors: Tensor  # (B, D, H / stride, W / stride), unit length
    score: Tensor  # (B, 1, H / stride, W / stride), distinctiveness in [0, 1]
    stride: int
    size: ImageSize
    fine: Tensor | None = None  # (B, F, H / fine_stride, W / fine_stride), for sub-pixel refinement
    fine_stride: int = 2
    coarse: Tensor | None = None  # (B, D, H / 16, W / 16), unit length, where the images met: helps training


def group_images(a: EncodedImage, b: EncodedImage) -> list[EncodedImage]:
    """Images of one size as one batch (half as many, larger operations), others as two."""
    if a.size != b.size or a.levels[0].shape != b.levels[0].shape:
        return [a, b]
    return [EncodedImage(tuple(torch.cat(pair) for pair in zip(a.levels, b.levels, strict=True)), a.size)]


def split_group(both: DenseDescriptors) -> tuple[DenseDescriptors, DenseDescriptors]:
    """The two images of every pair, from one batch of first and second images."""
    parts = (both.descriptors, both.score, both.fine, both.coarse)
    halves = zip(*((None, None) if part is None else part.chunk(2) for part in parts), strict=True)
    first, second = (replace(both, descriptors=d, score=s, fine=f, coarse=c) for d, s, f, c in halves)
    return first, second

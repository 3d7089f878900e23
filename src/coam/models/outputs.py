"""What models give back. Batched tensors; sizes are those of the images before padding."""

from __future__ import annotations

from dataclasses import dataclass

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

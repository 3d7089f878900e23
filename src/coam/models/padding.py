"""Images of any size in networks that want multiples of 32."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.models.outputs import ImageSize

MULTIPLE = 32


def pad_image(image: Tensor, multiple: int = MULTIPLE) -> Tensor:
    """Repeat the last row and column of (B, C, H, W) until both sides are multiples of `multiple`."""
    height, width = image.shape[-2:]
    bottom, right = -height % multiple, -width % multiple
    if bottom == 0 and right == 0:
        return image
    return F.pad(image, (0, right, 0, bottom), mode="replicate")


def cells_inside(length: int, stride: int) -> int:
    """How many cells of `stride` have their centre inside an image side of `length` pixels (at least one)."""
    return max(1, math.floor((length - 0.5) / stride + 0.5))


def crop_cells(feature_map: Tensor, size: ImageSize, stride: int) -> Tensor:
    """Leave out the cells of (B, C, H, W) whose centre lies in the padding."""
    return feature_map[..., : cells_inside(size[0], stride), : cells_inside(size[1], stride)]


def valid_cells(feature_map: Tensor, size: ImageSize, stride: int) -> Tensor | None:
    """Mask (H * W,) of the cells that lie in the image, or None when all do (the fast, usual case)."""
    height, width = feature_map.shape[-2:]
    rows, columns = cells_inside(size[0], stride), cells_inside(size[1], stride)
    if rows >= height and columns >= width:
        return None
    mask = torch.zeros(height, width, dtype=torch.bool, device=feature_map.device)
    mask[:rows, :columns] = True
    return mask.flatten()

"""Regular positions in an image, and reading feature maps at positions."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.geometry.coordinates import resize_points


def grid_points(
    columns: int, rows: int, width: float, height: float, device: torch.device | str | None = None
) -> Tensor:
    """Centres (rows * columns, 2) of a columns x rows division of a width x height image, in our pixels.

    Row by row. With columns == width and rows == height these are the pixel centres themselves.
    """
    x = (torch.arange(columns, device=device, dtype=torch.float32) + 0.5) * (width / columns) - 0.5
    y = (torch.arange(rows, device=device, dtype=torch.float32) + 0.5) * (height / rows) - 0.5
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)


def sample_map(feature_map: Tensor, points: Tensor, stride: float, normalise: bool = False) -> Tensor:
    """Bilinear samples (B, N, C), float32, of `feature_map` (B, C, H, W) at `points` (B, N, 2), image pixels.

    Map cell (row, column) stands for pixel ((column + .5) * stride - .5, (row + .5) * stride - .5); positions
    beyond the outermost cells take the value at the border. `normalise` gives every sample unit length again,
    which interpolation between unit vectors loses. Positions and weights are float32 whatever the map's type
    is (grid_sample would round positions to the map's type: whole pixels wrong in bfloat16).
    """
    height, width = feature_map.shape[-2:]
    position = resize_points(points.float(), (1.0 / stride, 1.0 / stride))
    x = position[..., 0].clamp(0, width - 1)
    y = position[..., 1].clamp(0, height - 1)
    left, top = x.floor(), y.floor()
    right_share, bottom_share = x - left, y - top
    columns = (left.long(), (left.long() + 1).clamp(max=width - 1))
    rows = (top.long(), (top.long() + 1).clamp(max=height - 1))
    cells = feature_map.flatten(2)
    channels = cells.shape[1]
    sampled: Tensor | None = None
    for row, row_share in zip(rows, (1 - bottom_share, bottom_share), strict=True):
        for column, column_share in zip(columns, (1 - right_share, right_share), strict=True):
            index = (row * width + column).unsqueeze(1).expand(-1, channels, -1)
            corner = cells.gather(2, index).float() * (row_share * column_share).unsqueeze(1)
            sampled = corner if sampled is None else sampled + corner
    assert sampled is not None
    sampled = sampled.transpose(1, 2)
    return F.normalize(sampled, dim=-1) if normalise else sampled.contiguous()

"""Reading feature maps at positions."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from coam.geometry.coordinates import resize_points, to_unit


def sample_map(feature_map: Tensor, points: Tensor, stride: float, normalise: bool = False) -> Tensor:
    """Bilinear samples (B, N, C), float32, of `feature_map` (B, C, H, W) at `points` (B, N, 2), image pixels.

    Map cell (row, column) stands for pixel ((column + .5) * stride - .5, (row + .5) * stride - .5); positions
    beyond the outermost cells take the value at the border. `normalise` gives every sample unit length again,
    which interpolation between unit vectors loses. The map is taken to float32 first: grid_sample wants
    positions in the map's type, and bfloat16 positions would be whole pixels wrong.
    """
    height, width = feature_map.shape[-2:]
    position = to_unit(resize_points(points.float(), (1.0 / stride, 1.0 / stride)), width, height)
    sampled = F.grid_sample(
        feature_map.float(), position.unsqueeze(1), padding_mode="border", align_corners=False
    )
    sampled = sampled.squeeze(2).transpose(1, 2)
    return F.normalize(sampled, dim=-1) if normalise else sampled.contiguous()

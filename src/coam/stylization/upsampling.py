"""From the working resolution to VIEW's own, with VIEW's detail.

A plain enlargement would blur. So around every pixel the made picture is written as a linear function of
VIEW's lightness (a guided filter), the two coefficients, which are smooth, are enlarged, and the function is
applied to VIEW at full size. Where VIEW has no contrast from which to learn the slope, detail is as much
brighter or darker as the made picture is.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coam.images import RGB
from coam.stylization.colours import GREY

RADIUS = 2  # pixels of the working resolution
REGULARITY = 4e-4  # variance of VIEW's lightness (in [0, 1]) below which its slope is not believed
STEEPEST = 1.5  # slope where it cannot be learnt
STRIP = 512  # rows of the full picture made at a time


def upsample_guided(picture: Tensor, view: RGB) -> RGB:
    """`picture` (3, h, w) in [0, 1] at the size of `view` (H, W, 3), which it shows at another resolution."""
    height, width = view.shape[:2]
    if height * width <= picture.shape[1] * picture.shape[2] * 1.2:  # nothing to enlarge
        resized = F.interpolate(picture[None].float(), size=(height, width), mode="bilinear", antialias=True)
        return _bytes(resized[0])
    light = _light(torch.from_numpy(view))
    small = F.interpolate(light[None, None], size=picture.shape[1:], mode="bilinear", antialias=True)
    slope, offset = _linear_fit(picture[None].float().cpu(), small)
    strips = []
    for top in range(0, height, STRIP):
        bottom = min(top + STRIP, height)
        a, b = (_enlarged_rows(part, top, bottom, (height, width)) for part in (slope, offset))
        strips.append(_bytes(a * light[None, top:bottom] + b))
    return np.concatenate(strips)


def _light(view: Tensor) -> Tensor:
    """Lightness (H, W) in [0, 1] of bytes (H, W, 3)."""
    return sum((view[..., i].float() * (weight / 255) for i, weight in enumerate(GREY)), torch.zeros(()))


def _linear_fit(picture: Tensor, guide: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset (1, 3, h, w) with picture = slope * guide + offset around every pixel."""
    mean_guide, mean_picture = _mean(guide), _mean(picture)
    variance = _mean(guide * guide) - mean_guide * mean_guide
    covariance = _mean(guide * picture) - mean_guide * mean_picture
    brightness = (mean_picture / (mean_guide + 0.02)).clamp(max=STEEPEST)
    slope = (covariance + REGULARITY * brightness) / (variance.clamp(min=0) + REGULARITY)
    return _mean(slope), _mean(mean_picture - slope * mean_guide)


def _mean(picture: Tensor) -> Tensor:
    padded = F.pad(picture, (RADIUS,) * 4, mode="replicate")
    return F.avg_pool2d(padded, 2 * RADIUS + 1, stride=1)


def _enlarged_rows(small: Tensor, top: int, bottom: int, size: tuple[int, int]) -> Tensor:
    """Rows top ... bottom (3, bottom - top, W) of small (1, 3, h, w) enlarged to `size`, bilinear."""
    height, width = size
    y = (torch.arange(top, bottom) + 0.5) * (2 / height) - 1
    x = (torch.arange(width) + 0.5) * (2 / width) - 1
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)[None]
    return F.grid_sample(small, grid, padding_mode="border", align_corners=False)[0]


def _bytes(picture: Tensor) -> RGB:
    scaled = picture.clamp(0, 1).mul(255).round().byte()
    return scaled.permute(1, 2, 0).contiguous().cpu().numpy()

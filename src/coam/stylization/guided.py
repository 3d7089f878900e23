"""Guided filters: a picture as a local linear function of VIEW's lightness, to mend and to enlarge it.

Sampled colours jitter by about a pixel, VIEW's edges lie exactly where they should. So around every pixel the
colours are fitted by slope * lightness + offset, each match weighted by its confidence. A narrow fit mends
edges; a wide one carries the style to places that STYLE does not show. Where nothing near is trusted, the fit
of the whole picture takes over.

A plain enlargement from the working resolution would blur. So the coefficients of such a fit to the made
picture, which are smooth, are enlarged, and the function is applied to VIEW at full size. Where VIEW has no
contrast from which to learn the slope, detail is as much brighter or darker as the made picture is.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from coam.data.photometric import GREY
from coam.images import RGB

WHOLE = 0.01  # weight of the whole picture beside what is near
FLAT = 0.01  # variance of the lightness (in spreads) below which no slope is believed
RADIUS = 2  # pixels of the working resolution, of the fit that is enlarged
REGULARITY = 4e-4  # variance of VIEW's lightness (in [0, 1]) below which its slope is not believed
STEEPEST = 1.5  # slope where it cannot be learnt
STRIP = 512  # rows of the full picture made at a time


def fit_to_lightness(
    colours: Tensor, lightness: Tensor, confidence: Tensor, radius: int, shrink: int = 1
) -> Tensor:
    """Fitted colours (B, 3, H, W).

    colours (B, 3, H, W) and lightness (B, 1, H, W) relative to their palettes, confidence (B, 1, H, W) in
    [0, 1]. The window has 2 * radius + 1 cells of `shrink` pixels a side; H and W are multiples of `shrink`.
    """
    weight = confidence * confidence + 1e-4
    terms = (torch.ones_like(lightness), lightness, lightness * lightness, colours, lightness * colours)
    products = torch.cat([weight * term for term in terms], dim=1)
    if shrink > 1:
        products = F.avg_pool2d(products, shrink)
    near = box_mean(products, radius) + WHOLE * products.mean(dim=(2, 3), keepdim=True)
    total, light, light_square, colour, product = torch.split(near, [1, 1, 1, 3, 3], dim=1)
    light, light_square, colour, product = (x / total for x in (light, light_square, colour, product))
    variance = (light_square - light * light).clamp(min=0)
    slope = (product - light * colour) / (variance + FLAT)
    offset = colour - slope * light
    both = torch.cat([slope, offset], dim=1)
    if shrink > 1:
        both = F.interpolate(both, size=lightness.shape[-2:], mode="bilinear", align_corners=False)
    else:  # fits count by the confidence they are founded on
        both = box_mean(both * total, radius) / box_mean(total, radius)
    slope, offset = both.chunk(2, dim=1)
    return slope * lightness + offset


def box_mean(picture: Tensor, radius: int) -> Tensor:
    """Mean over the window around each cell, borders repeated."""
    padded = F.pad(picture, (radius,) * 4, mode="replicate")
    return F.avg_pool2d(padded, 2 * radius + 1, stride=1)


def upsample_guided(picture: Tensor, view: RGB) -> RGB:
    """`picture` (3, h, w) in [0, 1] at the size of `view` (H, W, 3), which it shows at another resolution."""
    height, width = view.shape[:2]
    if height * width <= picture.shape[1] * picture.shape[2] * 1.2:  # nothing to enlarge
        resized = F.interpolate(picture[None].float(), size=(height, width), mode="bilinear", antialias=True)
        return to_bytes(resized[0])
    weighted = (torch.from_numpy(view[..., i]).float() * (weight / 255) for i, weight in enumerate(GREY))
    light = sum(weighted, torch.zeros(()))
    small = F.interpolate(light[None, None], size=picture.shape[1:], mode="bilinear", antialias=True)
    slope, offset = _linear_fit(picture[None].float().cpu(), small)
    strips = []
    for top in range(0, height, STRIP):
        bottom = min(top + STRIP, height)
        a, b = (_enlarged_rows(part, top, bottom, (height, width)) for part in (slope, offset))
        strips.append(to_bytes(a * light[None, top:bottom] + b))
    return np.concatenate(strips)


def _linear_fit(picture: Tensor, guide: Tensor) -> tuple[Tensor, Tensor]:
    """Slope and offset (1, 3, h, w) with picture = slope * guide + offset around every pixel."""
    mean_guide, mean_picture = box_mean(guide, RADIUS), box_mean(picture, RADIUS)
    variance = box_mean(guide * guide, RADIUS) - mean_guide * mean_guide
    covariance = box_mean(guide * picture, RADIUS) - mean_guide * mean_picture
    brightness = (mean_picture / (mean_guide + 0.02)).clamp(max=STEEPEST)
    slope = (covariance + REGULARITY * brightness) / (variance.clamp(min=0) + REGULARITY)
    return box_mean(slope, RADIUS), box_mean(mean_picture - slope * mean_guide, RADIUS)


def _enlarged_rows(small: Tensor, top: int, bottom: int, size: tuple[int, int]) -> Tensor:
    """Rows top ... bottom (3, bottom - top, W) of small (1, 3, h, w) enlarged to `size`, bilinear."""
    height, width = size
    y = (torch.arange(top, bottom) + 0.5) * (2 / height) - 1
    x = (torch.arange(width) + 0.5) * (2 / width) - 1
    grid = torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1)[None]
    return F.grid_sample(small, grid, padding_mode="border", align_corners=False)[0]


def to_bytes(picture: Tensor) -> RGB:
    """(3, H, W) in [0, 1] as (H, W, 3) bytes."""
    scaled = picture.detach().float().clamp(0, 1).mul(255).round().byte()
    return scaled.permute(1, 2, 0).contiguous().cpu().numpy()

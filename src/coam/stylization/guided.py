"""Sampled colours as a local linear function of VIEW's lightness, fitted where they are trusted.

Sampled colours jitter by about a pixel, VIEW's edges lie exactly where they should. So around every pixel the
colours are fitted by slope * lightness + offset, each match weighted by its confidence. A narrow fit mends
edges; a wide one carries the style to places that STYLE does not show. Where nothing near is trusted, the fit
of the whole picture takes over.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

WHOLE = 0.01  # weight of the whole picture beside what is near
FLAT = 0.01  # variance of the lightness (in spreads) below which no slope is believed


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
    near = _box(products, radius) + WHOLE * products.mean(dim=(2, 3), keepdim=True)
    total, light, light_square, colour, product = torch.split(near, [1, 1, 1, 3, 3], dim=1)
    light, light_square, colour, product = (x / total for x in (light, light_square, colour, product))
    variance = (light_square - light * light).clamp(min=0)
    slope = (product - light * colour) / (variance + FLAT)
    offset = colour - slope * light
    both = torch.cat([slope, offset], dim=1)
    if shrink > 1:
        both = F.interpolate(both, size=lightness.shape[-2:], mode="bilinear", align_corners=False)
    else:
        both = _box(both * total, radius) / _box(total, radius)  # fits count by what they are founded on
    slope, offset = both.chunk(2, dim=1)
    return slope * lightness + offset


def _box(picture: Tensor, radius: int) -> Tensor:
    """Mean over the window around each cell, borders repeated."""
    padded = F.pad(picture, (radius,) * 4, mode="replicate")
    return F.avg_pool2d(padded, 2 * radius + 1, stride=1)

"""Normalised opponent colours, relative to the style photo, so that nothing of VIEW's own can leak in.

STYLE's colours are written as lightness and two colour differences, minus STYLE's mean, over STYLE's spread.
What the networks say is read back with the same mean and spread: if STYLE is grey, its colour differences
have no spread, and whatever the networks say, the result is grey. Of VIEW they see the lightness only, minus
its own mean, over its own spread: recolouring VIEW or changing its exposure changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.data.photometric import GREY

FLOOR = (1e-2, 1e-3, 1e-3)  # added to the spread
FURTHEST = 6.0  # spreads: normalised colours are clipped here
BLOCK = 8  # pixels; local contrast is that of 5 x 5 blocks
VIEW_CHANNELS = 2


def to_opponent(rgb: Tensor) -> Tensor:
    """(B, 3, H, W) RGB -> lightness, blue minus lightness, red minus lightness."""
    red, green, blue = rgb.unbind(dim=1)
    light = GREY[0] * red + GREY[1] * green + GREY[2] * blue
    return torch.stack([light, blue - light, red - light], dim=1)


def to_rgb(opponent: Tensor) -> Tensor:
    """The inverse of `to_opponent`, not clipped."""
    light, blueness, redness = opponent.unbind(dim=1)
    red, blue = redness + light, blueness + light
    green = (light - GREY[0] * red - GREY[2] * blue) / GREY[1]
    return torch.stack([red, green, blue], dim=1)


@dataclass(frozen=True)
class Palette:
    """Mean and spread of a style photo's colours, (B, 3, 1, 1) each, in opponent colours."""

    mean: Tensor
    spread: Tensor

    @staticmethod
    def of(style: Tensor) -> Palette:
        """The palette of style photos (B, 3, H, W) in [0, 1]."""
        opponent = to_opponent(style.float())
        floor = torch.tensor(FLOOR, device=style.device).view(1, 3, 1, 1)
        variance, mean = torch.var_mean(opponent, dim=(2, 3), keepdim=True, correction=0)
        return Palette(mean, variance.sqrt() + floor)

    def normalise(self, rgb: Tensor) -> Tensor:
        """Colours (B, 3, H, W) relative to the palette."""
        return ((to_opponent(rgb.float()) - self.mean) / self.spread).clamp(-FURTHEST, FURTHEST)

    def colours(self, normalised: Tensor) -> Tensor:
        """RGB (B, 3, H, W) of relative colours; may lie outside [0, 1]."""
        return to_rgb(normalised.float() * self.spread + self.mean)


def structure_of(view: Tensor) -> Tensor:
    """What the networks see of VIEW (B, 3, H, W): its lightness over the whole, and its local contrast."""
    light = to_opponent(view.float())[:, :1]
    variance, mean = torch.var_mean(light, dim=(2, 3), keepdim=True, correction=0)
    overall = (light - mean) / (variance.sqrt() + FLOOR[0])
    blurred, blurred_square = _local_mean(light), _local_mean(light * light)
    spread = (blurred_square - blurred * blurred).clamp(min=0).sqrt()
    local = (light - blurred) / (spread + 0.5 * variance.sqrt() * 0.2 + FLOOR[0])
    return torch.cat([overall, local], dim=1).clamp(-FURTHEST, FURTHEST)


def _local_mean(picture: Tensor) -> Tensor:
    """Mean over about 5 x 5 blocks of BLOCK pixels around each pixel."""
    small = F.avg_pool2d(picture, BLOCK, ceil_mode=True)
    wide = F.avg_pool2d(F.pad(small, (2, 2, 2, 2), mode="replicate"), 5, stride=1)
    return F.interpolate(wide, size=picture.shape[-2:], mode="bilinear", align_corners=False)

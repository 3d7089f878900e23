"""The distinctiveness score: how seldom a descriptor is confused with wrong ones in the other image.

Both heads read detached features: the score observes the descriptors and never shapes them.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn


class PaperDistinctiveness(nn.Module):
    """Three blocks of 1x1 convolution (no bias) + batch normalisation, no ReLU between them, then a sigmoid.

    The paper gives the widths as 64 -> 1 -> 1 for three blocks; we read them as 64 -> 64 -> 1 -> 1.
    """

    def __init__(self, channels: int) -> None:
        super().__init__()
        widths = (channels, channels, 1, 1)
        blocks: list[nn.Module] = []
        for in_channels, out_channels in pairwise(widths):
            blocks += [nn.Conv2d(in_channels, out_channels, 1, bias=False), nn.BatchNorm2d(out_channels)]
        self.layers = nn.Sequential(*blocks)

    def forward(self, features: Tensor) -> Tensor:
        """Unnormalised features (B, C, H, W) -> logits (B, 1, H, W)."""
        logits: Tensor = self.layers(features.detach())
        return logits


class Distinctiveness(nn.Module):
    """A 3x3 neighbourhood, a hidden layer and one logit per position."""

    def __init__(self, channels: int, hidden: int = 64) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, 1, 1),
        )

    def forward(self, features: Tensor) -> Tensor:
        """Unnormalised features (B, C, H, W) -> logits (B, 1, H, W)."""
        logits: Tensor = self.layers(features.detach())
        return logits

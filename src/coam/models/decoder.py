"""Convolution blocks that turn features back into a dense map, and the heads of its distinctiveness score."""

from __future__ import annotations

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn_relu(in_channels: int, out_channels: int) -> nn.Sequential:
    """3x3 convolution, batch normalisation, ReLU."""
    return nn.Sequential(
        nn.Conv2d(in_channels, out_channels, 3, padding=1, bias=False),
        nn.BatchNorm2d(out_channels),
        nn.ReLU(inplace=True),
    )


def upsample(feature_map: Tensor) -> Tensor:
    """Twice the resolution, bilinear, in the pixel convention of the package."""
    return F.interpolate(feature_map, scale_factor=2.0, mode="bilinear", align_corners=False)


def _add(own: Tensor, other: Tensor) -> Tensor:
    """Their sum; without gradients in the memory of `own`: fresh memory costs more than the addition."""
    return own + other if torch.is_grad_enabled() else own.add_(other)


class UpBlock(nn.Module):
    """The paper's decoder layer: concatenate, upsample bilinearly by two, two 3x3 conv + BN + ReLU."""

    def __init__(self, in_channels: int, out_channels: int) -> None:
        super().__init__()
        self.convs = nn.Sequential(
            conv_bn_relu(in_channels, out_channels), conv_bn_relu(out_channels, out_channels)
        )

    def forward(self, *inputs: Tensor) -> Tensor:
        """Maps (B, C_i, H, W) of one size -> (B, out_channels, 2 H, 2 W)."""
        decoded: Tensor = self.convs(upsample(torch.cat(inputs, dim=1)))
        return decoded


class MergeBlock(nn.Module):
    """Coarse features, upsampled and narrowed, are added to the finer ones of the encoder, then convolved.

    The sum stands for the convolution of a concatenation, so the encoder's share is computed once per image.
    """

    def __init__(self, coarse_channels: int, channels: int) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(coarse_channels, channels, 1, bias=False)
        self.convs = nn.Sequential(conv_bn_relu(channels, channels), conv_bn_relu(channels, channels))

    def forward(self, coarse: Tensor, lateral: Tensor) -> Tensor:
        """coarse (B, coarse_channels, H, W), lateral (B, channels, 2 H, 2 W) -> (B, channels, 2 H, 2 W)."""
        merged = F.relu_(_add(upsample(self.narrow(coarse)), lateral))
        residual: Tensor = self.convs(merged)
        return _add(residual, merged)


class DistinctivenessHead(nn.Module):
    """The distinctiveness score: how seldom a descriptor is confused with wrong ones in the other image.

    It reads detached features: the score observes the descriptors and never shapes them.
    """

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.Sequential(*layers)

    def forward(self, features: Tensor) -> Tensor:
        """Unnormalised features (B, C, H, W) -> logits (B, 1, H, W)."""
        logits: Tensor = self.layers(features.detach())
        return logits


class PaperDistinctiveness(DistinctivenessHead):
    """Three blocks of 1x1 convolution (no bias) + batch normalisation, no ReLU between them, then a sigmoid.

    The paper gives the widths as 64 -> 1 -> 1 for three blocks; we read them as 64 -> 64 -> 1 -> 1.
    """

    def __init__(self, channels: int) -> None:
        blocks: list[nn.Module] = []
        for inputs, outputs in pairwise((channels, channels, 1, 1)):
            blocks += [nn.Conv2d(inputs, outputs, 1, bias=False), nn.BatchNorm2d(outputs)]
        super().__init__(*blocks)


class Distinctiveness(DistinctivenessHead):
    """A 3x3 neighbourhood, a hidden layer and one logit per position."""

    def __init__(self, channels: int, hidden: int = 64) -> None:
        super().__init__(
            nn.Conv2d(channels, hidden, 3, padding=1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, hidden, 1),
            nn.ReLU(inplace=True),
            nn.Conv2d(hidden, 1, 1),
        )


def score_map(head: DistinctivenessHead | None, features: Tensor) -> Tensor:
    """Scores (B, 1, H, W) in [0, 1] of features (B, C, H, W); without a head 1 everywhere."""
    return torch.ones_like(features[:, :1]) if head is None else head(features).float().sigmoid()

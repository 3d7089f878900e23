"""Tells photos from made pictures, patch by patch and at several scales (as in pix2pixHD); training only."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import spectral_norm

INPUTS = 3 + 2  # relative colours and VIEW's structure


class PatchDiscriminator(nn.Module):
    """One scale: every output position judges a patch of about 46 pixels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        widths = (INPUTS, width, 2 * width, 4 * width)
        strides = (2, 2, 1)
        self.layers = nn.ModuleList(
            spectral_norm(nn.Conv2d(widths[i], widths[i + 1], 4, stride=strides[i], padding=1))
            for i in range(3)
        )
        self.verdict = spectral_norm(nn.Conv2d(widths[-1], 1, 4, padding=1))

    def forward(self, picture: Tensor) -> list[Tensor]:
        """Features of all layers, the verdict (B, 1, h, w) last."""
        features: list[Tensor] = []
        for layer in self.layers:
            picture = F.leaky_relu(layer(picture), 0.2)
            features.append(picture)
        return [*features, self.verdict(picture)]


class Discriminator(nn.Module):
    """The same judge at full size, at half, ..."""

    def __init__(self, width: int = 48, scales: int = 2) -> None:
        super().__init__()
        self.scales = nn.ModuleList(PatchDiscriminator(width) for _ in range(scales))

    def forward(self, colours: Tensor, structure: Tensor) -> list[list[Tensor]]:
        """Per scale the features of relative colours (B, 3, H, W) that should show structure (B, 2, H, W)."""
        picture = torch.cat([colours, structure], dim=1)
        judged = []
        for scale in self.scales:
            judged.append(scale(picture))
            picture = F.avg_pool2d(picture, 2)
        return judged


def judge_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """Hinge loss of the discriminator: photos above 1, made pictures below -1."""
    losses = [
        F.relu(1 - r[-1].float()).mean() + F.relu(1 + m[-1].float()).mean()
        for r, m in zip(real, made, strict=True)
    ]
    return torch.stack(losses).mean()


def fool_loss(made: list[list[Tensor]]) -> Tensor:
    """Loss of the maker: its pictures should be judged photos."""
    return torch.stack([-m[-1].float().mean() for m in made]).mean()


def feature_loss(real: list[list[Tensor]], made: list[list[Tensor]]) -> Tensor:
    """Mean L1 distance of the discriminator's features (feature matching), the real ones detached."""
    distances = [
        F.l1_loss(b.float(), a.detach().float())
        for r, m in zip(real, made, strict=True)
        for a, b in zip(r[:-1], m[:-1], strict=True)
    ]
    return torch.stack(distances).mean()

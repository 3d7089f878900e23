"""The two networks that complete and refine a sampled image, and their file.

Stage 1, a U-Net, sees VIEW's structure, the sampled colours and the evidence for them. At each pixel it mixes
three answers: the sampled colour, the same after a narrow fit to VIEW's lightness, which mends edges, and a
prediction for where STYLE does not show the place: a wide fit, which the network corrects. Stage 2, residual
blocks, sees nothing but the picture of stage 1, cut off from its gradient, and makes it look like a photo.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.matching.flow import EVIDENCE
from coam.models.decoder import conv_bn_relu
from coam.models.registry import config_from_dict, packaged_weights, read_network, untrained, write_network
from coam.stylization.colours import VIEW_CHANNELS, Palette, structure_of
from coam.stylization.guided import fit_to_lightness
from coam.stylization.sampled import confidence_of

FORMAT = "coam-stylizer-1"
DEFAULT_STYLIZER = "stylizer"
MULTIPLE = 32  # of the sides of a picture
TRUSTED = 0.25  # confidence from which an untrained network prefers what was sampled
NARROW, WIDE, SHRINK = 2, 4, 8  # radius of the narrow fit in pixels, of the wide one in cells of SHRINK
REFINED = 0.5  # how much of stage 2's change is taken: the mean of two pictures errs less than either
INPUTS = VIEW_CHANNELS + 3 * 3 + len(EVIDENCE)
ANSWERS = [3, 3, 3, 3]  # channels of stage 1's answer: the mix, then colours of constant, lightness, contrast


@dataclass(frozen=True)
class StylizerConfig:
    """The sizes of the networks."""

    # Channels of the U-Net at strides 2, 4, 8, 16, 32
    widths: tuple[int, int, int, int, int] = (48, 80, 128, 192, 256)
    refiner_width: int = 48  # channels of stage 2, at stride 2
    refiner_blocks: int = 4  # residual blocks of stage 2


def conv_block(inputs: int, outputs: int) -> nn.Sequential:
    """Two 3x3 convolutions, each with batch normalisation and ReLU."""
    return nn.Sequential(*conv_bn_relu(inputs, outputs), *conv_bn_relu(outputs, outputs))


def silent(layer: nn.Conv2d) -> nn.Conv2d:
    """The layer with weights of zero: it says nothing until it is trained."""
    for parameter in layer.parameters():
        nn.init.zeros_(parameter)
    return layer


class Mender(nn.Module):
    """Stage 1: (B, INPUTS, H, W) -> the answer (B, sum(ANSWERS), H, W). Sides are multiples of 32."""

    def __init__(self, config: StylizerConfig) -> None:
        super().__init__()
        widths = config.widths
        self.first = conv_block(4 * INPUTS, widths[0])
        self.down = nn.ModuleList(conv_block(inputs, outputs) for inputs, outputs in pairwise(widths))
        self.whole = nn.Linear(widths[-1], widths[-1])  # what the whole picture says, to every position
        self.up = nn.ModuleList(
            conv_block(deep + skip, skip) for skip, deep in reversed(list(pairwise(widths)))
        )
        self.answer = silent(nn.Conv2d(widths[0], 4 * sum(ANSWERS), 1))

    def forward(self, inputs: Tensor) -> Tensor:
        features = [self.first(F.pixel_unshuffle(inputs, 2))]
        for block in self.down:
            features.append(block(F.avg_pool2d(features[-1], 2)))
        deep = features.pop()
        deep = deep + self.whole(deep.mean(dim=(2, 3)))[..., None, None]
        for block in self.up:
            wide = F.interpolate(deep, scale_factor=2.0, mode="bilinear", align_corners=False)
            deep = block(torch.cat([wide, features.pop()], dim=1))
        return F.pixel_shuffle(self.answer(deep), 2)


class ResidualBlock(nn.Module):
    """Two convolutions beside the identity; no normalisation, which would take the style away."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(width, width, 3, padding=1)
        self.second = nn.Conv2d(width, width, 3, padding=1)

    def forward(self, features: Tensor) -> Tensor:
        """(B, width, H, W) -> the same."""
        residual: Tensor = self.second(F.relu(self.first(features)))
        return features + residual


class Refiner(nn.Module):
    """Stage 2: relative colours (B, 3, H, W) -> better ones."""

    def __init__(self, config: StylizerConfig) -> None:
        super().__init__()
        width = config.refiner_width
        self.first = nn.Conv2d(12, width, 3, padding=1)
        self.blocks = nn.Sequential(*(ResidualBlock(width) for _ in range(config.refiner_blocks)))
        self.last = silent(nn.Conv2d(width, 12, 3, padding=1))

    def forward(self, colours: Tensor) -> Tensor:
        features = F.relu(self.first(F.pixel_unshuffle(colours, 2)))
        return colours + F.pixel_shuffle(self.last(self.blocks(features)), 2)


class StylizerNetwork(nn.Module):
    """Both stages. Untrained, it gives the narrow fit where matches are trusted, elsewhere the wide one."""

    def __init__(self, config: StylizerConfig | None = None) -> None:
        super().__init__()
        self.config = config or StylizerConfig()
        self.mender = Mender(self.config)
        self.refiner = Refiner(self.config)

    def mend(self, structure: Tensor, sampled: Tensor, evidence: Tensor) -> Tensor:
        """Stage 1 in relative colours (B, 3, H, W).

        structure (B, 2, H, W) of VIEW; sampled (B, 3, H, W) in relative colours; evidence (B, 4, H, W).
        """
        trust = confidence_of(evidence).unsqueeze(1)
        overall, local = structure.chunk(2, dim=1)
        narrow = fit_to_lightness(sampled, overall, trust, NARROW)
        wide = fit_to_lightness(sampled, overall, trust, WIDE, SHRINK)
        answer = self.mender(torch.cat([structure, sampled, narrow, wide, evidence], dim=1)).float()
        mix, constant, lightness, contrast = torch.split(answer, ANSWERS, dim=1)
        predicted = wide + constant + lightness * overall + contrast * local
        preference = 8.0 * (trust - TRUSTED)
        share = torch.softmax(mix + torch.cat([preference - 1.5, preference, 0 * trust], dim=1), dim=1)
        choices = torch.stack([sampled, narrow, predicted], dim=1)
        return (share.unsqueeze(2) * choices).sum(dim=1)

    def refine(self, mended: Tensor) -> Tensor:
        """Stage 2 in relative colours (B, 3, H, W); no gradient goes back into `mended`."""
        refined: Tensor = self.refiner(mended.detach())
        return refined.float()

    def forward(
        self, view: Tensor, style: Tensor, sampled: Tensor, evidence: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Pictures (B, 3, H, W) of stage 1 and of both stages, RGB in [0, 1].

        view and sampled (B, 3, H, W), style (B, 3, Hs, Ws), evidence (B, 4, H, W); H and W multiples of 32.
        """
        palette = Palette.of(style)
        mended = self.mend(structure_of(view), palette.normalise(sampled), evidence.float())
        refined = torch.lerp(mended.detach(), self.refine(mended), REFINED)
        return palette.colours(mended).clamp(0, 1), palette.colours(refined).clamp(0, 1)


@dataclass(frozen=True)
class StylizerFile:
    """A network with what its file says about it."""

    network: StylizerNetwork
    trained: bool
    card: dict[str, Any] = field(default_factory=dict)  # licence, recipe, steps: JSON values


def save_network(network: StylizerNetwork, path: Path, card: dict[str, Any]) -> Path:
    """Write weights (float16), configuration and card (atomically)."""
    return write_network(path, network, network.config, {"format": FORMAT}, card)


def load_network(path: str | Path | None = None) -> StylizerFile:
    """The stylizer of a .safetensors file; None: the packaged one, or an untrained one."""
    path = path or packaged_weights(DEFAULT_STYLIZER)
    if path is None:
        return StylizerFile(untrained(StylizerNetwork), trained=False)
    network, _, card = read_network(
        Path(path),
        FORMAT,
        "stylizer",
        lambda _, config: StylizerNetwork(config_from_dict(StylizerConfig, config)),
    )
    return StylizerFile(network, trained=True, card=card)

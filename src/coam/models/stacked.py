"""CD-UNet with stacked conditioning: the default model.

The published network lets the two images meet once at each of its two deepest levels. Here they meet in
several rounds of self- and co-attention at strides 32 and 16, with positions, several heads and scaled
logits. The decoder gives 64-D descriptors at stride 4 and a fine map at stride 2 in which a match is refined
to sub-pixels.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.coattention import AttentionBlock, attention_map, flatten_map, rotary_angles, unflatten_map
from coam.models.decoder import MergeBlock, upsample
from coam.models.distinctiveness import Distinctiveness
from coam.models.encoders import build_encoder
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import crop_cells, pad_image, valid_cells


@dataclass(frozen=True)
class StackedConfig:
    """The default network; `conditioning` and `distinctiveness` are its ablation switches."""

    encoder: str = "efficientnet_lite1"  # any name of coam.models.encoders
    encoder_options: dict[str, Any] = field(default_factory=dict)  # keyword options of that encoder
    conditioning: bool = True  # False: the co-attention blocks look at their own image (equal capacity)
    distinctiveness: bool = True  # False: the score is 1 everywhere
    width: int = 192  # channels of the attention tokens
    heads: int = 6  # attention heads
    rounds: tuple[int, int] = (1, 4)  # rounds of self- and co-attention at strides 32 and 16
    decoder_widths: tuple[int, int, int] = (128, 96, 48)  # channels at strides 8, 4, 2
    descriptor_channels: int = 64  # of the descriptors at stride 4
    fine_channels: int = 32  # of the refinement map at stride 2
    descriptor_temperature: float = 20.0  # start value of the learned factor on similarities


# Called with stride, co-attention block, tokens, the other image's tokens and mask, just before they meet.
Observer = Callable[[int, AttentionBlock, Tensor, Tensor, Tensor | None], None]


class Round(nn.Module):
    """Each image looks at itself, then at the other."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(channels, heads)
        self.co_attention = AttentionBlock(channels, heads)


class StackedCDUNet(nn.Module):
    """Same face as `CDUNet`: encode once per image, decode per pair."""

    stride = 4

    def __init__(self, config: StackedConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = build_encoder(config.encoder, **config.encoder_options)
        lateral_widths = (
            *reversed(config.decoder_widths),
            config.width,
            config.width,
        )  # strides 2, 4, 8, 16, 32
        self.laterals = nn.ModuleList(
            # Normalised: the encoder's early features are ten times larger than its late ones.
            nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))
            for channels, width in zip(self.encoder.channels, lateral_widths, strict=True)
        )
        self.rounds = nn.ModuleDict(
            {
                str(stride): nn.ModuleList(Round(config.width, config.heads) for _ in range(count))
                for stride, count in zip((32, 16), config.rounds, strict=True)
            }
        )
        self.norm = nn.LayerNorm(config.width)
        widths = (config.width, *config.decoder_widths)
        self.merge = nn.ModuleList(MergeBlock(coarse, fine) for coarse, fine in pairwise(widths))
        self.to_descriptor = nn.Conv2d(config.decoder_widths[1], config.descriptor_channels, 1)
        self.to_fine = nn.Conv2d(config.decoder_widths[2], config.fine_channels, 1)
        self.to_coarse = nn.Linear(config.width, config.descriptor_channels)
        self.score = Distinctiveness(config.decoder_widths[1]) if config.distinctiveness else None
        self.log_temperature = nn.Parameter(torch.tensor(config.descriptor_temperature).log())

    @property
    def temperature(self) -> Tensor:
        """Learned factor on descriptor similarities in a softmax."""
        return self.log_temperature.exp().clamp(max=60.0)

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        pyramid = self.encoder(pad_image(image))
        levels = tuple(lateral(level) for lateral, level in zip(self.laterals, pyramid, strict=True))
        return EncodedImage(levels, (image.shape[-2], image.shape[-1]))

    def forward(self, image_a: Tensor, image_b: Tensor) -> tuple[DenseDescriptors, DenseDescriptors]:
        """`encode` and `decode` in one; images of one size are encoded as one batch."""
        if image_a.shape == image_b.shape:
            both = self.encode(torch.cat([image_a, image_b]))
            halves = list(zip(*(level.chunk(2) for level in both.levels), strict=True))
            return self.decode(EncodedImage(halves[0], both.size), EncodedImage(halves[1], both.size))
        return self.decode(self.encode(image_a), self.encode(image_b))

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        groups = group_images(a, b)
        described = [
            self._describe(image, conditioned)
            for image, conditioned in zip(groups, self.condition(groups), strict=True)
        ]
        return (described[0], described[1]) if len(described) == 2 else split_group(described[0])

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B in the last round, by stride."""
        maps: dict[int, Tensor] = {}
        levels = {32: (a.levels[4], b.levels[4]), 16: (a.levels[3], b.levels[3])}

        def keep(
            stride: int, block: AttentionBlock, tokens: Tensor, source: Tensor, valid: Tensor | None
        ) -> None:
            map_a, map_b = levels[stride]
            weights = block.attention(tokens, source, valid)
            maps[stride] = attention_map(weights, map_a.shape[-2:], map_b.shape[-2:])

        self.condition([a, b], observe=keep)
        return maps

    def condition(self, groups: list[EncodedImage], observe: Observer | None = None) -> list[Tensor]:
        """Feature maps (B, width, H / 16, W / 16) of each group after the images looked at each other."""
        maps = self._meet(32, groups, [image.levels[4] for image in groups], observe)
        maps = [image.levels[3] + upsample(deeper) for image, deeper in zip(groups, maps, strict=True)]
        return self._meet(16, groups, maps, observe)

    def _meet(
        self, stride: int, groups: list[EncodedImage], maps: list[Tensor], observe: Observer | None
    ) -> list[Tensor]:
        """Rounds of self- and co-attention on maps (B, width, H / stride, W / stride)."""
        shapes = [feature_map.shape[-2:] for feature_map in maps]
        valid = [valid_cells(m, image.size, stride) for m, image in zip(maps, groups, strict=True)]
        head_channels = self.config.width // self.config.heads
        angles = [rotary_angles(m.shape[-2], m.shape[-1], head_channels, m.device) for m in maps]
        tokens = [flatten_map(feature_map) for feature_map in maps]
        rounds = self.rounds[str(stride)]
        assert isinstance(rounds, nn.ModuleList)
        for round_ in rounds:
            assert isinstance(round_, Round)
            tokens = [
                round_.self_attention(t, t, a, v) for t, a, v in zip(tokens, angles, valid, strict=True)
            ]
            sources, source_valid = tokens, valid
            if self.config.conditioning:
                sources, source_valid = _others(tokens), valid[::-1]
                if observe is not None:
                    observe(stride, round_.co_attention, tokens[0], sources[0], source_valid[0])
            tokens = [
                round_.co_attention(t, s, None, v)
                for t, s, v in zip(tokens, sources, source_valid, strict=True)
            ]
        return [unflatten_map(t, *shape) for t, shape in zip(tokens, shapes, strict=True)]

    def _describe(self, image: EncodedImage, conditioned: Tensor) -> DenseDescriptors:
        tokens = self.norm(flatten_map(conditioned))
        coarse = unflatten_map(self.to_coarse(tokens), *conditioned.shape[-2:])
        at16 = unflatten_map(tokens, *conditioned.shape[-2:])
        at8 = self.merge[0](at16, image.levels[2])
        at4 = self.merge[1](at8, image.levels[1])
        at2 = self.merge[2](at4, image.levels[0])
        features = crop_cells(at4, image.size, 4)
        score = (
            torch.ones_like(features[:, :1]) if self.score is None else self.score(features).float().sigmoid()
        )
        return DenseDescriptors(
            descriptors=F.normalize(self.to_descriptor(features).float(), dim=1),
            score=score,
            stride=self.stride,
            size=image.size,
            fine=crop_cells(self.to_fine(at2), image.size, 2).float(),
            coarse=F.normalize(crop_cells(coarse, image.size, 16).float(), dim=1),
        )


def group_images(a: EncodedImage, b: EncodedImage) -> list[EncodedImage]:
    """Images of one size as one batch (half as many, larger operations), others as two."""
    if a.size != b.size or a.levels[0].shape != b.levels[0].shape:
        return [a, b]
    return [EncodedImage(tuple(torch.cat(pair) for pair in zip(a.levels, b.levels, strict=True)), a.size)]


def _others(tokens: list[Tensor]) -> list[Tensor]:
    """For each group the tokens of the other images: swapped halves of one batch, or the other batch."""
    return [torch.cat(tokens[0].chunk(2)[::-1])] if len(tokens) == 1 else tokens[::-1]


def split_group(both: DenseDescriptors) -> tuple[DenseDescriptors, DenseDescriptors]:
    """The two images of every pair, from one batch of first and second images."""
    parts = (both.descriptors, both.score, both.fine, both.coarse)
    halves = zip(*((None, None) if part is None else part.chunk(2) for part in parts), strict=True)
    first, second = (replace(both, descriptors=d, score=s, fine=f, coarse=c) for d, s, f, c in halves)
    return first, second

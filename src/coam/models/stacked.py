"""CD-UNet with stacked conditioning: the default model.

The published network lets the two images meet once at each of its two deepest levels. Here they meet in
several rounds of self- and co-attention at strides 32 and 16, with positions, several heads and scaled
logits. The decoder gives 64-D descriptors at stride 4 and a fine map at stride 2 in which a match is refined
to sub-pixels.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.coattention import AttentionBlock, attention_map, flatten_map, rotary_angles, unflatten_map
from coam.models.decoder import Distinctiveness, MergeBlock, score_map, upsample
from coam.models.encoders import build_encoder
from coam.models.encoders.base import Encoder
from coam.models.network import OWN_LEVELS, Capabilities, DescriptorNetwork, Refinement
from coam.models.outputs import DenseDescriptors, EncodedImage, group_images, split_group
from coam.models.padding import crop_cells, pad_image, valid_cells

STRIDE = 4  # pixels between descriptors


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
    # Pixels, long side, at which images meet: of a larger one attention is shown a copy of this size. Its
    # work does not grow with the image, and things keep the size they had in training; docs/performance.md
    meeting_side: int = 800
    descriptor_temperature: float = 20.0  # start value of the learned factor on similarities


class Round(nn.Module):
    """Each image looks at itself, then at the other."""

    def __init__(self, channels: int, heads: int) -> None:
        super().__init__()
        self.self_attention = AttentionBlock(channels, heads)
        self.co_attention = AttentionBlock(channels, heads)


class StackedCDUNet(DescriptorNetwork):
    """Self- and co-attention in rounds; descriptors at stride 4, a fine map at stride 2."""

    Config = StackedConfig
    config: StackedConfig

    def __init__(self, config: StackedConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = build_encoder(config.encoder, **config.encoder_options)
        at_strides_2_to_32 = (*reversed(config.decoder_widths), config.width, config.width)
        self.laterals = nn.ModuleList(
            # Normalised: the encoder's early features are ten times larger than its late ones.
            nn.Sequential(nn.Conv2d(channels, width, 1, bias=False), nn.BatchNorm2d(width))
            for channels, width in zip(self.encoder.channels, at_strides_2_to_32, strict=True)
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
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.descriptor_temperature)))

    @property
    def capabilities(self) -> Capabilities:
        """A fine map for sub-pixels; in half precision as precise as in float32."""
        # Activations stay below a few hundred, and float16 has eight times the resolution of bfloat16.
        refinements: tuple[Refinement, ...] = ("fine", "quadratic", "paper", "none")
        side = self.config.meeting_side
        return Capabilities(STRIDE, refinements, half=torch.float16, bfloat16_on_cpu=True, meeting_side=side)

    @property
    def logit_scale(self) -> Tensor:
        """Learned factor on descriptor similarities in a softmax."""
        return self.log_temperature.exp().clamp(max=60.0)

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        pyramid = self.pyramid(self.encoder, image)
        levels = tuple(lateral(level) for lateral, level in zip(self.laterals, pyramid, strict=True))
        return EncodedImage(levels, (image.shape[-2], image.shape[-1]))

    def pyramid(self, encoder: Encoder, image: Tensor) -> tuple[Tensor, ...]:
        """The encoder's levels of an image (B, 3, H, W); the two deepest are of `meeting_side`."""
        padded = pad_image(image)
        copy = self.meeting_copy(padded)
        if copy is None:
            maps: tuple[Tensor, ...] = encoder(padded)
            return maps
        return (*encoder(padded, OWN_LEVELS), *encoder(copy)[OWN_LEVELS:])

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        groups = group_images(a, b)
        described = list(map(self._describe, groups, self.condition(groups)))
        return (described[0], described[1]) if len(described) == 2 else split_group(described[0])

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B in the last round, by stride."""
        maps: dict[int, Tensor] = {}
        self.condition([a, b], maps)
        return maps

    def coarse_descriptors(self, a: EncodedImage, b: EncodedImage) -> tuple[Tensor, Tensor] | None:
        """Unit descriptors (B, D, H / 16, W / 16) of both images, conditioned, before the decoder."""
        groups = group_images(a, b)
        both = zip(groups, self.condition(groups), strict=True)
        coarse = [self._coarse(image, self.norm(flatten_map(m)), m) for image, m in both]
        first, second = coarse if len(coarse) == 2 else coarse[0].chunk(2)
        return first, second

    def condition(
        self, groups: list[EncodedImage], attention: dict[int, Tensor] | None = None
    ) -> list[Tensor]:
        """Feature maps (B, width, H / 16, W / 16) of each group after the images looked at each other.

        `attention`, given with two groups, gets what the first pays to the second, by stride.
        """
        maps = self._meet(32, groups, [image.levels[4] for image in groups], attention)
        maps = [image.levels[3] + upsample(deeper) for image, deeper in zip(groups, maps, strict=True)]
        maps = self._meet(16, groups, maps, attention)
        return [_at_16(feature_map, image) for feature_map, image in zip(maps, groups, strict=True)]

    def _meet(
        self,
        stride: int,
        groups: list[EncodedImage],
        maps: list[Tensor],
        attention: dict[int, Tensor] | None,
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
                if attention is not None:
                    weights = round_.co_attention.attention(tokens[0], sources[0], source_valid[0])
                    attention[stride] = attention_map(weights, *shapes)
            tokens = [
                round_.co_attention(t, s, None, v)
                for t, s, v in zip(tokens, sources, source_valid, strict=True)
            ]
        return [unflatten_map(t, *shape) for t, shape in zip(tokens, shapes, strict=True)]

    def _describe(self, image: EncodedImage, conditioned: Tensor) -> DenseDescriptors:
        tokens = self.norm(flatten_map(conditioned))
        at16 = unflatten_map(tokens, *conditioned.shape[-2:])
        at8 = self.merge[0](at16, image.levels[2])
        at4 = self.merge[1](at8, image.levels[1])
        at2 = self.merge[2](at4, image.levels[0])
        features = crop_cells(at4, image.size, 4)
        return DenseDescriptors(
            descriptors=F.normalize(self.to_descriptor(features).float(), dim=1),
            score=score_map(self.score, features),
            stride=STRIDE,
            size=image.size,
            fine=crop_cells(self.to_fine(at2), image.size, 2).float(),
            coarse=self._coarse(image, tokens, conditioned),
        )

    def _coarse(self, image: EncodedImage, tokens: Tensor, conditioned: Tensor) -> Tensor:
        coarse = unflatten_map(self.to_coarse(tokens), *conditioned.shape[-2:])
        return F.normalize(crop_cells(coarse, image.size, 16).float(), dim=1)


def _at_16(feature_map: Tensor, image: EncodedImage) -> Tensor:
    """What an image of `meeting_side` gave, (B, C, h, w), on the cells of stride 16 of the image itself."""
    height, width = image.levels[2].shape[-2:]
    size = (height // 2, width // 2)
    if feature_map.shape[-2:] == size:
        return feature_map
    return F.interpolate(feature_map, size, mode="bilinear", align_corners=False)


def _others(tokens: list[Tensor]) -> list[Tensor]:
    """For each group the tokens of the other images: swapped halves of one batch, or the other batch."""
    return [torch.cat(tokens[0].chunk(2)[::-1])] if len(tokens) == 1 else tokens[::-1]

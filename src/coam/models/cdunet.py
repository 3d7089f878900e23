"""CD-UNet as published: encoder, CoAM at the two deepest levels, U-Net decoder, distinctiveness.

Each ablation of the paper is a switch of the same code: `conditioning`, `distinctiveness`, the encoder, and
the details that text and published code state differently (`attention_value`, `attention_scale`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.coattention import CoAttentionLevels, Value
from coam.models.decoder import PaperDistinctiveness, UpBlock, score_map
from coam.models.encoders import PYRAMID_STRIDES, build_encoder
from coam.models.network import Capabilities, DescriptorNetwork
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import crop_cells
from coam.tensors import constant

STRIDE = 1  # the descriptor map has the resolution of the input


@dataclass(frozen=True)
class CDUNetConfig:
    """The published network; every field can be varied for an ablation."""

    encoder: str = "resnet50"  # any name of coam.models.encoders
    encoder_options: dict[str, Any] = field(default_factory=dict)  # keyword options of that encoder
    conditioning: bool = True  # False: descriptors of one image ignore the other
    distinctiveness: bool = True  # False: the score is 1 everywhere
    attention_value: Value = "projected"  # what is gathered: "projected" (paper) or "raw" (published code)
    attention_scale: float | None = None  # factor on the logits; None: unscaled, as in eq. 1
    projected_channels: tuple[int, int] = (128, 256)  # of CoAM at strides 16 and 32
    decoder_widths: tuple[int, int, int, int, int] = (256, 256, 128, 128, 64)  # of deconv_5 ... deconv_1
    descriptor_temperature: float = 20.0  # of the InfoNCE / dual softmax losses


class CDUNet(DescriptorNetwork):
    """Descriptors of image A while looking at image B, and the reverse with the same weights."""

    Config = CDUNetConfig
    config: CDUNetConfig

    def __init__(self, config: CDUNetConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = build_encoder(config.encoder, **config.encoder_options)
        channels = self.encoder.channels
        projected = dict(zip((16, 32), config.projected_channels, strict=True)) if config.conditioning else {}
        self.coattention = CoAttentionLevels(
            channels, projected, config.attention_value, config.attention_scale
        )
        self.decoder = nn.ModuleList()
        carried = 0
        deepest_first = reversed(list(zip(PYRAMID_STRIDES, channels, strict=True)))
        for (stride, own), width in zip(deepest_first, config.decoder_widths, strict=True):
            inputs = carried + own + self.coattention.gathered_channels(stride)
            self.decoder.append(UpBlock(inputs, width))
            carried = width
        self.score = PaperDistinctiveness(carried) if config.distinctiveness else None

    @property
    def capabilities(self) -> Capabilities:
        """Descriptors at the resolution of the input."""
        return Capabilities(STRIDE)

    @property
    def logit_scale(self) -> Tensor:
        """Factor on descriptor similarities in a softmax."""
        return constant((self.config.descriptor_temperature,), next(self.parameters()).device)[0]

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        return self._describe(a, b), self._describe(b, a)

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride."""
        return self.coattention.attention_maps(a, b)

    def _describe(self, a: EncodedImage, b: EncodedImage) -> DenseDescriptors:
        carried: list[Tensor] = []
        for stride, block in zip(reversed(PYRAMID_STRIDES), self.decoder, strict=True):
            carried = [block(*carried, *self.coattention.gather(a, b, stride))]
        features = crop_cells(carried[0], a.size, STRIDE)
        score = score_map(self.score, features)
        return DenseDescriptors(F.normalize(features.float(), dim=1), score, STRIDE, a.size)

"""CAPSNet with co-attention: descriptors that are learned from camera poses alone.

Three variants of the same code: the baseline (no `coattention`), C (the images meet at stride 16) and C+F
(at strides 16 and 8). The layers are those of the paper's appendix: a ResNet34 up to its third stage, three
decoder blocks, 128-D descriptors at stride 4. A coarse head at stride 16 guides the fine descriptors during
training. Descriptors have unit length and a learned factor sharpens their softmax (CAPSNet compares raw
features in training and unit vectors at test).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.errors import ConfigError
from coam.models.coattention import CoAttentionLevels, Value
from coam.models.decoder import conv_bn_relu, upsample
from coam.models.encoders import build_encoder
from coam.models.network import Capabilities, DescriptorNetwork
from coam.models.outputs import DenseDescriptors, EncodedImage, group_images, split_group
from coam.models.padding import crop_cells

STRIDE = 4  # pixels between descriptors
SHARPEST = 100.0  # largest factor on similarities


@dataclass(frozen=True)
class CAPSNetConfig:
    """The published network; the encoder and the places where the images meet can be varied."""

    encoder: str = "resnet34"  # any name of coam.models.encoders that takes `levels`
    encoder_options: dict[str, Any] = field(default_factory=dict)  # keyword options of that encoder
    coattention: tuple[int, ...] = ()  # strides at which the images meet: () baseline, (16,) C, (16, 8) C+F
    projected_channels: tuple[int, int] = (16, 32)  # of CoAM at strides 8 and 16
    attention_value: Value = "projected"  # what is gathered: "projected" (paper) or "raw" (published code)
    attention_scale: float | None = None  # factor on the logits; None: unscaled, as in eq. 1
    decoder_widths: tuple[int, int] = (256, 512)  # narrow and wide layers of the decoder blocks
    descriptor_channels: int = 128  # of both heads
    # Share of the coarse descriptors in what is matched: 0 the fine ones alone (the paper), 0.5 both alike
    # (CAPSNet appends them: fine ones learn to tell near places apart, coarse ones far places).
    coarse_share: float = 0.0
    rectified: bool = False  # True: the descriptors end with a ReLU, as the paper's table has it
    descriptor_temperature: float = 20.0  # start value of the learned factors on similarities


class NarrowUpBlock(nn.Module):
    """Concatenate, upsample by two, 1x1 conv + BN + ReLU, then 3x3 conv + BN + ReLU for each of `widths`.

    The 1x1 convolution is computed before the upsampling: the two commute, and there are four times fewer
    positions.
    """

    def __init__(self, in_channels: int, narrow: int, widths: Sequence[int]) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(in_channels, narrow, 1, bias=False)
        self.norm = nn.BatchNorm2d(narrow)
        channels = (narrow, *widths)
        self.convs = nn.Sequential(*(conv_bn_relu(a, b) for a, b in zip(channels, widths, strict=False)))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Maps (B, C_i, H, W) of one size -> (B, widths[-1], 2 H, 2 W)."""
        narrow = F.relu(self.norm(upsample(self.narrow(torch.cat(inputs, dim=1)))))
        decoded: Tensor = self.convs(narrow)
        return decoded


class CAPSNet(DescriptorNetwork):
    """Descriptors at stride 4; a coarse head at stride 16 guides them during training."""

    Config = CAPSNetConfig
    config: CAPSNetConfig

    def __init__(self, config: CAPSNetConfig) -> None:
        super().__init__()
        unknown = set(config.coattention) - {8, 16}
        if unknown:
            raise ConfigError(f"CAPSNet's images meet at strides 8 and 16, not {sorted(unknown)[0]}")
        if not 0 <= config.coarse_share < 1:
            raise ConfigError(f"coarse_share must be at least 0 and below 1, not {config.coarse_share}")
        self.config = config
        self.encoder = build_encoder(config.encoder, **{"levels": 4, **config.encoder_options})
        _, at4, at8, at16 = self.encoder.channels[:4]
        at_strides = zip((8, 16), config.projected_channels, strict=True)
        projected = {stride: width for stride, width in at_strides if stride in config.coattention}
        self.coattention = CoAttentionLevels(
            self.encoder.channels, projected, config.attention_value, config.attention_scale
        )
        narrow, wide = config.decoder_widths
        at8 += self.coattention.gathered_channels(8)
        at16 += self.coattention.gathered_channels(16)
        self.deconv3 = NarrowUpBlock(at16, narrow, (wide,))
        self.deconv2 = NarrowUpBlock(wide + at8, narrow, (wide, narrow))
        self.deconv1 = conv_bn_relu(narrow + at4, wide)
        self.to_descriptor = self._head(wide, 3)
        self.to_coarse = self._head(at16, 1)
        self.log_temperature = nn.Parameter(torch.full((2,), config.descriptor_temperature).log())

    @property
    def capabilities(self) -> Capabilities:
        """Its finer descriptors tell places apart, but were not trained for sub-pixels."""
        return Capabilities(STRIDE, coarse_to_fine=True)

    @property
    def logit_scale(self) -> Tensor:
        """Learned factor on similarities of the (fine) descriptors in a softmax."""
        return self.log_temperature[0].exp().clamp(max=SHARPEST)

    @property
    def coarse_logit_scale(self) -> Tensor:
        """Learned factor on similarities of the coarse descriptors in a softmax."""
        return self.log_temperature[1].exp().clamp(max=SHARPEST)

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other (unless this is the baseline)."""
        if len(group_images(a, b)) == 2:
            return self._describe(a, b), self._describe(b, a)
        return split_group(self._describe(group_images(a, b)[0], group_images(b, a)[0]))

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride; empty for the baseline."""
        return dict(reversed(self.coattention.attention_maps(a, b).items()))

    def _head(self, channels: int, kernel: int) -> nn.Sequential:
        count = self.config.descriptor_channels
        layers = [nn.Conv2d(channels, count, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(count)]
        return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if self.config.rectified else []))

    def _describe(self, a: EncodedImage, b: EncodedImage) -> DenseDescriptors:
        at16 = torch.cat(self.coattention.gather(a, b, 16), dim=1)
        at8 = self.deconv3(at16)
        at4 = self.deconv2(at8, *self.coattention.gather(a, b, 8))
        features = self.to_descriptor(self.deconv1(torch.cat([at4, a.levels[1]], dim=1)))
        fine = F.normalize(crop_cells(features, a.size, STRIDE).float(), dim=1)
        whole = self.to_coarse(at16).float()
        coarse = F.normalize(crop_cells(whole, a.size, 16), dim=1)
        score, share = torch.ones_like(fine[:, :1]), self.config.coarse_share
        if share == 0:
            return DenseDescriptors(fine, score, STRIDE, a.size, coarse=coarse)
        lifted = F.normalize(crop_cells(upsample(upsample(whole)), a.size, STRIDE), dim=1)
        both = torch.cat([fine * (1 - share) ** 0.5, lifted * share**0.5], dim=1)
        return DenseDescriptors(both, score, STRIDE, a.size, fine, STRIDE, coarse)

"""CAPSNet with co-attention: descriptors that are learned from camera poses alone (SPEC 1.8).

Three variants of the same code: the baseline (no `coattention`), C (the images meet at stride 16) and C+F
(at strides 16 and 8). The layers are those of the paper's appendix: a ResNet34 up to its third stage, three
decoder blocks, 128-D descriptors at stride 4. A coarse head at stride 16 guides the fine descriptors during
training. Descriptors have unit length and a learned factor sharpens their softmax (CAPSNet compares raw
features in training and unit vectors at test).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.errors import ConfigError
from coam.models.coattention import CoAttention, Value
from coam.models.decoder import conv_bn_relu, upsample
from coam.models.encoders import build_encoder
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import crop_cells, pad_image, valid_cells

LEVELS = {4: 1, 8: 2, 16: 3}  # stride -> index in the pyramid
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


class CAPSNet(nn.Module):
    """Same face as `CDUNet`: encode once per image, decode per pair."""

    stride = 4

    def __init__(self, config: CAPSNetConfig) -> None:
        super().__init__()
        unknown = set(config.coattention) - {8, 16}
        if unknown:
            raise ConfigError(f"CAPSNet's images meet at strides 8 and 16, not {sorted(unknown)[0]}")
        if not 0 <= config.coarse_share < 1:
            raise ConfigError(f"coarse_share must be at least 0 and below 1, not {config.coarse_share}")
        self.config = config
        self.encoder = build_encoder(config.encoder, **{"levels": 4, **config.encoder_options})
        at4, at8, at16 = (self.encoder.channels[LEVELS[stride]] for stride in (4, 8, 16))
        self.coattention = nn.ModuleDict()
        for stride, channels, projected in zip((8, 16), (at8, at16), config.projected_channels, strict=True):
            if stride in config.coattention:
                self.coattention[str(stride)] = CoAttention(
                    channels, projected, config.attention_value, config.attention_scale
                )
        narrow, wide = config.decoder_widths
        at8, at16 = at8 + self._gathered(8), at16 + self._gathered(16)
        self.deconv3 = NarrowUpBlock(at16, narrow, (wide,))
        self.deconv2 = NarrowUpBlock(wide + at8, narrow, (wide, narrow))
        self.deconv1 = conv_bn_relu(narrow + at4, wide)
        self.to_descriptor = self._head(wide, 3)
        self.to_coarse = self._head(at16, 1)
        self.log_temperature = nn.Parameter(torch.full((2,), config.descriptor_temperature).log())

    @property
    def temperature(self) -> Tensor:
        """Learned factor on similarities of the (fine) descriptors in a softmax."""
        return self.log_temperature[0].exp().clamp(max=SHARPEST)

    @property
    def coarse_temperature(self) -> Tensor:
        """Learned factor on similarities of the coarse descriptors in a softmax."""
        return self.log_temperature[1].exp().clamp(max=SHARPEST)

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size; levels at strides 2, 4, 8, 16."""
        return EncodedImage(tuple(self.encoder(pad_image(image))), (image.shape[-2], image.shape[-1]))

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other (unless this is the baseline)."""
        if a.size != b.size or a.levels[0].shape != b.levels[0].shape:
            return self._describe(a, b), self._describe(b, a)
        return _halves(self._describe(_joined(a, b), _joined(b, a)))  # half as many, larger operations

    def forward(self, image_a: Tensor, image_b: Tensor) -> tuple[DenseDescriptors, DenseDescriptors]:
        """`encode` and `decode` in one; images of one size go through as one batch."""
        if image_a.shape != image_b.shape:
            return self.decode(self.encode(image_a), self.encode(image_b))
        both = self.encode(torch.cat([image_a, image_b]))
        swapped = EncodedImage(tuple(torch.cat(level.chunk(2)[::-1]) for level in both.levels), both.size)
        return _halves(self._describe(both, swapped))

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride; empty for the baseline."""
        return {
            stride: self._coattention(stride).attention(*self._meeting(a, b, stride))
            for stride in sorted(self.config.coattention, reverse=True)
        }

    def _coattention(self, stride: int) -> CoAttention:
        module = self.coattention[str(stride)]
        assert isinstance(module, CoAttention)
        return module

    def _gathered(self, stride: int) -> int:
        """Channels that co-attention adds at a stride."""
        return self._coattention(stride).out_channels if str(stride) in self.coattention else 0

    def _head(self, channels: int, kernel: int) -> nn.Sequential:
        count = self.config.descriptor_channels
        layers = [nn.Conv2d(channels, count, kernel, padding=kernel // 2, bias=False), nn.BatchNorm2d(count)]
        return nn.Sequential(*layers, *([nn.ReLU(inplace=True)] if self.config.rectified else []))

    @staticmethod
    def _meeting(a: EncodedImage, b: EncodedImage, stride: int) -> tuple[Tensor, Tensor, Tensor | None]:
        """What a co-attention module at a stride is called with."""
        other = b.levels[LEVELS[stride]]
        return a.levels[LEVELS[stride]], other, valid_cells(other, b.size, stride)

    def _with_other(self, a: EncodedImage, b: EncodedImage, stride: int) -> list[Tensor]:
        """Features of A at a stride and, where the images meet there, what they find in B."""
        own = a.levels[LEVELS[stride]]
        if str(stride) not in self.coattention:
            return [own]
        return [own, self._coattention(stride)(*self._meeting(a, b, stride))]

    def _describe(self, a: EncodedImage, b: EncodedImage) -> DenseDescriptors:
        at16 = torch.cat(self._with_other(a, b, 16), dim=1)
        at8 = self.deconv3(at16)
        at4 = self.deconv2(at8, *self._with_other(a, b, 8))
        features = self.to_descriptor(self.deconv1(torch.cat([at4, a.levels[LEVELS[4]]], dim=1)))
        fine = F.normalize(crop_cells(features, a.size, self.stride).float(), dim=1)
        whole = self.to_coarse(at16).float()
        coarse = F.normalize(crop_cells(whole, a.size, 16), dim=1)
        score, share = torch.ones_like(fine[:, :1]), self.config.coarse_share
        if share == 0:
            return DenseDescriptors(fine, score, self.stride, a.size, coarse=coarse)
        lifted = F.normalize(crop_cells(upsample(upsample(whole)), a.size, self.stride), dim=1)
        both = torch.cat([fine * (1 - share) ** 0.5, lifted * share**0.5], dim=1)
        return DenseDescriptors(both, score, self.stride, a.size, fine, self.stride, coarse)


def _joined(a: EncodedImage, b: EncodedImage) -> EncodedImage:
    return EncodedImage(tuple(torch.cat(pair) for pair in zip(a.levels, b.levels, strict=True)), a.size)


def _halves(both: DenseDescriptors) -> tuple[DenseDescriptors, DenseDescriptors]:
    names = [name for name in ("descriptors", "score", "fine", "coarse") if getattr(both, name) is not None]
    first, second = (
        replace(both, **{name: getattr(both, name).chunk(2)[half] for name in names}) for half in (0, 1)
    )
    return first, second

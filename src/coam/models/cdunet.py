"""CD-UNet as published: encoder, CoAM at the two deepest levels, U-Net decoder, distinctiveness.

Each ablation of the paper is a switch of the same code: `conditioning`, `distinctiveness`, the encoder, and
the details that text and published code state differently (`attention_value`, `attention_scale`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.coattention import CoAttention, Value
from coam.models.decoder import UpBlock
from coam.models.distinctiveness import PaperDistinctiveness
from coam.models.encoders import build_encoder
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import crop_cells, pad_image, valid_cells
from coam.tensors import constant

STRIDES = (2, 4, 8, 16, 32)


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
    decoder_widths: tuple[int, ...] = (256, 256, 128, 128, 64)  # output channels of deconv_5 ... deconv_1
    descriptor_temperature: float = 20.0  # of the InfoNCE / dual softmax losses


class CDUNet(nn.Module):
    """Descriptors of image A while looking at image B, and the reverse with the same weights."""

    stride = 1  # the descriptor map has the resolution of the input

    def __init__(self, config: CDUNetConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = build_encoder(config.encoder, **config.encoder_options)
        channels = self.encoder.channels
        self.coattention = nn.ModuleDict()
        if config.conditioning:
            for stride, projected in zip((16, 32), config.projected_channels, strict=True):
                self.coattention[str(stride)] = CoAttention(
                    channels[STRIDES.index(stride)], projected, config.attention_value, config.attention_scale
                )
        self.decoder = nn.ModuleList()
        carried = 0
        for level, width in zip(reversed(range(5)), config.decoder_widths, strict=True):
            attended = self._coattention(level).out_channels if self._attends(level) else 0
            self.decoder.append(UpBlock(carried + channels[level] + attended, width))
            carried = width
        self.score = PaperDistinctiveness(carried) if config.distinctiveness else None

    @property
    def temperature(self) -> Tensor:
        """Factor on descriptor similarities in a softmax."""
        return constant((self.config.descriptor_temperature,), next(self.parameters()).device)[0]

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        return EncodedImage(tuple(self.encoder(pad_image(image))), (image.shape[-2], image.shape[-1]))

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        return self._describe(a, b), self._describe(b, a)

    def forward(self, image_a: Tensor, image_b: Tensor) -> tuple[DenseDescriptors, DenseDescriptors]:
        """`encode` and `decode` in one."""
        return self.decode(self.encode(image_a), self.encode(image_b))

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride."""
        maps = {}
        for level in (3, 4):
            if self._attends(level):
                stride = STRIDES[level]
                valid = valid_cells(b.levels[level], b.size, stride)
                maps[stride] = self._coattention(level).attention(a.levels[level], b.levels[level], valid)
        return maps

    def _attends(self, level: int) -> bool:
        return str(STRIDES[level]) in self.coattention

    def _coattention(self, level: int) -> CoAttention:
        module = self.coattention[str(STRIDES[level])]
        assert isinstance(module, CoAttention)
        return module

    def _describe(self, a: EncodedImage, b: EncodedImage) -> DenseDescriptors:
        carried: list[Tensor] = []
        for level, block in zip(reversed(range(5)), self.decoder, strict=True):
            inputs = [*carried, a.levels[level]]
            if self._attends(level):
                valid = valid_cells(b.levels[level], b.size, STRIDES[level])
                inputs.append(self._coattention(level)(a.levels[level], b.levels[level], valid))
            carried = [block(*inputs)]
        features = crop_cells(carried[0], a.size, self.stride)
        score = (
            torch.ones_like(features[:, :1]) if self.score is None else self.score(features).float().sigmoid()
        )
        return DenseDescriptors(F.normalize(features.float(), dim=1), score, self.stride, a.size)

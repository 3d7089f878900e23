"""The default network in few, large kernels. Import only where Triton is installed.

The same function as the folded network it is built from, in its weights' type with sums in float32. What is
only wanted for training (`coarse`) is left out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coam.kernels.convolution import convolve, upsample_and_add
from coam.kernels.encoder import FusedEncoder, map_of, on_pixels, only, pixels_of, pointwise
from coam.kernels.encoder import is_supported as is_supported_encoder
from coam.kernels.linear import (
    LARGEST_HEAD,
    LARGEST_NORMALISED,
    RELU,
    LayerNorm,
    Linear,
    linear,
    logistic_head,
    unit_linear,
)
from coam.models.decoder import Distinctiveness, MergeBlock
from coam.models.encoders.efficientnet import EfficientNetEncoder
from coam.models.outputs import DenseDescriptors, EncodedImage, group_images, split_group
from coam.models.padding import crop_cells
from coam.models.stacked import STRIDE, StackedCDUNet


def is_supported(model: StackedCDUNet) -> bool:
    """Whether the kernels take these widths."""
    config = model.config
    widths = (config.width, *config.decoder_widths, config.descriptor_channels, config.fine_channels)
    return (
        all(width % 8 == 0 for width in widths)
        and config.width <= LARGEST_NORMALISED
        and config.descriptor_channels <= LARGEST_HEAD
        and is_supported_encoder(model.encoder)
    )


def fuse_network(model: nn.Module) -> FusedStacked | None:
    """The network in fused kernels, if they take it."""
    return FusedStacked(model) if isinstance(model, StackedCDUNet) and is_supported(model) else None


class FusedStacked:
    """`encode`, `decode` and `attention_maps` of a folded `StackedCDUNet`; weights as they are now.

    The images meet in the network's own layers: torch's attention is faster than one of ours.
    """

    def __init__(self, model: StackedCDUNet) -> None:
        assert isinstance(model.encoder, EfficientNetEncoder)
        self.model = model
        self._encoder = FusedEncoder(model.encoder)
        self._laterals = [pointwise(only(lateral, nn.Conv2d)) for lateral in model.laterals]
        self._norm = LayerNorm(model.norm.weight.detach(), model.norm.bias.detach(), model.norm.eps)
        self._merges = [_Merge.of(only(block, MergeBlock)) for block in model.merge]
        self._to_descriptor, self._to_fine = pointwise(model.to_descriptor), pointwise(model.to_fine)
        self._score = None if model.score is None else _Score.of(model.score)

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size, type and strides."""
        pyramid = self.model.pyramid(self._encoder, image)
        levels = [on_pixels(pixels_of(p), layer) for p, layer in zip(pyramid, self._laterals, strict=True)]
        return EncodedImage(tuple(map_of(level) for level in levels), (image.shape[-2], image.shape[-1]))

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        groups = group_images(a, b)
        if len(groups) == 1:
            return split_group(self.describe_group(groups[0]))
        first, second = self.model.condition(groups)
        return self._describe(a, first), self._describe(b, second)

    def describe_group(self, both: EncodedImage) -> DenseDescriptors:
        """Descriptors of images of one size: the first of every pair in one half, the second in the other."""
        return self._describe(both, self.model.condition([both])[0])

    def coarse_descriptors(self, a: EncodedImage, b: EncodedImage) -> tuple[Tensor, Tensor] | None:
        """Unit descriptors of coarse cells, before the decoder."""
        return self.model.coarse_descriptors(a, b)

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B in the last round, by stride."""
        return self.model.attention_maps(a, b)

    def _describe(self, image: EncodedImage, conditioned: Tensor) -> DenseDescriptors:
        """Of feature maps (B, width, H / 16, W / 16)."""
        at2_lateral, at4_lateral, at8_lateral = (pixels_of(level) for level in image.levels[:3])
        at8 = self._merges[0](pixels_of(conditioned), at8_lateral, self._norm)
        at4 = self._merges[1](at8, at4_lateral)
        at2 = self._merges[2](at4, at2_lateral)
        features = pixels_of(crop_cells(map_of(at4), image.size, 4))
        shape = features.shape[:3]
        descriptors = unit_linear(features.flatten(0, 2), self._to_descriptor).view(*shape, -1)
        score = torch.ones(shape, device=features.device) if self._score is None else self._score(features)
        return DenseDescriptors(
            map_of(descriptors),
            score.unsqueeze(1),
            STRIDE,
            image.size,
            crop_cells(map_of(on_pixels(at2, self._to_fine)), image.size, 2),
        )


def _convolution(conv: nn.Conv2d) -> Linear:
    """A 3x3 convolution for `convolve`."""
    weight = conv.weight.detach().permute(0, 2, 3, 1).flatten(1).contiguous()
    return Linear(weight, pointwise(conv).bias)


@dataclass(frozen=True)
class _Merge:
    narrow: Linear
    first: Linear
    second: Linear

    @staticmethod
    def of(block: MergeBlock) -> _Merge:
        first, second = (_convolution(only(convs, nn.Conv2d)) for convs in block.convs)
        return _Merge(pointwise(block.narrow), first, second)

    def __call__(self, coarse: Tensor, lateral: Tensor, norm: LayerNorm | None = None) -> Tensor:
        """coarse (B, H / 2, W / 2, C), lateral (B, H, W, D) -> (B, H, W, D)."""
        narrowed = linear(coarse.flatten(0, 2), self.narrow, norm=norm).view(*coarse.shape[:3], -1)
        merged = upsample_and_add(narrowed, lateral, RELU)
        return convolve(convolve(merged, self.first, RELU), self.second, RELU, residual=merged)


@dataclass(frozen=True)
class _Score:
    neighbourhood: Linear
    hidden: Linear
    head: Tensor
    head_bias: float

    @staticmethod
    def of(score: Distinctiveness) -> _Score:
        neighbourhood, hidden, head = (layer for layer in score.layers if isinstance(layer, nn.Conv2d))
        head_weight, head_bias = pointwise(head).weight.flatten(), float(pointwise(head).bias)
        return _Score(_convolution(neighbourhood), pointwise(hidden), head_weight, head_bias)

    def __call__(self, features: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H, W), float32."""
        near = convolve(features, self.neighbourhood, RELU)
        return logistic_head(near.flatten(0, 2), self.hidden, self.head, self.head_bias).view(near.shape[:3])

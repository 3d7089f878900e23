"""The default network in few, large kernels. Import only where Triton is installed.

The same function as the folded network it is built from, in its weights' type with sums in float32. What is
only wanted for training (`coarse`) is left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from coam.backends.fused_encoder import FusedEncoder, map_of, on_pixels, only, pixels_of, pointwise
from coam.backends.fused_encoder import is_supported as is_supported_encoder
from coam.backends.triton_attention import attend, rotation_table
from coam.backends.triton_convolution import convolve, upsample_and_add
from coam.backends.triton_linear import (
    LARGEST_HEAD,
    LARGEST_NORMALISED,
    RELU,
    LayerNorm,
    Linear,
    linear,
    logistic_head,
    unit_linear,
)
from coam.models.coattention import AttentionBlock, rotary_frequencies
from coam.models.decoder import MergeBlock
from coam.models.distinctiveness import Distinctiveness
from coam.models.encoders.efficientnet import EfficientNetEncoder
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import crop_cells, pad_image, valid_cells
from coam.models.stacked import Round, StackedCDUNet, group_images, split_group

LARGEST_MAP = 2048  # cells along a side of the maps that attend: photos of 32,768 pixels
PARTS = ("encoder", "attention", "merge", "heads")


def is_supported(model: StackedCDUNet) -> bool:
    """Whether the kernels take these widths."""
    config = model.config
    size = config.width // config.heads
    widths = (config.width, *config.decoder_widths, config.descriptor_channels, config.fine_channels)
    return (
        all(width % 8 == 0 for width in widths)
        and size in (32, 64, 128)
        and config.width <= LARGEST_NORMALISED
        and config.descriptor_channels <= LARGEST_HEAD
        and is_supported_encoder(model.encoder)
    )


class FusedStacked:
    """`encode`, `decode` and `attention_maps` of a folded `StackedCDUNet`; weights as they are now."""

    def __init__(self, model: StackedCDUNet, parts: Sequence[str] = PARTS) -> None:
        self.model = model
        self.parts = parts
        self.stride = model.stride
        if "encoder" in parts:
            assert isinstance(model.encoder, EfficientNetEncoder)
            self._encoder: nn.Module = FusedEncoder(model.encoder)
            self._laterals = [pointwise(only(lateral, nn.Conv2d)) for lateral in model.laterals]
        frequencies = rotary_frequencies(model.config.width // model.config.heads, model.norm.weight.device)
        self._rotation = rotation_table(LARGEST_MAP, frequencies)
        self._rounds = {
            stride: [_Round.of(m) for m in model.rounds[str(stride)].modules() if isinstance(m, Round)]
            for stride in (32, 16)
        }
        self._norm = _norm(model.norm)
        self._merges = [_Merge.of(only(block, MergeBlock)) for block in model.merge]
        self._to_descriptor, self._to_fine = pointwise(model.to_descriptor), pointwise(model.to_fine)
        self._score = None if model.score is None else _Score.of(model.score)

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size, type and strides."""
        if "encoder" not in self.parts:
            image = image.to(self.model.norm.weight.dtype, memory_format=torch.channels_last)
            return self.model.encode(image)
        pyramid = self._encoder(pad_image(image))
        levels = [on_pixels(pixels_of(p), layer) for p, layer in zip(pyramid, self._laterals, strict=True)]
        return EncodedImage(tuple(map_of(level) for level in levels), (image.shape[-2], image.shape[-1]))

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        groups = group_images(a, b)
        if len(groups) == 1:
            return split_group(self.describe_group(groups[0]))
        first, second = self._condition(groups)
        return self._describe(a, first), self._describe(b, second)

    def describe_group(self, both: EncodedImage) -> DenseDescriptors:
        """Descriptors of images of one size: the first of every pair in one half, the second in the other."""
        return self._describe(both, self._condition([both])[0])

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B in the last round, by stride."""
        return self.model.attention_maps(a, b)

    def _condition(self, groups: list[EncodedImage]) -> list[Tensor]:
        """Feature maps (B, H / 16, W / 16, width) of each group after the images looked at each other."""
        if "attention" not in self.parts:
            return [pixels_of(m) for m in self.model._condition(groups)]
        maps = self._meet(32, groups, [pixels_of(image.levels[4]) for image in groups])
        maps = [
            upsample_and_add(deeper, pixels_of(image.levels[3]))
            for image, deeper in zip(groups, maps, strict=True)
        ]
        return self._meet(16, groups, maps)

    def _meet(self, stride: int, groups: list[EncodedImage], maps: list[Tensor]) -> list[Tensor]:
        """Rounds of self- and co-attention on maps (B, H / stride, W / stride, width)."""
        heads = self.model.config.heads
        valid = [valid_cells(map_of(m), image.size, stride) for m, image in zip(maps, groups, strict=True)]
        tokens = [m.flatten(1, 2) for m in maps]
        for round_ in self._rounds[stride]:
            block = round_.self_attention
            projected = [block.project(t) for t in tokens]
            attended = [
                attend(p, p, heads, self._rotation, m.shape[2], v)
                for p, m, v in zip(projected, maps, valid, strict=True)
            ]
            tokens = [block.finish(t, x) for t, x in zip(tokens, attended, strict=True)]
            block = round_.co_attention
            attended = self._look_at_others([block.project(t) for t in tokens], valid)
            tokens = [block.finish(t, x) for t, x in zip(tokens, attended, strict=True)]
        return [t.view(m.shape) for t, m in zip(tokens, maps, strict=True)]

    def _look_at_others(self, projected: list[Tensor], valid: list[Tensor | None]) -> list[Tensor]:
        """Co-attention: with the other half of one batch, or with the other batch."""
        heads = self.model.config.heads
        sources, shift = projected, 0
        if self.model.config.conditioning:
            sources, valid = projected[::-1], valid[::-1]
            shift = len(projected[0]) // 2 if len(projected) == 1 else 0
        return [
            attend(p, s, heads, valid=v, shift=shift)
            for p, s, v in zip(projected, sources, valid, strict=True)
        ]

    def _describe(self, image: EncodedImage, conditioned: Tensor) -> DenseDescriptors:
        """Of feature maps (B, H / 16, W / 16, width)."""
        laterals = [pixels_of(level) for level in image.levels[:3]]
        if "merge" in self.parts:
            at8 = self._merges[0](conditioned, laterals[2], self._norm)
            at4 = self._merges[1](at8, laterals[1])
            at2 = self._merges[2](at4, laterals[0])
        else:
            coarse = map_of(self.model.norm(conditioned))
            at8, at4, at2 = coarse, coarse, coarse
            at8 = self.model.merge[0](coarse, image.levels[2])
            at4 = self.model.merge[1](at8, image.levels[1])
            at4, at2 = pixels_of(at4), pixels_of(self.model.merge[2](at4, image.levels[0]))
        features = pixels_of(crop_cells(map_of(at4), image.size, 4))
        shape = features.shape[:3]
        if "heads" not in self.parts:
            m = map_of(features)
            descriptors = pixels_of(torch.nn.functional.normalize(self.model.to_descriptor(m).float(), dim=1)).to(m.dtype)
            score = self.model.score(m).float().sigmoid() if self.model.score else torch.ones(shape[0], 1, *shape[1:], device=m.device)
            fine = self.model.to_fine(map_of(at2))
            return DenseDescriptors(map_of(descriptors), score, self.stride, image.size, crop_cells(fine, image.size, 2))
        descriptors = unit_linear(features.flatten(0, 2), self._to_descriptor).view(*shape, -1)
        score = (
            torch.ones(shape, device=features.device) if self._score is None else self._score(features)
        )
        fine = on_pixels(at2, self._to_fine)
        return DenseDescriptors(
            map_of(descriptors),
            score.unsqueeze(1),
            self.stride,
            image.size,
            crop_cells(map_of(fine), image.size, 2),
        )


def _norm(module: nn.LayerNorm) -> LayerNorm:
    return LayerNorm(module.weight.detach(), module.bias.detach(), module.eps)


def _linear(*modules: nn.Linear) -> Linear:
    """Layers of the same inputs as one."""
    return Linear(
        torch.cat([module.weight.detach() for module in modules]),
        torch.cat([module.bias.detach() for module in modules]),
    )


def _convolution(conv: nn.Conv2d) -> Linear:
    """A 3x3 convolution for `convolve`."""
    weight = conv.weight.detach().permute(0, 2, 3, 1).flatten(1).contiguous()
    return Linear(weight, pointwise(conv).bias)


@dataclass(frozen=True)
class _Attention:
    norm: LayerNorm
    query_key_value: Linear
    out: Linear
    norm_mlp: LayerNorm
    widen: Linear
    narrow: Linear

    @staticmethod
    def of(block: AttentionBlock) -> _Attention:
        widen, _, narrow = block.mlp
        assert isinstance(widen, nn.Linear)
        assert isinstance(narrow, nn.Linear)
        return _Attention(
            _norm(block.norm_query),
            _linear(block.query, block.key_value),
            _linear(block.out),
            _norm(block.norm_mlp),
            _linear(widen),
            _linear(narrow),
        )

    def project(self, tokens: Tensor) -> Tensor:
        """Queries, keys and values (B, N, 3 C) of tokens (B, N, C), side by side."""
        return linear(tokens.flatten(0, 1), self.query_key_value, norm=self.norm).view(*tokens.shape[:2], -1)

    def finish(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """New tokens (B, N, C) from tokens and what they gathered (B, N, C)."""
        rows = linear(attended.flatten(0, 1), self.out, residual=tokens.flatten(0, 1))
        hidden = linear(rows, self.widen, norm=self.norm_mlp, gelu=True)
        return linear(hidden, self.narrow, residual=rows).view(tokens.shape)


@dataclass(frozen=True)
class _Round:
    self_attention: _Attention
    co_attention: _Attention

    @staticmethod
    def of(round_: Round) -> _Round:
        return _Round(_Attention.of(round_.self_attention), _Attention.of(round_.co_attention))


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

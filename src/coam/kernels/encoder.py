"""EfficientNet-Lite with one kernel for each convolution. Import only where Triton is installed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from coam.kernels.depthwise import STEM_INPUTS, DepthwiseConvolution, Stem, convolve_depthwise, stem
from coam.kernels.linear import IDENTITY, RELU, RELU6, Activation, Linear, linear
from coam.models.encoders.base import Encoder, Triple
from coam.models.encoders.efficientnet import LEVEL_STAGES, EfficientNetEncoder, InvertedResidual

Kind = TypeVar("Kind", bound=nn.Module)
ACTIVATIONS = {nn.ReLU6: RELU6, nn.ReLU: RELU}


def pixels_of(feature_map: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H, W, C), contiguous; no copy if the map is channels-last."""
    return feature_map.permute(0, 2, 3, 1).contiguous()


def map_of(pixels: Tensor) -> Tensor:
    """(B, H, W, C) -> (B, C, H, W), channels-last."""
    return pixels.permute(0, 3, 1, 2)


def on_pixels(pixels: Tensor, layer: Linear, activation: Activation = IDENTITY) -> Tensor:
    """A linear layer of every pixel: (B, H, W, K) -> (B, H, W, N)."""
    return linear(pixels.flatten(0, 2), layer, activation).view(*pixels.shape[:3], -1)


def pointwise(conv: nn.Conv2d) -> Linear:
    """A 1x1 convolution as a linear layer of pixels."""
    return Linear(conv.weight.flatten(1).contiguous(), _bias(conv))


def only(module: nn.Module, kind: type[Kind]) -> Kind:
    """The one module of a kind in (or that is) a module."""
    (found,) = (layer for layer in module.modules() if isinstance(layer, kind))
    return found


def _bias(conv: nn.Conv2d) -> Tensor:
    return conv.weight.new_zeros(conv.out_channels) if conv.bias is None else conv.bias.detach()


def _trimmed(conv: nn.Conv2d) -> tuple[Tensor, int]:
    """Weight (N, C, k, k) and the padding above and left, without the zeros that made the kernel even."""
    weight, before = conv.weight.detach(), int(conv.padding[0])
    if conv.kernel_size[0] % 2 == 0 and not weight[:, :, 0].any() and not weight[..., 0].any():
        return weight[:, :, 1:, 1:], before - 1
    return weight, before


def channel_filter(conv: nn.Conv2d) -> DepthwiseConvolution:
    """A convolution of each channel by itself."""
    weight, before = _trimmed(conv)
    by_place = weight[:, 0].permute(1, 2, 0).contiguous()
    return DepthwiseConvolution(by_place, _bias(conv), conv.stride[0], before)


@dataclass(frozen=True)
class _Block:
    """Expand, filter, project; with the input added where `residual`."""

    expand: Linear | None
    filtered: DepthwiseConvolution
    project: Linear
    activation: Activation
    residual: bool

    def __call__(self, pixels: Tensor) -> Tensor:
        """(B, H, W, C) -> (B, H / stride, W / stride, D)."""
        hidden = pixels if self.expand is None else on_pixels(pixels, self.expand, self.activation)
        hidden = convolve_depthwise(hidden, self.filtered, self.activation)
        residual = pixels.flatten(0, 2) if self.residual else None
        return linear(hidden.flatten(0, 2), self.project, residual=residual).view(*hidden.shape[:3], -1)


def _block(module: InvertedResidual) -> _Block:
    convolutions = [layer for layer in module.modules() if isinstance(layer, nn.Conv2d)]
    return _Block(
        expand=pointwise(convolutions[0]) if len(convolutions) == 3 else None,
        filtered=channel_filter(convolutions[-2]),
        project=pointwise(convolutions[-1]),
        activation=_activation(module.block[0]),
        residual=module.residual,
    )


def _activation(step: nn.Module) -> Activation:
    return next(ACTIVATIONS[type(layer)] for layer in step.modules() if type(layer) in ACTIVATIONS)


def is_supported(encoder: nn.Module) -> bool:
    """Whether `FusedEncoder` takes it: batch norm folded, only convolutions and bounded activations."""
    known = (nn.Conv2d, nn.Identity, nn.Sequential, InvertedResidual, EfficientNetEncoder, *ACTIVATIONS)
    return (
        isinstance(encoder, EfficientNetEncoder)
        and all(isinstance(module, known) and _fits(module) for module in encoder.modules())
        and _trimmed(_first_convolution(encoder))[0].shape[1:] == (3, 3, 3)
    )


def _fits(module: nn.Module) -> bool:
    return not isinstance(module, nn.Conv2d) or (
        module.out_channels % 8 == 0 and module.bias is not None and module.dilation == (1, 1)
    )


def _first_convolution(encoder: EfficientNetEncoder) -> nn.Conv2d:
    return only(encoder.features[0], nn.Conv2d)


def _triple(buffer: Tensor) -> Triple:
    first, second, third = (float(value) for value in buffer.flatten())
    return first, second, third


class FusedEncoder(Encoder):
    """The same function as a folded `EfficientNetEncoder`; weights as they are when it is built."""

    def __init__(self, encoder: EfficientNetEncoder) -> None:
        mean, deviation = _triple(encoder.mean), _triple(encoder.std)
        super().__init__(encoder.channels, mean, deviation)
        first, *stages = encoder.features
        conv = _first_convolution(encoder)
        weight, before = _trimmed(conv)
        by_input = weight.flatten(1).t()  # (27, N)
        filled = by_input.new_zeros(STEM_INPUTS - len(by_input), conv.out_channels)
        padded = torch.cat([by_input, filled])
        self._stem = Stem(padded.contiguous(), _bias(conv), mean, deviation, before)
        self._stem_activation = _activation(first)
        self._stages = [
            [_block(module) for module in stage.modules() if isinstance(module, InvertedResidual)]
            for stage in stages
        ]

    def forward(self, image: Tensor, levels: int | None = None) -> tuple[Tensor, ...]:
        """Pyramid of an image (B, 3, H, W) with values in [0, 1], of any type and strides."""
        pixels = stem(image, self._stem, self._stem_activation)
        maps = []
        last = LEVEL_STAGES[(levels or len(self.channels)) - 1]
        for index, stage in enumerate(self._stages[:last], 1):
            for block in stage:
                pixels = block(pixels)
            if index in LEVEL_STAGES:
                maps.append(map_of(pixels))
        return tuple(maps)

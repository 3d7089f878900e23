"""Convolutions and linear layers whose activation is taken by oneDNN while a result is in the cache.

As layers of their own, activations read and write every map once more: a tenth of the encoder's time. oneDNN
runs torch's layers on a CPU; what it can do beyond them torch offers to its compiler only
(`torch.ops.mkldnn`). A build of torch that lacks it keeps its layers. Weights stay in torch's order: oneDNN's
own depends on the size of a map, and takes many times as long on another one.
"""

from __future__ import annotations

from functools import cache
from itertools import pairwise, product
from typing import Any

import torch
from torch import Tensor, nn

_ACTIVATIONS = (nn.ReLU, nn.ReLU6, nn.GELU)


class FusedLayer(nn.Module):
    """A convolution or a linear layer and the activation after it, for inference."""

    def __init__(self, layer: nn.Conv2d | nn.Linear, activation: nn.Module) -> None:
        super().__init__()
        self.weight, self.bias = layer.weight, layer.bias
        self.shape: tuple[Any, ...] = ()
        if isinstance(layer, nn.Conv2d):
            self.shape = (layer.padding, layer.stride, layer.dilation, layer.groups)
        self.activation = _named(activation)

    def forward(self, features: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, D, H / stride, W / stride), or (..., C) -> (..., D) of a linear layer."""
        run = torch.ops.mkldnn._convolution_pointwise if self.shape else torch.ops.mkldnn._linear_pointwise
        result: Tensor = run(features, self.weight, self.bias, *self.shape, *self.activation)
        return result


def _named(activation: nn.Module) -> tuple[str, list[float], str]:
    """What oneDNN calls an activation, its numbers, and its kind."""
    if isinstance(activation, nn.GELU):
        return "gelu", [], activation.approximate
    return ("hardtanh", [0.0, 6.0], "") if isinstance(activation, nn.ReLU6) else ("relu", [], "")


def takes_activations(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether this build of torch offers it, and this CPU can do it."""
    if device.type != "cpu" or dtype not in (torch.float32, torch.bfloat16):
        return False
    try:
        if dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        return _is_right(dtype)
    except (AttributeError, RuntimeError, TypeError):  # not there, or with other arguments
        return False


@cache
def _is_right(dtype: torch.dtype) -> bool:
    """Whether small layers give what torch's own give: these operators are private to torch."""
    shapes = (nn.Conv2d(2, 3, 3, padding=1, device="meta"), nn.Linear(4, 3, device="meta"))
    layers = [layer.to_empty(device="cpu") for layer in shapes]  # draws no random numbers
    with torch.inference_mode():
        for layer, activation in product(layers, (kind() for kind in _ACTIVATIONS)):
            for parameter in layer.parameters():
                values = torch.linspace(-1, 1, parameter.numel(), dtype=dtype).reshape(parameter.shape)
                parameter.data = values
            features = torch.linspace(-3, 3, 32, dtype=dtype).reshape(1, 2, 4, 4)
            fused = FusedLayer(layer, activation)(features)
            if not torch.allclose(fused.float(), activation(layer(features)).float(), rtol=0.02, atol=0.02):
                return False
    return True


def fuse_activations(network: nn.Module) -> None:
    """Replace the layers of a folded network (`fold_batch_norm`) that an activation follows in a sequence."""
    for module in list(network.modules()):
        if not isinstance(module, nn.Sequential):
            continue
        layers = [(n, layer) for n, layer in module.named_children() if not isinstance(layer, nn.Identity)]
        for (name, layer), (next_name, following) in pairwise(layers):
            if isinstance(layer, nn.Conv2d | nn.Linear) and isinstance(following, _ACTIVATIONS):
                setattr(module, name, FusedLayer(layer, following))
                setattr(module, next_name, nn.Identity())

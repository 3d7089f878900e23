"""What the fused layers compute, in plain torch operations: to check them against, and to compare times."""

from __future__ import annotations

from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.kernels.depthwise import DepthwiseConvolution, Stem
from coam.kernels.linear import IDENTITY, Activation, LayerNorm, Linear


def linear(x, layer: Linear, activation=IDENTITY, norm: LayerNorm | None = None, residual=None) -> Tensor:
    """As `coam.kernels.linear.linear`."""
    if norm is not None:
        x = F.layer_norm(x, x.shape[-1:], norm.weight.to(x.dtype), norm.bias.to(x.dtype), norm.epsilon)
    y = F.linear(x, layer.weight.to(x.dtype), layer.bias.to(x.dtype))
    y = _bounded(y, activation)
    return y if residual is None else y + residual


def unit_linear(x: Tensor, layer: Linear) -> Tensor:
    """As `coam.kernels.linear.unit_linear`."""
    return F.normalize(linear(x, layer), dim=1)


def logistic_head(x: Tensor, layer: Linear, head: Tensor, head_bias: float) -> Tensor:
    """As `coam.kernels.linear.logistic_head`."""
    return (F.relu(linear(x, layer)) @ head.to(x.dtype) + head_bias).sigmoid()


def convolve_depthwise(x: Tensor, layer: DepthwiseConvolution, activation: Activation) -> Tensor:
    """As `coam.kernels.depthwise.convolve_depthwise`."""
    weight = layer.weight.permute(2, 0, 1).unsqueeze(1).to(x.dtype)
    padded = _padded(x.permute(0, 3, 1, 2), layer.weight.shape[0], layer.stride, layer.before)
    y = F.conv2d(padded, weight, layer.bias.to(x.dtype), layer.stride, groups=x.shape[-1])
    return _bounded(y, activation).permute(0, 2, 3, 1)


def stem(image: Tensor, layer: Stem, activation: Activation) -> Tensor:
    """As `coam.kernels.depthwise.stem`."""
    mean, deviation = (_per_colour(v, image.dtype, image.device) for v in (layer.mean, layer.deviation))
    weight = layer.weight[:27].t().reshape(-1, 3, 3, 3).to(image.dtype)
    padded = _padded((image - mean) / deviation, 3, 2, layer.before)
    return _bounded(F.conv2d(padded, weight, layer.bias.to(image.dtype), 2), activation).permute(0, 2, 3, 1)


def convolve(
    x: Tensor, layer: Linear, activation: Activation = IDENTITY, residual: Tensor | None = None
) -> Tensor:
    """As `coam.kernels.convolution.convolve`."""
    weight = layer.weight.view(len(layer.weight), 3, 3, -1).permute(0, 3, 1, 2).to(x.dtype)
    y = F.conv2d(x.permute(0, 3, 1, 2), weight, layer.bias.to(x.dtype), padding=1)
    y = _bounded(y, activation).permute(0, 2, 3, 1)
    return y if residual is None else y + residual


def upsample_and_add(coarse: Tensor, lateral: Tensor, activation: Activation) -> Tensor:
    """As `coam.kernels.convolution.upsample_and_add`."""
    larger = F.interpolate(coarse.permute(0, 3, 1, 2), scale_factor=2.0, mode="bilinear")
    return _bounded(larger.permute(0, 2, 3, 1) + lateral, activation)


@lru_cache
def _per_colour(values: tuple[float, float, float], dtype: torch.dtype, device: torch.device) -> Tensor:
    """(1, 3, 1, 1); kept, because a CUDA graph that is being recorded cannot copy numbers to the device."""
    return torch.tensor(values, dtype=dtype, device=device).view(1, 3, 1, 1)


def _padded(x: Tensor, kernel: int, stride: int, before: int) -> Tensor:
    """(B, C, H, W) padded so that a convolution gives H / stride x W / stride."""
    after = [(side // stride - 1) * stride + kernel - side - before for side in x.shape[-2:]]
    return F.pad(x, (before, after[1], before, after[0]))


def _bounded(x: Tensor, activation: Activation) -> Tensor:
    return x if activation == IDENTITY else x.clamp(activation.low, activation.high)

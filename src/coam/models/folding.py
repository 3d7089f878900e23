"""Networks for inference: batch normalisation becomes part of the convolution before it."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TypeVar

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from coam.models.encoders.base import Encoder
from coam.models.encoders.efficientnet import SameStride2Conv

Network = TypeVar("Network", bound=nn.Module)


@torch.no_grad()
def fold_batch_norm(network: Network) -> Network:
    """A copy in evaluation mode without batch normalisation; the same function up to rounding.

    TensorFlow's padding, which copies a map, becomes a row and a column of zeros in the kernel. In our
    networks a normalisation that follows a convolution among a module's children also follows it when the
    module runs. Models of timm keep theirs: nothing is known about their order.
    """
    folded = copy.deepcopy(network).eval()
    for module in list(folded.modules()):
        if isinstance(module, Encoder) and not module.foldable:
            continue
        for (name, layer), (next_name, following) in pairwise(list(module.named_children())):
            if isinstance(layer, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
                fused = fuse_conv_bn_eval(layer, following)
                setattr(module, name, _evenly_padded(fused) if isinstance(fused, SameStride2Conv) else fused)
                setattr(module, next_name, nn.Identity())
    return folded.requires_grad_(False)


def _evenly_padded(conv: SameStride2Conv) -> nn.Conv2d:
    """The same function with the same padding on all sides: the kernel grows by zeros above and left."""
    kernel = conv.kernel_size[0]
    even = nn.Conv2d(
        conv.in_channels, conv.out_channels, kernel + 1, conv.stride[0], kernel // 2, groups=conv.groups
    )
    even.weight.copy_(F.pad(conv.weight, (1, 0, 1, 0)))
    assert conv.bias is not None
    assert even.bias is not None
    even.bias.copy_(conv.bias)
    return even

"""Networks for inference: batch normalisation becomes part of the convolution before it."""

from __future__ import annotations

import copy
from itertools import pairwise
from typing import TypeVar

import torch
from torch import nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from coam.models.encoders.timm_encoder import TimmEncoder

Network = TypeVar("Network", bound=nn.Module)


@torch.no_grad()
def fold_batch_norm(network: Network) -> Network:
    """A copy in evaluation mode without batch normalisation; the same function up to rounding.

    In our networks a normalisation that follows a convolution among a module's children also follows it when
    the module runs. Models of timm keep theirs: nothing is known about their order.
    """
    folded = copy.deepcopy(network).eval()
    for module in list(folded.modules()):
        if isinstance(module, TimmEncoder):
            continue
        for (name, layer), (next_name, following) in pairwise(list(module.named_children())):
            if isinstance(layer, nn.Conv2d) and isinstance(following, nn.BatchNorm2d):
                setattr(module, name, fuse_conv_bn_eval(layer, following))
                setattr(module, next_name, nn.Identity())
    return folded.requires_grad_(False)

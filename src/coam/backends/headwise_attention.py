"""Attention in bfloat16 on a CPU, head by head: two matrix products and powers of two that stay in the cache.

torch's own attention multiplies bfloat16 at a quarter of the speed of torch's matrix product (measured with
AVX512-BF16; where there is AMX it uses that, and is kept). Here logits are rounded to bfloat16, as are the
results of all other layers: as many matches stay the same as with torch's own, and they are as precise.

A softmax of bfloat16 would take longer than both products. Powers of two, without a shift where their range
allows it and divided by their sum only after the second product, take a third of that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coam.models.coattention import AttentionBlock

_LOGITS = 2**20  # at a time: 2 MB
_LARGEST_EXPONENT = 126.0  # 2^126 and 2^-126 are normal bfloat16


class HeadwiseAttention(AttentionBlock):
    """An `AttentionBlock` with the layers of another one, for inference."""

    def __init__(self, block: AttentionBlock) -> None:
        nn.Module.__init__(self)
        self.heads = block.heads
        for name, layer in block.named_children():
            self.add_module(name, layer)

    def forward(
        self, tokens: Tensor, source: Tensor, angles: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """As `AttentionBlock.forward`."""
        query, key, value = self._project(tokens, source, angles)
        if valid is not None:
            key, value = key[:, :, valid], value[:, :, valid]
        tokens = tokens + self.out(attend(query, key, value))
        residual: Tensor = self.mlp(self.norm_mlp(tokens))
        return tokens + residual


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """What query (B, heads, N, C) gathers of key and value (B, heads, M, C): (B, N, heads * C)."""
    batch, heads, count, channels = query.shape
    query = query * (math.log2(math.e) * channels**-0.5)
    queries, keys, values = (each.flatten(0, 1).contiguous() for each in (query, key, value))
    others = keys.shape[1]
    # By Cauchy and Schwarz no exponent is larger than a product of lengths; this is that of a sum of all.
    largest = _longest(queries) * _longest(keys) + (others * _longest(values).clamp(min=1)).log2()
    is_safe = (largest < _LARGEST_EXPONENT).tolist()
    attended = query.new_empty(batch, count, heads, channels)
    by_head = attended.transpose(1, 2)
    height = min(count, max(1, _LOGITS // others))
    at_once = max(1, _LOGITS // (height * others))  # heads of small images
    memory = query.new_empty(min(at_once, len(queries)) * height * others)
    for first in range(0, len(queries), at_once):
        some = slice(first, first + at_once)
        for top in range(0, count, height):
            block = queries[some, top : top + height]
            exponent = memory[: block.shape[0] * block.shape[1] * others].view(*block.shape[:2], others)
            torch.bmm(block, keys[some].transpose(1, 2), out=exponent)
            if not all(is_safe[some]):
                exponent -= exponent.amax(dim=2, keepdim=True)
            weight = exponent.exp2_()
            gathered = torch.bmm(weight, values[some]).div_(weight.sum(dim=2, keepdim=True))
            for head, each in enumerate(gathered, first):
                by_head[head // heads, head % heads, top : top + height] = each
    return attended.flatten(2)


def _longest(vectors: Tensor) -> Tensor:
    """The length (H,) of the longest of vectors (H, N, C)."""
    length: Tensor = torch.linalg.vector_norm(vectors, dim=-1)
    return length.amax(dim=-1).float()


def is_faster(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether a network on `device` in `dtype` should work head by head."""
    has_amx = getattr(torch.cpu, "_is_amx_tile_supported", lambda: False)
    return device.type == "cpu" and dtype == torch.bfloat16 and not has_amx()


def attend_headwise(network: nn.Module) -> None:
    """Replace every `AttentionBlock` of the network by one that works head by head."""
    for module in list(network.modules()):
        for name, block in list(module.named_children()):
            if isinstance(block, AttentionBlock):
                setattr(module, name, HeadwiseAttention(block))

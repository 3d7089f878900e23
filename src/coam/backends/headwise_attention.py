"""Attention in bfloat16 on a CPU, head by head: two matrix products and powers of two that stay in the cache.

torch's own attention multiplies bfloat16 at less than half of the speed of torch's matrix product (measured
with AVX512-BF16; where there is AMX it uses that, and is kept). Here logits are rounded to bfloat16, as are
the results of all other layers: as many matches stay the same as with torch's own, and they are as precise.

A softmax of bfloat16 would take longer than both products. Powers of two, without a shift where their range
allows it and divided by their sum only after the second product, take little more than half of that.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coam.models.coattention import AttentionBlock

_LOGITS = 2**20  # at a time: 2 MB
_LARGEST_SUM = 2.0**110  # and its inverse: a hundred thousand times it is still bfloat16, and normal


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
    height = min(count, max(1, _LOGITS // others))
    at_once = min(len(queries), max(1, _LOGITS // (height * others)))  # heads of small images
    memory, gathered = query.new_empty(at_once * height * others), torch.empty_like(queries)
    for some in (slice(first, first + at_once) for first in range(0, len(queries), at_once)):
        for rows in (slice(top, top + height) for top in range(0, count, height)):
            weight, total = _powers(queries[some, rows], keys[some].transpose(1, 2), memory)
            torch.div(torch.bmm(weight, values[some]), total, out=gathered[some, rows])
    return gathered.view(batch, heads, count, channels).transpose(1, 2).flatten(2)


def _powers(queries: Tensor, keys: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
    """Two to the products (H, R, M) of queries (H, R, C) and keys (H, C, M), in `memory`, and sums (H, R, 1).

    Where their range does not allow it, those of a row are smaller by a common factor.
    """
    shape = (*queries.shape[:2], keys.shape[2])
    exponent = torch.bmm(queries, keys, out=memory[: math.prod(shape)].view(shape))
    total = exponent.exp2_().sum(dim=2, keepdim=True)
    least, most = total.aminmax()
    if not (least > 1 / _LARGEST_SUM and most < _LARGEST_SUM):
        torch.bmm(queries, keys, out=exponent)
        exponent -= exponent.amax(dim=2, keepdim=True)
        total = exponent.exp2_().sum(dim=2, keepdim=True)
    return exponent, total


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

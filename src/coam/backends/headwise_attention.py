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
    # No exponent is larger than the product of the longest vectors (Cauchy-Schwarz), and a sum of all is this.
    largest = _longest(query) * _longest(key) + (key.shape[2] * _longest(value).clamp(min=1)).log2()
    is_safe = (largest < _LARGEST_EXPONENT).tolist()
    attended = query.new_empty(batch, count, heads, channels)
    height = min(count, max(1, _LOGITS // key.shape[2]))
    memory = query.new_empty(height, key.shape[2])
    for image in range(batch):
        for head in range(heads):
            keys, values = key[image, head].t(), value[image, head]
            for top in range(0, count, height):
                rows = slice(top, min(top + height, count))
                exponent = torch.mm(query[image, head, rows], keys, out=memory[: rows.stop - top])
                if not is_safe[image][head]:
                    exponent -= exponent.amax(dim=1, keepdim=True)
                weight = exponent.exp2_()
                total = weight.sum(dim=1, keepdim=True)
                torch.div(weight @ values, total, out=attended[image, rows, head])
    return attended.flatten(2)


def _longest(vectors: Tensor) -> Tensor:
    """The length (B, heads) of the longest of vectors (B, heads, N, C)."""
    return torch.linalg.vector_norm(vectors, dim=-1).amax(dim=-1).float()


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

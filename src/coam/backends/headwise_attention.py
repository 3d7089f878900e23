"""Attention in bfloat16 on a CPU, head by head: two matrix products and a softmax that stay in the cache.

torch's own attention multiplies bfloat16 at half the speed of torch's matrix product (measured with
AVX512-BF16; where there is AMX it uses that, and is kept). Here logits are rounded to bfloat16, as are the
results of all other layers: as many matches stay the same as with torch's own, and they are as precise.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from coam.models.coattention import AttentionBlock

_LOGITS = 2**20  # at a time: 2 MB


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
    query = query * channels**-0.5
    attended = query.new_empty(batch, count, heads, channels)
    height = max(1, _LOGITS // key.shape[2])
    for image in range(batch):
        for head in range(heads):
            keys, values = key[image, head].t(), value[image, head]
            for top in range(0, count, height):
                logits = query[image, head, top : top + height] @ keys
                attended[image, top : top + height, head] = logits.softmax(dim=1) @ values
    return attended.flatten(2)


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

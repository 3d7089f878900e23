"""Co-attention: features of one image gathered, softly, where they answer positions of the other (eq. 1).

`CoAttention` is the paper's module, usable alone and in any U-Net; `CoAttentionLevels` are those of a feature
pyramid. `AttentionBlock` is the residual,
multi-head form that the default model stacks; it serves as self-attention (an image looks at itself) and as
co-attention.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from coam.models.encoders.base import PYRAMID_STRIDES
from coam.models.outputs import EncodedImage
from coam.models.padding import valid_cells

Value = Literal["projected", "raw"]


def flatten_map(feature_map: Tensor) -> Tensor:
    """(B, C, H, W) -> (B, H * W, C), row by row."""
    return feature_map.flatten(2).transpose(1, 2)


def unflatten_map(tokens: Tensor, height: int, width: int) -> Tensor:
    """(B, H * W, C) -> (B, C, H, W)."""
    batch, _, channels = tokens.shape
    return tokens.transpose(1, 2).reshape(batch, channels, height, width)


def attention_map(weights: Tensor, query_shape: torch.Size, other_shape: torch.Size) -> Tensor:
    """(B, Hq * Wq, Ho * Wo) -> (B, Hq, Wq, Ho, Wo)."""
    return weights.reshape(weights.shape[0], *query_shape, *other_shape)


class CoAttention(nn.Module):
    """The paper's module: inner products of projected features, softmax over all places of the other image.

    The features of the query image and of the other image have their own 1x1 projection. What is gathered is
    the projected feature (the paper's text) or the raw one (the authors' published code): `value`.
    """

    def __init__(
        self, channels: int, projected: int, value: Value = "projected", scale: float | None = None
    ) -> None:
        super().__init__()
        self.query = nn.Conv2d(channels, projected, 1)
        self.context = nn.Conv2d(channels, projected, 1)
        self.value: Value = value
        self.scale = 1.0 if scale is None else scale
        self.out_channels = projected if value == "projected" else channels

    def attention(
        self, query_features: Tensor, other_features: Tensor, valid: Tensor | None = None
    ) -> Tensor:
        """Attention (B, Hq, Wq, Ho, Wo) of every query position over all positions of the other image."""
        weights = self._weights(query_features, self.context(other_features), valid)
        return attention_map(weights, query_features.shape[-2:], other_features.shape[-2:])

    def forward(self, query_features: Tensor, other_features: Tensor, valid: Tensor | None = None) -> Tensor:
        """Gather features of the other image for every query position.

        query_features (B, C, Hq, Wq), other_features (B, C, Ho, Wo), valid (Ho * Wo,) bool or None: positions
        of the other image that may be looked at. Returns (B, out_channels, Hq, Wq).
        """
        context = self.context(other_features)
        weights = self._weights(query_features, context, valid)
        gathered = flatten_map(context if self.value == "projected" else other_features)
        attended = weights.to(gathered.dtype) @ gathered
        return unflatten_map(attended, *query_features.shape[-2:])

    def _weights(self, query_features: Tensor, context: Tensor, valid: Tensor | None) -> Tensor:
        query = flatten_map(self.query(query_features))
        # Unscaled logits overflow half precision, so this small softmax is computed in float32 or wider.
        with torch.autocast(query.device.type, enabled=False):
            wide = torch.promote_types(query.dtype, torch.float32)
            logits = query.to(wide) @ flatten_map(context).to(wide).transpose(1, 2) * self.scale
            if valid is not None:
                logits = logits.masked_fill(~valid, float("-inf"))
            return logits.softmax(dim=-1)


class CoAttentionLevels(nn.ModuleDict):
    """`CoAttention` at those strides of a feature pyramid at which the two images meet, keyed by stride."""

    def __init__(
        self, channels: tuple[int, ...], projected: Mapping[int, int], value: Value, scale: float | None
    ) -> None:
        """`channels` of the pyramid's levels; `projected`: stride -> channels of the projections there."""
        levels = {s: channels[PYRAMID_STRIDES.index(s)] for s in projected}
        super().__init__({str(s): CoAttention(levels[s], p, value, scale) for s, p in projected.items()})

    def gathered_channels(self, stride: int) -> int:
        """Channels that are gathered at a stride; 0 where the images do not meet."""
        return self._at(stride).out_channels if str(stride) in self else 0

    def gather(self, a: EncodedImage, b: EncodedImage, stride: int) -> list[Tensor]:
        """Features of A at a stride and, where the images meet there, what they find in B."""
        own, other = (image.levels[PYRAMID_STRIDES.index(stride)] for image in (a, b))
        if str(stride) not in self:
            return [own]
        return [own, self._at(stride)(own, other, valid_cells(other, b.size, stride))]

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride."""
        maps = {}
        for stride in map(int, self):
            own, other = (image.levels[PYRAMID_STRIDES.index(stride)] for image in (a, b))
            maps[stride] = self._at(stride).attention(own, other, valid_cells(other, b.size, stride))
        return maps

    def _at(self, stride: int) -> CoAttention:
        module = self[str(stride)]
        assert isinstance(module, CoAttention)
        return module


def rotary_angles(height: int, width: int, head_channels: int, device: torch.device) -> Tensor:
    """Angles (H * W, head_channels / 2) that encode the (x, y) of every cell; one half for x, one for y."""
    quarter = head_channels // 4
    frequency = 100.0 ** (-torch.arange(quarter, device=device, dtype=torch.float32) / quarter)
    x = torch.arange(width, device=device, dtype=torch.float32)[None, :, None] * frequency
    y = torch.arange(height, device=device, dtype=torch.float32)[:, None, None] * frequency
    angles = torch.cat([x.expand(height, width, quarter), y.expand(height, width, quarter)], dim=-1)
    return angles.reshape(height * width, 2 * quarter)


def rotate_pairs(tokens: Tensor, angles: Tensor) -> Tensor:
    """Turn channel pairs of tokens (B, heads, N, C) by angles (N, C / 2): products see relative positions."""
    cosine, sine = angles.cos().to(tokens.dtype), angles.sin().to(tokens.dtype)
    first, second = tokens.chunk(2, dim=-1)
    return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=-1)


class AttentionBlock(nn.Module):
    """Residual multi-head attention followed by a small MLP, both on normalised tokens."""

    def __init__(self, channels: int, heads: int, mlp_ratio: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.norm_query = nn.LayerNorm(channels)
        self.norm_mlp = nn.LayerNorm(channels)
        self.query = nn.Linear(channels, channels)
        self.key_value = nn.Linear(channels, 2 * channels)
        self.out = nn.Linear(channels, channels)
        self.mlp = nn.Sequential(
            nn.Linear(channels, mlp_ratio * channels), nn.GELU(), nn.Linear(mlp_ratio * channels, channels)
        )
        # Start as the identity: a new block must not disturb what the pretrained encoder gives.
        nn.init.zeros_(self.out.bias)
        if not self.out.weight.is_meta:  # there torch would load its compiler for it: 1.5 seconds
            nn.init.normal_(self.out.weight, std=1e-3)

    def forward(
        self, tokens: Tensor, source: Tensor, angles: Tensor | None = None, valid: Tensor | None = None
    ) -> Tensor:
        """tokens (B, N, C) look at source (B, M, C), at the places where valid (M,) holds; result (B, N, C).

        angles (N, C / heads / 2) carry the positions, for self-attention only.
        """
        query, key, value = self._project(tokens, source, angles)
        mask = None if valid is None else valid[None, None, None]
        attended = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        tokens = tokens + self.out(attended.transpose(1, 2).flatten(2))
        residual: Tensor = self.mlp(self.norm_mlp(tokens))
        return tokens + residual

    def attention(self, tokens: Tensor, source: Tensor, valid: Tensor | None = None) -> Tensor:
        """Attention (B, N, M), mean over heads, of a co-attention step (no positions)."""
        query, key, _ = self._project(tokens, source, None)
        logits: Tensor = query.float() @ key.float().transpose(-1, -2) / query.shape[-1] ** 0.5
        if valid is not None:
            logits = logits.masked_fill(~valid, float("-inf"))
        return logits.softmax(dim=-1).mean(dim=1)

    def _project(
        self, tokens: Tensor, source: Tensor, angles: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        normalised = self.norm_query(tokens)
        query = self.query(normalised)
        key, value = self.key_value(normalised if source is tokens else self.norm_query(source)).chunk(
            2, dim=-1
        )
        query, key, value = (self._split_heads(x) for x in (query, key, value))
        if angles is not None:
            query, key = rotate_pairs(query, angles), rotate_pairs(key, angles)
        return query, key, value

    def _split_heads(self, tokens: Tensor) -> Tensor:
        """(B, N, C) -> (B, heads, N, C / heads)."""
        batch, count, channels = tokens.shape
        return tokens.reshape(batch, count, self.heads, channels // self.heads).transpose(1, 2)

"""Global descriptors of photos for retrieval: which photos may show the same place.

Generalised-mean pooling (power 3) of the encoder's two deepest levels, each of unit length, says much about
what a photo shows and something about its light. A trained head, an affine map after the pooling (learned
whitening), keeps what photos of one place share by day, by night and in other seasons. It lies beside the
weights whose encoder it was trained on, in a file of its own, `NAME.retrieval.safetensors`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

LEVELS, POWER = 2, 3
DESCRIBED_AT = 640  # pixels, long side: heads are trained on photos of this size


def pooled(levels: Sequence[Tensor]) -> Tensor:
    """Unit vectors (B, D) of the deepest of an encoder's levels (B, C, H, W), by generalised means."""
    means = [level.float().clamp(min=1e-6).pow(POWER).mean(dim=(2, 3)) for level in levels[-LEVELS:]]
    vectors = [normalize(mean.pow(1 / POWER)) for mean in means]
    return normalize(torch.cat(vectors, dim=1))


@dataclass(frozen=True)
class RetrievalConfig:
    """Sizes of a head."""

    channels: int = 384  # of what `pooled` gives
    size: int = 256  # of the descriptor


class RetrievalHead(nn.Module):
    """Pooled vectors (B, channels) to descriptors (B, size) of unit length."""

    def __init__(self, config: RetrievalConfig | None = None) -> None:
        super().__init__()
        self.config = config or RetrievalConfig()
        self.project = nn.Linear(self.config.channels, self.config.size)

    def forward(self, vectors: Tensor) -> Tensor:
        """Descriptors (B, size) of pooled vectors (B, channels)."""
        return normalize(self.project(vectors))

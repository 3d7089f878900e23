"""Random tensors for batches, all from one generator."""

from __future__ import annotations

import torch
from torch import Tensor


class Draw:
    """Random tensors whose first side is the batch, all from one generator."""

    def __init__(self, generator: torch.Generator, batch: int) -> None:
        self.generator, self.batch, self.device = generator, batch, generator.device

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform in [low, high), (B, *shape)."""
        unit = torch.rand((self.batch, *shape), generator=self.generator, device=self.device)
        return low + (high - low) * unit

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, (B, *shape)."""
        return torch.randn((self.batch, *shape), generator=self.generator, device=self.device)

    def integers(self, count: int, *shape: int) -> Tensor:
        """Integers in [0, count), (B, *shape)."""
        return torch.randint(count, (self.batch, *shape), generator=self.generator, device=self.device)

    def chance(self, share: float, *shape: int) -> Tensor:
        """True in about `share` of the places, (B, *shape)."""
        return self.uniform(0.0, 1.0, *shape) < share

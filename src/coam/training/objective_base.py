"""What all objectives share: a model, the weights of its losses, one mixed-precision pass over a batch."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from coam.models.outputs import DenseDescriptors
from coam.training.config import LossSpec


class ModelWithLosses(nn.Module):
    """A model with its losses; the forward pass of a subclass gives everything the loop needs."""

    def __init__(self, model: nn.Module, spec: LossSpec) -> None:
        super().__init__()
        self.model = model
        self.spec = spec
        self.compiled: Callable[..., tuple[DenseDescriptors, DenseDescriptors]] | None = None

    def use_compiled(self, yes: bool) -> None:
        """Run the network through torch.compile from now on, or not."""
        self.compiled = torch.compile(self.model, dynamic=False) if yes else None

    def describe(self, image0: Tensor, image1: Tensor) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Dense descriptors of both images of every pair."""
        # Mixed precision is ours and not Fabric's, which would round the points to bfloat16 as well.
        with torch.autocast(image0.device.type, torch.bfloat16, enabled=image0.is_cuda):
            return (self.model if self.compiled is None else self.compiled)(image0, image1)

    def temperature_of(self, name: str = "temperature") -> Tensor:
        """A factor on similarities that belongs to the model."""
        factor = getattr(self.model, name)
        assert isinstance(factor, Tensor)
        return factor

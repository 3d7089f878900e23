"""Batches of training pairs, the sources that give them, and the random tensors they are made of.

A `PairBatch` holds pairs of images and points that are known to correspond. Dense sources (warps, planar
worlds, depth) draw the points at random; sparse sources (tracks) list those they have and mark the rest as
not valid. Where only cameras are known there are other batches (`coam.capsnet.pairs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


@dataclass(frozen=True, kw_only=True)
class Batch:
    """B pairs of images with L points in each, all on one device; the centre of the first pixel is (0, 0)."""

    image0: Tensor  # (B, 3, H, W) float in [0, 1], RGB
    image1: Tensor  # (B, 3, H, W)
    points0: Tensor  # (B, L, 2) in image0
    points1: Tensor  # (B, L, 2) in image1
    # (B,) in [0, 1]: how strongly the light may be changed; None: the mixture decides
    light: Tensor | None = None

    def swapped(self) -> Self:
        """The same pairs the other way round."""
        swapped = {"image0": self.image1, "image1": self.image0}
        return replace(self, **swapped, points0=self.points1, points1=self.points0)

    def to(self, device: torch.device) -> Self:
        """The same batch on another device."""
        return replace(self, **{name: tensor.to(device) for name, tensor in self.tensors().items()})

    def tensors(self) -> dict[str, Tensor]:
        """The fields that are given, by name."""
        return {f.name: getattr(self, f.name) for f in fields(self) if getattr(self, f.name) is not None}


@dataclass(frozen=True, kw_only=True)
class PairBatch(Batch):
    """Pairs whose points correspond where `valid`."""

    valid: Tensor  # (B, L) bool: a true correspondence, visible in both images
    unmatched0: Tensor  # (B, L) bool: points0 is inside image0 and certainly has NO partner in image1
    unmatched1: Tensor  # (B, L) bool: points1 is inside image1 and certainly has NO partner in image0
    tolerance: Tensor  # (B,) pixels: how far the truth may be off (0 for synthetic pairs)

    def swapped(self) -> Self:
        """The same pairs the other way round."""
        return replace(super().swapped(), unmatched0=self.unmatched1, unmatched1=self.unmatched0)


class Correspondences(NamedTuple):
    """The part of a `PairBatch` that says what corresponds: points (B, L, 2), masks (B, L)."""

    points0: Tensor
    points1: Tensor
    valid: Tensor
    unmatched0: Tensor
    unmatched1: Tensor


AnyBatch = TypeVar("AnyBatch", bound=Batch)
BatchOut = TypeVar("BatchOut", bound=Batch, covariant=True)


class BatchSource(Protocol[BatchOut]):
    """Anything that can give batches of pairs."""

    @property
    def recordable(self) -> bool:
        """Whether nothing in `sample` waits for the device: only then a CUDA graph can hold it."""
        ...

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> BatchOut:
        """`batch_size` pairs of `size` x `size` images with `points` points each.

        All randomness comes from `generator` (on the source's device).
        """
        ...


PairSource = BatchSource[PairBatch]


def concatenate(batches: Sequence[AnyBatch]) -> AnyBatch:
    """One batch of all pairs, in order; `light` is given by all batches or by none."""
    if len({batch.light is None for batch in batches}) > 1:
        raise ValueError("some batches say how their light may change and some do not")
    parts = [batch.tensors() for batch in batches]
    return replace(batches[0], **{name: torch.cat([part[name] for part in parts]) for name in parts[0]})


class Draw:
    """Random tensors whose first dimension is the batch, all from one generator and on its device."""

    def __init__(self, generator: torch.Generator, batch: int) -> None:
        self.generator, self.batch, self.device = generator, batch, generator.device

    def unit(self, *shape: int) -> Tensor:
        """Uniform in [0, 1), (B, *shape)."""
        return torch.rand((self.batch, *shape), generator=self.generator, device=self.device)

    def uniform(self, low: float, high: float, *shape: int) -> Tensor:
        """Uniform in [low, high), (B, *shape)."""
        return low + (high - low) * self.unit(*shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal, (B, *shape)."""
        return torch.randn((self.batch, *shape), generator=self.generator, device=self.device)

    def chance(self, share: float, *shape: int) -> Tensor:
        """True in about `share` of the places, (B, *shape)."""
        return self.unit(*shape) < share

    def weighted(self, cumulative: Tensor) -> Tensor:
        """Indices (B,) drawn by weights whose running sum is `cumulative` (n,) float64."""
        unit = torch.rand(self.batch, generator=self.generator, device=self.device, dtype=torch.float64)
        index = torch.searchsorted(cumulative, unit * cumulative[-1], right=True)
        return index.clamp(max=len(cumulative) - 1)

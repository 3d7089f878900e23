"""The one kind of training sample that every source gives.

A batch holds pairs of images and points that are known to correspond. Dense sources (warps, planar worlds,
depth) draw the points at random; sparse sources (tracks) list those they have and mark the rest as not valid.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class PairBatch:
    """B pairs with L points each; all on one device. Pixels as everywhere: first pixel centre is (0, 0)."""

    image0: Tensor  # (B, 3, H, W) float in [0, 1], RGB
    image1: Tensor  # (B, 3, H, W)
    points0: Tensor  # (B, L, 2) in image0
    points1: Tensor  # (B, L, 2) in image1, corresponding where `valid`
    valid: Tensor  # (B, L) bool: a true correspondence, visible in both images
    unmatched0: Tensor  # (B, L) bool: points0 is inside image0 and certainly has NO partner in image1
    unmatched1: Tensor  # (B, L) bool: points1 is inside image1 and certainly has NO partner in image0
    tolerance: Tensor  # (B,) pixels: how far the truth may be off (0 for synthetic pairs)
    light: Tensor | None = (
        None  # (B,) in [0, 1]: how strongly the light may be changed; None: the mixture decides
    )


class PairSource(Protocol):
    """Anything that can give batches of pairs."""

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        """`batch_size` pairs of `size` x `size` images with `points` points each.

        All randomness comes from `generator` (on the source's device). A source in which nothing waits for
        the device says so by an attribute `recordable = True`; only then a CUDA graph can hold it.
        """
        ...


def is_recordable(source: object) -> bool:
    """Whether a CUDA graph can hold the making of a batch."""
    return bool(getattr(source, "recordable", False))


def concatenate(batches: list[PairBatch]) -> PairBatch:
    """One batch of all pairs, in order; `light` is given by all batches or by none."""
    fields = {name: [getattr(b, name) for b in batches] for name in PairBatch.__dataclass_fields__}
    lights = [light is None for light in fields["light"]]
    if any(lights) and not all(lights):
        raise ValueError("some batches say how their light may change and some do not")
    return PairBatch(**{name: torch.cat(parts) for name, parts in fields.items() if parts[0] is not None})

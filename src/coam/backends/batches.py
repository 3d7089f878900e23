"""Many pairs as one batch, and back."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby

import torch
from torch import Tensor

from coam.models.network import Network
from coam.models.outputs import DenseDescriptors, EncodedImage


def stack_encoded(images: Sequence[EncodedImage]) -> EncodedImage:
    """Images of one size, (1, C_l, H_l, W_l) each, as one batch of (B, C_l, H_l, W_l)."""
    levels = zip(*(image.levels for image in images), strict=True)
    return EncodedImage(tuple(torch.cat(level) for level in levels), images[0].size)


def split_encoded(batch: EncodedImage) -> list[EncodedImage]:
    """The images of a batch, each as a batch of one."""
    levels = zip(*(torch.split(level, 1) for level in batch.levels), strict=True)
    return [EncodedImage(tuple(parts), batch.size) for parts in levels]


def split_dense(batch: DenseDescriptors) -> list[DenseDescriptors]:
    """The descriptors of a batch, each as a batch of one."""
    count = batch.descriptors.shape[0]
    parts = [
        [None] * count if part is None else list(torch.split(part, 1))
        for part in (batch.descriptors, batch.score, batch.fine, batch.coarse)
    ]
    return [
        replace(batch, descriptors=d, score=s, fine=f, coarse=c) for d, s, f, c in zip(*parts, strict=True)
    ]


def decode_pairs(
    network: Network, pairs: Sequence[tuple[EncodedImage, EncodedImage]]
) -> Iterator[tuple[DenseDescriptors, DenseDescriptors]]:
    """Descriptors of every pair, in order; neighbours of the same sizes are decoded as one batch."""
    for _, same in groupby(pairs, key=_sizes):
        group = list(same)
        if len(group) == 1:
            yield network.decode(*group[0])
            continue
        sides = network.decode(*(stack_encoded([pair[side] for pair in group]) for side in (0, 1)))
        yield from zip(*(split_dense(side) for side in sides), strict=True)


def coarse_pairs(
    network: Network, pairs: Sequence[tuple[EncodedImage, EncodedImage]]
) -> list[tuple[Tensor, Tensor]] | None:
    """Coarse descriptors (1, D, H / 16, W / 16) of every pair, in order; None where the network has none.

    Pairs of the same sizes are described as one batch.
    """
    described: dict[int, tuple[Tensor, Tensor]] = {}
    alike = sorted(range(len(pairs)), key=lambda index: _sizes(pairs[index]))
    for _, same in groupby(alike, key=lambda index: _sizes(pairs[index])):
        group = list(same)
        stacked = (stack_encoded([pairs[index][side] for index in group]) for side in (0, 1))
        sides = network.coarse_descriptors(*stacked)
        if sides is None:
            return None
        described |= zip(group, zip(*(torch.split(side, 1) for side in sides), strict=True), strict=True)
    return [described[index] for index in range(len(pairs))]


def _sizes(pair: tuple[EncodedImage, EncodedImage]) -> list[tuple[int, ...]]:
    return [(*side.levels[0].shape, *side.size) for side in pair]

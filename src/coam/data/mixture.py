"""Mixture of sources: every batch holds a fixed number of pairs of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

import torch

from coam.data.photometric import PhotometricConfig, change_light
from coam.data.sample import AnyBatch, BatchSource, PairBatch, concatenate

Pairs = TypeVar("Pairs", bound=PairBatch)


@dataclass(frozen=True)
class Ingredient(Generic[AnyBatch]):
    """A source, its share of the mixture, and how strongly its light is changed."""

    source: BatchSource[AnyBatch]
    share: float
    light: float = 1.0
    wrong: bool = False  # its pairs show different places, so they may be shuffled into wrong pairs


def portions(shares: Sequence[float], batch: int) -> list[int]:
    """How many of `batch` pairs each source gives: proportional, whole, and summing up to `batch`."""
    total = sum(shares)
    exact = [share / total * batch for share in shares]
    counts = [int(x) for x in exact]
    by_remainder = sorted(range(len(exact)), key=lambda i: exact[i] - counts[i], reverse=True)
    for i in by_remainder[: batch - sum(counts)]:
        counts[i] += 1
    return counts


class Mixture(Generic[AnyBatch]):
    """A source of several sources, with change of light and, of `PairBatch`es, with some wrong pairs."""

    def __init__(
        self,
        ingredients: Sequence[Ingredient[AnyBatch]],
        wrong_pairs: float = 0.0,
        photometric: PhotometricConfig | None = None,
    ) -> None:
        self.ingredients = list(ingredients)
        self.wrong_pairs, self.photometric = wrong_pairs, photometric
        self.recordable = all(ingredient.source.recordable for ingredient in self.ingredients)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> AnyBatch:
        """See `BatchSource`."""
        counts = portions([i.share for i in self.ingredients], batch_size)
        wrong = round(self.wrong_pairs * batch_size)
        batches, changing = [], False
        for ingredient, count in zip(self.ingredients, counts, strict=True):
            if count == 0:
                continue
            batch = ingredient.source.sample(count, size, points, generator)
            if ingredient.wrong and min(wrong, count) > 1 and isinstance(batch, PairBatch):
                batch = make_wrong(batch, min(wrong, count))
                wrong = 0
            changing |= ingredient.light > 0 or batch.light is not None
            light = torch.full((count,), ingredient.light, device=generator.device)
            batches.append(replace(batch, light=light if batch.light is None else batch.light))
        mixed = concatenate(batches)
        if not changing:
            return mixed
        strength = mixed.light
        assert strength is not None
        images = torch.cat([mixed.image0, mixed.image1])
        both = torch.cat([strength, strength])
        image0, image1 = change_light(images, both, generator, self.photometric).chunk(2)
        return replace(mixed, image0=image0, image1=image1)


def make_wrong(batch: Pairs, count: int) -> Pairs:
    """Give the last `count` pairs each other's second image: none of their points has a partner any more."""
    order = torch.arange(len(batch.valid), device=batch.valid.device)
    order[-count:] = order[-count:].roll(1)
    is_wrong = (order != torch.arange(len(order), device=order.device)).unsqueeze(1)
    return replace(
        batch,
        image1=batch.image1[order],
        points1=batch.points1[order],
        valid=batch.valid & ~is_wrong,
        unmatched0=batch.unmatched0 | is_wrong,
        unmatched1=batch.unmatched1[order] | (is_wrong & (batch.valid | batch.unmatched1)[order]),
    )

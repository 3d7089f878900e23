"""Matching accuracy on pairs made from held-out photos: every position's true partner is known.

Used to compare models that differ in one thing (`make ablation`): the same pairs for all, made from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coam.data.mixture import Mixture
from coam.data.sample import PairBatch
from coam.dense_matching import DenseMatching, MatcherConfig
from coam.models.outputs import DenseDescriptors
from coam.models.registry import DescriptorModel
from coam.tensors import exact_products
from coam.training.config import Phase, Recipe, SourceSpec
from coam.training.sources import build_mixture

THRESHOLDS = (1.0, 3.0, 5.0, 10.0)  # pixels
KEPT = 256  # best matches of a pair that count: what a user would take
EVERYTHING = MatcherConfig(
    looks="once", max_matches=4096, min_score=0.0, min_distinctiveness=0.0, crowding=1.0
)

# Change of viewpoint alone and with strong change of light; real change of season and of sensor.
SETS: dict[str, SourceSpec] = {
    "planes": SourceSpec("plane", "photos_val", options={"zoom": 2.5, "tilt": 50.0}),
    "worlds": SourceSpec("world", "photos_val", options={"zoom": 2.5, "yaw": 40.0}),
    "seasons": SourceSpec("world", "aligned_val/season", aligned=True, light=0.3, options={"yaw": 34.0}),
    "thermal": SourceSpec("plane", "aligned_val/thermal", aligned=True, light=0.3),
}


@dataclass(frozen=True)
class PairFigures:
    """Of one pair: shares of its best matches within `THRESHOLDS`, and how many matches were judged."""

    accuracy: tuple[float, ...]
    matches: int


def build_sets(root: Path, device: torch.device) -> dict[str, Mixture]:
    """The sources of `SETS`, below `root`."""
    return {
        name: build_mixture(Recipe(name, (spec,), (Phase(1),), wrong_pairs=0.0), root, device)
        for name, spec in SETS.items()
    }


@torch.inference_mode()
def score_source(
    model: DescriptorModel,
    source: Mixture,
    pairs: int = 64,
    size: int = 256,
    seed: int = 99,
    at_once: int = 16,
) -> list[PairFigures]:
    """Figures of `pairs` pairs of one source; which pairs depends on `seed` alone."""
    matching = DenseMatching(EVERYTHING, float(model.temperature))
    device = next(model.parameters()).device
    figures = []
    for start in range(0, pairs, at_once):
        generator = torch.Generator(device=device).manual_seed(seed + start)
        with exact_products():  # training may have left the device with rounded ones
            batch = source.sample(min(at_once, pairs - start), size, (size // model.stride) ** 2, generator)
        dense0, dense1 = model(batch.image0, batch.image1)
        for index in range(len(batch.valid)):
            figures.append(_score(matching, _one(dense0, index), _one(dense1, index), batch, index))
    return figures


def _score(
    matching: DenseMatching, dense0: DenseDescriptors, dense1: DenseDescriptors, batch: PairBatch, index: int
) -> PairFigures:
    found = matching.between(dense0, dense1)
    truth, known = _truth_of_cells(batch, index, dense0)
    judged = known[found.index0].nonzero()[:KEPT, 0]
    error = (found.points1[judged] - truth[found.index0[judged]]).norm(dim=1)
    if len(judged) == 0:
        return PairFigures((0.0,) * len(THRESHOLDS), 0)
    return PairFigures(tuple(float((error <= t).float().mean()) for t in THRESHOLDS), len(judged))


def _truth_of_cells(batch: PairBatch, index: int, dense: DenseDescriptors) -> tuple[Tensor, Tensor]:
    """Where each cell of image 0 is in image 1 (N, 2), infinitely far if nowhere; for which that is known."""
    rows, columns = dense.descriptors.shape[-2:]
    cell = ((batch.points0[index] + 0.5) / dense.stride - 0.5).round().long()
    position = cell[:, 1] * columns + cell[:, 0]
    truth = torch.full((rows * columns, 2), torch.inf, device=position.device)
    valid, known = batch.valid[index], torch.zeros(rows * columns, dtype=torch.bool, device=position.device)
    truth[position[valid]] = batch.points1[index][valid]
    known[position[valid | batch.unmatched0[index]]] = True
    return truth, known


def _one(dense: DenseDescriptors, index: int) -> DenseDescriptors:
    """One pair of a batch, as a batch of one."""
    fields: dict[str, Any] = {
        name: value[index : index + 1] for name, value in vars(dense).items() if isinstance(value, Tensor)
    }
    return replace(dense, **fields)

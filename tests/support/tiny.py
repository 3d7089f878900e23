"""A run small enough for tests: a few steps of a tiny network on random textures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from safetensors.torch import load_file

from coam.models.network import DescriptorNetwork
from coam.training.config import LossSpec, ModelSpec, OptimiserSpec, Phase, Recipe, SourceSpec
from coam.training.run import build_start
from coam.training.sources import build_mixture

TINY = {"width": 32, "heads": 2, "rounds": (1, 1), "decoder_widths": (16, 16, 8)}

RECIPE = Recipe(
    name="tiny",
    model=ModelSpec(config=TINY),
    sources=(SourceSpec("plane", "photos", 0.5), SourceSpec("world", "photos", 0.5)),
    phases=(Phase(3, 64, 2, 64), Phase(1, 96, 2, 64)),
    loss=LossSpec(points=64, fine_points=32),
    optimiser=OptimiserSpec(lr=1e-3, warmup=2),
    bank_side=64,
    seed=5,
    log_every=1,
    save_every=2,
)


def start(recipe: Recipe = RECIPE) -> DescriptorNetwork:
    """The recipe's model at step 0."""
    return build_start(recipe, Path()).model


def source(root: Path, recipe: Recipe = RECIPE):  # type: ignore[no-untyped-def]
    """The recipe's mixture; the photos lie in root/photos."""
    return build_mixture(recipe, root, torch.device("cpu"))


def with_steps(steps: int) -> Recipe:
    """One phase of so many steps."""
    return replace(RECIPE, phases=(Phase(steps, 64, 2, 64),))


def assert_equal_files(first: Path, second: Path) -> None:
    """Both files hold bit-equal tensors under the same names."""
    tensors0, tensors1 = load_file(first), load_file(second)
    assert tensors0.keys() == tensors1.keys()
    assert len(tensors0) > 100
    different = [key for key in tensors0 if not torch.equal(tensors0[key], tensors1[key])]
    assert different == []

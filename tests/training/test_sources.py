"""From a recipe's list of sources to a mixture."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from coam.errors import ConfigError
from coam.training.config import Recipe, SourceSpec
from coam.training.sources import build_mixture
from support import tiny

CPU = torch.device("cpu")


def flat(folder: Path, value: int, count: int = 1) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for i in range(count):
        Image.new("RGB", (32, 32), (value,) * 3).save(folder / f"{value}_{i}.png")


def recipe(*sources: SourceSpec, **fields: object) -> Recipe:
    return replace(tiny.RECIPE, sources=sources, wrong_pairs=0.0, bank_side=32, **fields)  # type: ignore[arg-type]


def test_sources_of_one_kind_become_one_with_their_shares(tmp_path: Path) -> None:
    flat(tmp_path / "dark", 50, count=1)
    flat(tmp_path / "light", 200, count=5)
    mixture = build_mixture(
        recipe(
            SourceSpec("plane", "dark", 0.75, light=0.0),
            SourceSpec("plane", "light", 0.25, light=0.0),
        ),
        tmp_path,
        CPU,
    )
    assert len(mixture.ingredients) == 1
    assert mixture.ingredients[0].share == 1.0
    values = mixture.sample(200, 32, 4, torch.Generator().manual_seed(0)).image0.mean(dim=(1, 2, 3)) * 255
    dark = float((values < 100).float().mean())
    assert 0.65 < dark < 0.85  # by share, not by number of photos


def test_kinds_stay_apart_and_aligned_groups_give_two_members(tmp_path: Path) -> None:
    for value in (40, 80):
        flat(tmp_path / "aligned" / "spot", value)
    flat(tmp_path / "photos", 160)
    mixture = build_mixture(
        recipe(
            SourceSpec("plane", "aligned", 0.5, aligned=True, light=0.0, tolerance=0.01),
            SourceSpec("world", "photos", 0.5, light=0.0),
        ),
        tmp_path,
        CPU,
    )
    batch = mixture.sample(8, 32, 4, torch.Generator().manual_seed(0))
    first, second = (image.mean(dim=(1, 2, 3)) * 255 for image in (batch.image0, batch.image1))
    assert (first + second)[:4].tolist() == pytest.approx([120.0] * 4, abs=0.5)
    assert first[4:].tolist() == pytest.approx([160.0] * 4, abs=0.5)
    assert batch.tolerance.tolist() == pytest.approx([0.32] * 4 + [0.0] * 4)


def test_mistakes(data: Path) -> None:
    def build(*sources: SourceSpec) -> None:
        build_mixture(recipe(*sources), data, CPU)

    with pytest.raises(ConfigError, match="WorldConfig has no field 'tilted'"):
        build(SourceSpec("plane", "photos", options={"tilted": 3}))
    with pytest.raises(ConfigError, match="give them equal options"):
        build(SourceSpec("plane", "photos"), SourceSpec("plane", "photos", options={"tilt": 3.0}))
    with pytest.raises(ConfigError, match="asks for stylize but gives no"):
        build(SourceSpec("plane", "photos", stylize=0.5))
    with pytest.raises(ConfigError, match="kind 'tracks' has no option 'speed'"):
        build(SourceSpec("tracks", "photos", options={"speed": 1}))

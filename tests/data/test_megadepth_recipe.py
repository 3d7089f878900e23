"""A recipe can name a MegaDepth folder: for correspondences by depth, and for poses alone."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coam.capsnet.photos import MegaDepthPoses
from coam.data.megadepth import MegaDepthPairs
from coam.errors import ConfigError, DataError
from coam.training.config import LossSpec, ModelSpec, Phase, Recipe, SourceSpec
from coam.training.objective import build_source
from coam.training.run import run_recipe
from coam.training.sources import build_mixture
from support.megadepth_tree import write_scene
from support.tiny import assert_equal_files

CPU = torch.device("cpu")
TINY = {"width": 32, "heads": 2, "rounds": (1, 1), "decoder_widths": (16, 16, 8)}
CAPS = {"encoder": "efficientnet_lite1", "decoder_widths": (16, 16), "descriptor_channels": 16}


def recipe(**options: object) -> Recipe:
    return Recipe(
        name="megadepth",
        model=ModelSpec("stacked", TINY),
        sources=(SourceSpec("depth", "MegaDepth", options=dict(options)),),
        phases=(Phase(2, 64, 2, 64),),
        loss=LossSpec(points=64, fine_points=32),
        wrong_pairs=0.0,
        log_every=1,
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    write_scene(folder / "MegaDepth", "0001")
    return folder


def test_options_of_the_recipe_reach_the_loader(root: Path) -> None:
    wanted = recipe(
        tolerance=0.5, crop={"zoom": [0.8, 0.9], "max_rotation": 0.0}, choice={"min_overlap": 0.1}
    )
    mixture = build_mixture(wanted, root, CPU)
    source = mixture.ingredients[0].source
    assert isinstance(source, MegaDepthPairs)
    assert (source.tolerance, source.crop.zoom, source.crop.max_rotation) == (0.5, (0.8, 0.9), 0.0)
    assert len(source) == 3
    assert not mixture.recordable  # photos are read while training: no CUDA graph can hold that
    batch = mixture.sample(2, 64, 32, torch.Generator().manual_seed(0))
    assert batch.valid.any()


def test_both_objectives_train_on_it(root: Path, tmp_path: Path) -> None:
    assert run_recipe(recipe(), root, tmp_path / "depth", device="cpu").step == 2
    posed = replace(recipe(), model=ModelSpec("capsnet", CAPS), loss=LossSpec(kind="epipolar"))
    assert isinstance(build_source(posed, root, CPU).ingredients[0].source, MegaDepthPoses)
    assert run_recipe(posed, root, tmp_path / "posed", device="cpu").step == 2


def test_mistakes_give_one_line(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="kind 'depth' has no option 'depth_scale'"):
        build_mixture(recipe(depth_scale=2), root, CPU)
    with pytest.raises(ConfigError, match="MegaDepthChoice has no field 'overlap'"):
        build_mixture(recipe(choice={"overlap": 0.5}), root, CPU)
    with pytest.raises(ConfigError, match="no MegaDepth split 'all'"):
        build_mixture(recipe(scenes="all"), root, CPU)
    styled = replace(recipe(), sources=(SourceSpec("depth", "MegaDepth", stylize=0.5),))
    with pytest.raises(ConfigError, match="kind 'depth' cannot stylize"):
        build_mixture(styled, root, CPU)
    with pytest.raises(DataError, match="MegaDepth: not there"):
        build_mixture(recipe(), tmp_path, CPU)


def test_a_resumed_run_draws_ahead_what_an_unbroken_one_does(root: Path, tmp_path: Path) -> None:
    """Batches are drawn ahead in a thread: where a run is broken must not change them."""
    whole = replace(recipe(cache="cache", cache_side=160), phases=(Phase(4, 64, 2, 64),), save_every=2)
    run_recipe(whole, root, tmp_path / "unbroken", device="cpu")
    first = run_recipe(whole, root, tmp_path / "broken", minutes=1e-9, device="cpu")
    assert 0 < first.step < 4
    assert run_recipe(whole, root, tmp_path / "broken", device="cpu").step == 4
    names = [tmp_path / folder / "model.safetensors" for folder in ("unbroken", "broken")]
    assert_equal_files(*names)

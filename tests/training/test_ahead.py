"""Batches drawn ahead are those of their steps; encoder weights are found, or fetched by consent only."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from coam.errors import DataError, WeightsError
from coam.models.encoders import build_encoder
from coam.training.ahead import Ahead
from coam.training.config import ModelSpec, load_recipe
from coam.training.run import build_start, load_encoder_weights


def test_each_step_gets_its_batch_and_the_next_are_begun() -> None:
    drawn, here = [], threading.get_ident()

    def draw(step: int) -> int:
        assert threading.get_ident() != here
        drawn.append(step)
        return step * 10

    ahead = Ahead(draw, depth=2)
    assert [ahead.take(step, 5) for step in (3, 4)] == [30, 40]
    assert ahead.take(1, 5) == 10  # gone back: as a resumed run would
    ahead.close()
    assert set(drawn) <= {1, 2, 3, 4}  # none from the end on


def test_the_next_batch_is_made_while_one_is_used() -> None:
    begun = threading.Event()

    def draw(step: int) -> int:
        if step == 1:
            begun.set()
        return step

    ahead = Ahead(draw)
    ahead.take(0, 9)
    assert begun.wait(timeout=20)  # nobody has asked for 1
    ahead.close()


def test_an_error_reaches_the_step_that_wants_the_batch() -> None:
    def draw(step: int) -> int:
        if step == 1:
            raise DataError("the photo is gone")
        return step

    ahead = Ahead(draw)
    assert ahead.take(0, 9) == 0
    with pytest.raises(DataError, match="the photo is gone"):
        ahead.take(1, 9)
    ahead.close()


def test_closing_does_not_draw_what_is_left() -> None:
    drawn = []

    def draw(step: int) -> int:
        time.sleep(0.05)
        drawn.append(step)
        return step

    ahead = Ahead(draw, depth=50)
    ahead.take(0, 1000)
    ahead.close()
    assert len(drawn) < 10


def test_public_weights_are_found_where_torch_keeps_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    encoder, given = build_encoder("resnet34", levels=2), build_encoder("resnet34", levels=2)
    name = "resnet34-b627a593.pth"
    with pytest.raises(DataError, match=r"add --download to fetch https://.*resnet34-b627a593\.pth"):
        load_encoder_weights(encoder, tmp_path / name, download=False)
    with pytest.raises(
        WeightsError, match=r"other\.pth does not exist"
    ):  # not the public one: nothing to fetch
        load_encoder_weights(encoder, tmp_path / "other.pth", download=True)
    (tmp_path / "hub" / "checkpoints").mkdir(parents=True)
    torch.save(given.state_dict(), tmp_path / "hub" / "checkpoints" / name)
    load_encoder_weights(encoder, tmp_path / name, download=False)
    assert torch.equal(encoder.conv1.weight, given.conv1.weight)


@pytest.mark.parametrize(
    ("name", "encoder"), [("cdunet-published", "resnet50"), ("cdunet-published-b1", "efficientnet_b1")]
)
def test_the_published_recipe_says_what_the_paper_says(name: str, encoder: str, tmp_path: Path) -> None:
    recipe = load_recipe(name)
    loss, phase, optimiser = recipe.loss, recipe.phases[0], recipe.optimiser
    assert (loss.kind, loss.score_target, loss.margin, loss.hardest) == ("hinge", "confusions", 1.0, 3)
    assert (loss.points, loss.negatives, phase.points) == (512, 512, 512)
    assert (phase.size, phase.batch, optimiser.lr) == (256, 16, 1e-4)
    assert recipe.sources[0].light == 0
    assert recipe.model.config["encoder"] == encoder
    with pytest.raises(DataError, match="add --download"):
        build_start(recipe, tmp_path)
    bare = replace(recipe, model=replace(recipe.model, encoder_weights=None))
    assert isinstance(bare.model, ModelSpec)
    assert build_start(bare, tmp_path).model.config.encoder == encoder

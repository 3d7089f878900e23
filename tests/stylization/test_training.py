"""The stylizer's training: its pairs, its losses, a run that is stopped and goes on."""

from __future__ import annotations

import json
import signal
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image

from coam.errors import ConfigError, DataError, WeightsError
from coam.stylization.network import StylizerNetwork, load_network
from coam.stylization.objective import sample_batch, weighted_l1
from coam.stylization.pairs import LightSource, load_pairs
from coam.stylization.recipe import SizePhase, StylizeRecipe, is_stylizer_recipe, load_stylize_recipe
from coam.stylization.train import train_stylizer
from coam.training import loop
from coam.training.stopping import Stopped, StopRequest
from support.toy_pictures import textured

SOURCE = LightSource("spots", aligned=True, light=0.3)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two spots, each by day and by night: dark and blue."""
    folder = tmp_path_factory.mktemp("data")
    for spot in range(2):
        day = textured(128, 128, spot)
        (folder / "spots" / str(spot)).mkdir(parents=True)
        Image.fromarray(day).save(folder / "spots" / str(spot) / "0.png")
        night = (day * [0.2, 0.3, 0.5]).astype("uint8")
        Image.fromarray(night).save(folder / "spots" / str(spot) / "1.png")
    return folder


def small_recipe(**changes: object) -> StylizeRecipe:
    base = StylizeRecipe(
        name="small",
        sources=(SOURCE,),
        validation=(SOURCE, LightSource("absent", aligned=True)),  # what is absent is left out
        phases=(SizePhase(0.5, 64, 2), SizePhase(1.0, 96, 1)),
        steps=4,
        network={"widths": [8, 8, 8, 8, 8], "refiner_width": 8, "refiner_blocks": 1},
        bank_side=128,
        log_every=1,
        save_every=2,
        warmup=1,
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def test_the_true_answer_has_the_view_of_one_and_the_light_of_the_other(root: Path) -> None:
    pairs = load_pairs((replace(SOURCE, light=0.0),), root, torch.device("cpu"), side=128, worlds=0.0)
    batch = pairs.sample(12, 64, torch.Generator().manual_seed(0))
    assert batch.view.shape == batch.style.shape == batch.answer.shape == (12, 3, 64, 64)
    dark = {name: getattr(batch, name).mean(dim=(1, 2, 3)) < 0.3 for name in ("view", "style", "answer")}
    # Dark or not as STYLE is, whatever VIEW is.
    assert torch.equal(dark["answer"], dark["style"])
    assert not torch.equal(dark["answer"], dark["view"])
    # Where nothing was changed, the answer is VIEW itself.
    same = dark["view"] == dark["answer"]
    assert same.any()
    torch.testing.assert_close(batch.answer[same], batch.view[same])
    assert 0.3 < batch.common.float().mean() < 1.0


def test_sampled_images_of_a_batch(root: Path) -> None:
    from coam.models.registry import load_model

    pairs = load_pairs((SOURCE,), root, torch.device("cpu"), side=128, worlds=0.5)
    generator = torch.Generator().manual_seed(1)
    batch = pairs.sample(2, 64, generator)
    sampled = sample_batch(load_model().model, batch, 0.05, generator)
    assert sampled.colours.shape == (2, 3, 64, 64)
    assert sampled.evidence.shape == (2, 4, 64, 64)
    assert sampled.evidence.min() >= 0
    assert sampled.evidence.max() <= 1


def test_weighted_l1_by_hand() -> None:
    made, truth = torch.zeros(1, 3, 1, 2), torch.zeros(1, 3, 1, 2)
    made[..., 0], made[..., 1] = 0.3, 0.9
    weight = torch.tensor([3.0, 1.0]).view(1, 1, 1, 2)
    assert weighted_l1(made, truth, weight).item() == pytest.approx((3 * 0.3 + 0.9) / 4)
    assert weighted_l1(made, truth, torch.zeros_like(weight)).item() == 0


def test_a_run_leaves_a_model_and_a_resumed_one_the_same(root: Path, tmp_path: Path) -> None:
    lines: list[dict[str, float]] = []
    whole = train_stylizer(small_recipe(), root, tmp_path / "whole", device="cpu", report=lines.append)
    assert whole.step == 4
    assert whole.finished
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert "judge" not in lines[0]
    assert {"judge", "fool", "features", "stage2"} <= lines[-1].keys()
    read = load_network(tmp_path / "whole" / "model.safetensors")
    assert set(read.card["held_out"]) == {"view", "sampled", "stage1", "stage2"}
    assert (tmp_path / "whole" / "panel_spots_0.png").exists()
    start = StylizerNetwork(read.network.config).state_dict()
    assert any(not torch.equal(v, start[k]) for k, v in read.network.state_dict().items())

    # Killed after two steps: steps 3 and 4 are taken as if nothing had happened.
    class Killed(Exception):
        pass

    def kill(line: dict[str, float]) -> None:
        if line["step"] == 3:
            raise Killed

    with pytest.raises(Killed):
        train_stylizer(small_recipe(), root, tmp_path / "broken", device="cpu", report=kill)
    resumed = train_stylizer(small_recipe(), root, tmp_path / "broken", device="cpu")
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(resumed.model.state_dict()[key], value, atol=1e-5, rtol=1e-4)
    log = [json.loads(line) for line in (tmp_path / "broken" / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [1, 2, 3, 4]
    with pytest.raises(WeightsError, match="another recipe"):
        train_stylizer(small_recipe(seed=5), root, tmp_path / "broken", device="cpu")


def test_a_signal_ends_the_run_after_a_whole_step_and_it_goes_on(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_stylizer(small_recipe(), root, tmp_path / "whole", device="cpu")
    asked = nullcontext(StopRequest(signal.SIGTERM))
    with monkeypatch.context() as patched:
        patched.setattr(loop, "stop_requests", lambda: asked)
        with pytest.raises(Stopped, match="stopped at step 1; run the same line again to go on"):
            train_stylizer(small_recipe(), root, tmp_path / "run", device="cpu")
    stopped = load_network(tmp_path / "run" / "model.safetensors")
    assert stopped.card["steps"] == 1
    assert "held_out" not in stopped.card
    again = train_stylizer(small_recipe(), root, tmp_path / "run", device="cpu")
    assert (again.step, again.taken, again.finished) == (4, 3, True)
    for key, value in whole.model.state_dict().items():
        torch.testing.assert_close(again.model.state_dict()[key], value, atol=1e-5, rtol=1e-4)


def test_time_ends_a_run_as_steps_do(root: Path, tmp_path: Path) -> None:
    recipe = small_recipe(steps=1000)
    outcome = train_stylizer(recipe, root, tmp_path / "run", minutes=1e-6, device="cpu")
    assert (outcome.step, outcome.finished) == (1, True)  # all of the learning rate's course in one step
    complete = train_stylizer(recipe, root, tmp_path / "run", device="cpu")
    assert (complete.step, complete.taken, complete.finished) == (1, 0, True)


def test_the_packaged_recipe_and_mistakes_in_recipes(tmp_path: Path, root: Path) -> None:
    recipe = load_stylize_recipe()
    assert is_stylizer_recipe("stylize")
    assert not is_stylizer_recipe("cdunet-lite1")
    assert not any("thermal" in source.path for source in recipe.sources)
    assert recipe.phase_at(0.0).size == 256
    assert recipe.phase_at(1.0) == recipe.phases[-1]
    other = tmp_path / "mine.yaml"
    other.write_text("name: a\ntrains: stylizer\nsources: []\nphases: []\nsteps: 3\n")
    assert is_stylizer_recipe(other)
    with pytest.raises(ConfigError, match="at least one source"):
        load_stylize_recipe(other)
    with pytest.raises(ConfigError, match="multiple of 32"):
        small_recipe(phases=(SizePhase(1.0, 100, 2),))
    with pytest.raises(DataError, match="absent"):
        load_pairs((LightSource("absent"),), root, torch.device("cpu"), side=64, worlds=0.0)
    with pytest.raises(ConfigError, match="asks for copies"):
        load_pairs((LightSource("spots", copies=True),), root, torch.device("cpu"), side=64, worlds=0.0)


def test_coam_train_knows_which_recipe_is_the_stylizers(tmp_path: Path) -> None:
    from typer.testing import CliRunner

    from coam.cli import build_app

    told = CliRunner().invoke(
        build_app(),
        ["train", "stylize", "--data", str(tmp_path), "-o", str(tmp_path / "run"), "--devices", "2"],
    )
    assert told.exit_code == 2
    assert "the stylizer trains on one device" in told.stderr
    told = CliRunner().invoke(
        build_app(),
        ["train", "stylize", "--data", str(tmp_path), "-o", str(tmp_path / "run"), "--device", "cpu"],
    )
    assert told.exit_code == 2
    assert "no such folder of photos" in told.stderr

"""The loop: killed and resumed runs, what is refused, what is written, and two processes."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from coam.data.sample import PairSource
from coam.errors import CoamError, ConfigError, DataError, WeightsError
from coam.models.network import DescriptorNetwork
from coam.models.registry import load_model, save_model
from coam.training import loop, objective, run
from coam.training.config import LossSpec, ModelSpec, OptimiserSpec, Recipe
from coam.training.log import drop_lines_after, read_log
from coam.training.loop import Outcome, make_fabric
from coam.training.run import build_start, check_batches, inherited_card, run_recipe
from coam.training.stopping import Stopped, StopRequest
from support import REPOSITORY, TESTS, tiny

CARD = {"recipe": "first", "steps": 9000, "pair_score": {"bias": 1.5}}

KILLED = """
import os, signal, sys
from pathlib import Path
from support import tiny
from coam.training.loop import make_fabric
from coam.training.run import train

def kill(line):
    if line["step"] == 3:
        os.kill(os.getpid(), signal.SIGKILL)

root = Path(sys.argv[1])
train(tiny.RECIPE, tiny.source(root), tiny.start(), Path(sys.argv[2]), make_fabric("cpu"), report=kill)
"""

TWO = """
import sys
from pathlib import Path
from safetensors.torch import save_file
from support import tiny
from coam.training.loop import make_fabric
from coam.training.run import train

root, folder = Path(sys.argv[1]), Path(sys.argv[2])
fabric = make_fabric("cpu", 2)
model = tiny.start()
outcome = train(tiny.with_steps(3), tiny.source(root), model, folder, fabric, budget_seconds=600)
assert outcome.step == 3 and outcome.first_process == (fabric.global_rank == 0)
weights = {k: v.detach().clone() for k, v in model.named_parameters()}
save_file(weights, folder / f"rank{fabric.global_rank}.safetensors")
"""


def train(
    recipe: Recipe, source: PairSource, model: DescriptorNetwork, folder: Path, **options: Any
) -> Outcome[DescriptorNetwork]:
    """On the CPU, where the tests' photos are."""
    return run.train(recipe, source, model, folder, make_fabric("cpu"), **options)


def run_python(script: Path, *arguments: object) -> subprocess.CompletedProcess[str]:
    paths = [str(TESTS), str(REPOSITORY / "src")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture(scope="module")
def unbroken(data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run of four steps that nothing disturbed."""
    folder = tmp_path_factory.mktemp("unbroken")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # as in the process that is killed
    outcome = train(tiny.RECIPE, tiny.source(data), tiny.start(), folder)
    torch.set_num_threads(threads)
    assert (outcome.step, outcome.finished) == (4, True)
    return folder


def test_a_killed_and_resumed_run_ends_like_an_unbroken_one(
    data: Path, unbroken: Path, tmp_path: Path
) -> None:
    script = tmp_path / "killed.py"
    script.write_text(KILLED)
    killed = run_python(script, data, tmp_path)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2, 3]  # 3 was not saved
    assert not (tmp_path / "model.safetensors").exists()
    torch.set_num_threads(1)
    outcome = train(tiny.RECIPE, tiny.source(data), tiny.start(), tmp_path)
    assert (outcome.step, outcome.finished) == (4, True)
    for name in ("checkpoint.safetensors", "model.safetensors"):
        tiny.assert_equal_files(tmp_path / name, unbroken / name)
    lines, expected = read_log(tmp_path / "log.jsonl"), read_log(unbroken / "log.jsonl")
    for line in (*lines, *expected):
        del line["pairs_per_second"]
    assert lines == expected  # step 3 once, with the same figures


class Stop(Exception):
    pass


def test_a_run_stopped_at_any_step_ends_like_an_unbroken_one(
    data: Path, unbroken: Path, tmp_path: Path
) -> None:
    def stop(line: dict[str, float]) -> None:
        if line["step"] == 3:
            raise Stop

    with pytest.raises(Stop):
        train(tiny.RECIPE, tiny.source(data), tiny.start(), tmp_path, report=stop)
    train(tiny.RECIPE, tiny.source(data), tiny.start(), tmp_path)
    tiny.assert_equal_files(tmp_path / "checkpoint.safetensors", unbroken / "checkpoint.safetensors")


def test_what_a_run_writes(unbroken: Path) -> None:
    lines = [json.loads(text) for text in (unbroken / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    for line in lines:
        weighted = line["descriptor"] + 0.5 * line["coarse"] + 0.5 * line["fine"] + 0.2 * line["score"]
        assert line["loss"] == pytest.approx(weighted, abs=1e-4)
        assert 0 <= line["accuracy"] <= 1
        assert line["pairs_per_second"] > 0
    file = load_model(unbroken / "model.safetensors")
    assert (file.name, file.card["recipe"], file.card["steps"]) == ("tiny", "tiny", 4)
    stored = load_file(unbroken / "checkpoint.safetensors")
    averaged = file.model.state_dict()["to_coarse.weight"]
    assert torch.equal(averaged, stored["average.to_coarse.weight"].half().float())
    assert not torch.equal(stored["average.to_coarse.weight"], stored["model.to_coarse.weight"])
    assert not list(unbroken.glob("*.tmp"))


def test_the_time_budget_stops_and_the_run_goes_on(data: Path, unbroken: Path, tmp_path: Path) -> None:
    outcome = train(tiny.RECIPE, tiny.source(data), tiny.start(), tmp_path, budget_seconds=0.0)
    assert (outcome.step, outcome.finished) == (1, False)
    assert load_model(tmp_path / "model.safetensors").card["steps"] == 1
    train(tiny.RECIPE, tiny.source(data), tiny.start(), tmp_path)
    tiny.assert_equal_files(tmp_path / "checkpoint.safetensors", unbroken / "checkpoint.safetensors")


def test_a_finished_run_is_not_trained_again(data: Path, unbroken: Path) -> None:
    before = load_file(unbroken / "checkpoint.safetensors")
    outcome = train(tiny.RECIPE, tiny.source(data), tiny.start(), unbroken)
    assert (outcome.step, outcome.finished, outcome.taken) == (4, True, 0)
    assert torch.equal(outcome.model.state_dict()["norm.weight"], before["average.norm.weight"])


def refused(folder: Path, data: Path, recipe: object = tiny.RECIPE) -> str:
    with pytest.raises(WeightsError) as caught:
        train(recipe, tiny.source(data), tiny.start(), folder)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_checkpoint_of_another_recipe_is_refused(data: Path, unbroken: Path) -> None:
    other = replace(tiny.RECIPE, seed=6)
    assert "made by another recipe" in refused(unbroken, data, other)


def test_damaged_checkpoints_give_one_clear_line(data: Path, unbroken: Path, tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.safetensors"
    whole = (unbroken / "checkpoint.safetensors").read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert "is damaged" in refused(tmp_path, data)
    path.write_bytes(b"")
    assert "is damaged" in refused(tmp_path, data)
    save_file({"weight": torch.zeros(2)}, path)
    assert "not a checkpoint" in refused(tmp_path, data)
    path.unlink()
    path.mkdir()
    assert "is damaged" in refused(tmp_path, data)


def test_a_checkpoint_that_lacks_a_tensor_is_refused(data: Path, unbroken: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(unbroken / "checkpoint.safetensors", framework="pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]  # as files from before
    tensors = load_file(unbroken / "checkpoint.safetensors")
    del tensors["average.norm.weight"]
    save_file(tensors, tmp_path / "checkpoint.safetensors", metadata=metadata)
    assert "does not fit the model" in refused(tmp_path, data)


def test_an_older_checkpoint_without_new_fields_is_taken(data: Path, unbroken: Path, tmp_path: Path) -> None:
    from safetensors import safe_open

    with safe_open(unbroken / "checkpoint.safetensors", framework="pt") as file:
        metadata = file.metadata()
    del metadata["checksum"]  # as files from before
    recipe = json.loads(metadata["recipe"])
    del recipe["optimiser"]["freeze_norm"]
    tensors = load_file(unbroken / "checkpoint.safetensors")
    path = tmp_path / "checkpoint.safetensors"
    save_file(tensors, path, metadata={**metadata, "recipe": json.dumps(recipe)})
    assert train(tiny.RECIPE, tiny.source(data), tiny.start(), tmp_path).step == 4


def test_a_loss_that_is_not_finite_stops_the_run_before_it_is_saved(data: Path, tmp_path: Path) -> None:
    wild = replace(tiny.with_steps(20), optimiser=OptimiserSpec(lr=1e30, warmup=1), log_every=100)
    with pytest.raises(
        CoamError, match=r"the loss is not finite at step \d+; try a lower learning rate"
    ) as caught:
        train(wild, tiny.source(data), tiny.start(), tmp_path)
    assert "\n" not in str(caught.value)
    if (tmp_path / "checkpoint.safetensors").exists():
        stored = load_file(tmp_path / "checkpoint.safetensors")
        assert all(torch.isfinite(value).all() for value in stored.values())
    assert not (tmp_path / "model.safetensors").exists()


@pytest.mark.parametrize("kind", ["grid", "dual_softmax", "nce"])
def test_confusions_lower_the_score_s_target_whatever_the_loss(
    data: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    targets = []
    plain = objective.dist.absolute_error

    def watched(score: torch.Tensor, target: torch.Tensor, valid: torch.Tensor) -> torch.Tensor:
        targets.append(target[valid])
        return plain(score, target, valid)

    monkeypatch.setattr(objective.dist, "absolute_error", watched)
    spec = LossSpec(kind=kind, score_target="confusions", points=64, negatives=32)  # type: ignore[arg-type]
    torch.manual_seed(0)
    batch = tiny.source(data).sample(2, 64, 64, torch.Generator().manual_seed(1))
    objective.CorrespondenceObjective(tiny.start(), spec)(**batch.tensors())
    found = torch.cat(targets)
    # 1 / (1 + m)^(1/4) with m confusing negatives of 32: the descriptors of an untrained network are alike.
    assert found.max() <= 1
    assert 33**-0.25 - 1e-6 <= found.mean() < 0.9


@pytest.mark.parametrize("kind", ["dual_softmax", "nce", "hinge"])
def test_every_loss_trains(data: Path, tmp_path: Path, kind: str) -> None:
    loss = LossSpec(kind=kind, score_target="confusions", points=64, fine_points=32, negatives=32)  # type: ignore[arg-type]
    recipe = replace(tiny.with_steps(1), loss=loss)
    model = tiny.start()
    before = model.to_descriptor.weight.detach().clone()
    train(recipe, tiny.source(data), model, tmp_path)
    assert not torch.equal(model.to_descriptor.weight, before)
    assert read_log(tmp_path / "log.jsonl")[0]["gradient"] > 0


def test_a_fine_tuned_model_keeps_the_card_of_its_start(data: Path, tmp_path: Path) -> None:
    path = save_model(tiny.start(), tmp_path / "start.safetensors", "start", CARD)
    recipe = replace(tiny.with_steps(1), model=ModelSpec(start=str(path)))
    file = build_start(recipe, data)
    outcome = run_recipe(recipe, data, tmp_path / "run", device="cpu")
    assert outcome.step == 1
    card = load_model(tmp_path / "run" / "model.safetensors").card
    assert {key: card[key] for key in CARD} == CARD
    tuned = card["fine_tuned"]
    assert (tuned["from"], tuned["sha256"]) == ("start", file.sha256)
    assert (tuned["recipe"], tuned["steps"]) == ("tiny", 1)
    again = inherited_card(load_model(tmp_path / "run" / "model.safetensors"))
    assert again["fine_tuned"]["earlier"] == tuned
    assert inherited_card(replace(file, trained=False)) == {}


def test_a_start_takes_other_settings_but_no_others_than_its_weights_fit(data: Path, tmp_path: Path) -> None:
    start = tiny.start()
    path = save_model(start, tmp_path / "start.safetensors", "start", CARD)
    switched = not start.config.conditioning
    spec = ModelSpec(start=str(path), config={"conditioning": switched})
    file = build_start(replace(tiny.RECIPE, model=spec), data)
    assert file.model.config == replace(start.config, conditioning=switched)
    assert torch.equal(file.model.to_descriptor.weight, load_model(path).model.to_descriptor.weight)
    assert file.card == load_model(path).card
    spec = replace(spec, config={"descriptor_channels": start.config.descriptor_channels + 1})
    with pytest.raises(ConfigError, match=r"the weights of 'start' do not fit \{'descriptor_channels'"):
        build_start(replace(tiny.RECIPE, model=spec), data)


def test_missing_data_is_named(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"nowhere: no such folder"):
        run_recipe(tiny.RECIPE, tmp_path / "nowhere", tmp_path / "run", device="cpu")
    with pytest.raises(DataError, match=r"photos: not there \(source 'plane' of recipe 'tiny'\)"):
        run_recipe(tiny.RECIPE, tmp_path, tmp_path / "run", device="cpu")
    (tmp_path / "run").write_text("a file")
    with pytest.raises(DataError, match="is a file; give a folder"):
        run_recipe(tiny.RECIPE, data, tmp_path / "run", device="cpu")
    with pytest.raises(ConfigError, match="cannot train on 'tpu'"):
        run_recipe(tiny.RECIPE, data, tmp_path / "run2", device="tpu")


def test_a_checkpoint_that_cannot_be_written_gives_one_line(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*_: object, **__: object) -> None:
        raise SafetensorError("Error while serializing: I/O error: File too large (os error 27)")

    monkeypatch.setattr(safetensors.numpy, "save_file", failing)
    with pytest.raises(DataError, match=r"checkpoint.safetensors: cannot be written \(File too") as caught:
        train(tiny.with_steps(1), tiny.source(data), tiny.start(), tmp_path)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["log.jsonl"]


@pytest.mark.parametrize("mask", [0o022, 0o077, 0o002])
def test_what_a_run_writes_is_as_readable_as_the_umask_says(data: Path, tmp_path: Path, mask: int) -> None:
    before = os.umask(mask)
    try:
        train(tiny.with_steps(1), tiny.source(data), tiny.start(), tmp_path)
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    names = ("checkpoint.safetensors", "log.jsonl", "model.safetensors")
    assert modes == dict.fromkeys(names, 0o666 & ~mask)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_step_saves_it_and_the_run_goes_on(
    data: Path, unbroken: Path, tmp_path: Path, number: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, request = tiny.source(data), StopRequest()
    plain = source.sample

    def interrupted(*arguments: Any) -> Any:
        request.number = number  # in the middle of the first step
        return plain(*arguments)

    source.sample = interrupted  # type: ignore[method-assign]
    torch.set_num_threads(1)
    rare = replace(tiny.RECIPE, save_every=1000)  # only the signal makes it save
    monkeypatch.setattr(loop, "stop_requests", lambda: nullcontext(request))
    with pytest.raises(Stopped, match="stopped at step 1; run the same line again to go on") as caught:
        train(rare, source, tiny.start(), tmp_path)
    monkeypatch.undo()
    assert (caught.value.step, caught.value.number) == (1, number)
    assert load_model(tmp_path / "model.safetensors").card["steps"] == 1
    outcome = train(rare, tiny.source(data), tiny.start(), tmp_path)
    assert (outcome.step, outcome.taken) == (4, 3)
    tiny.assert_equal_files(tmp_path / "checkpoint.safetensors", unbroken / "checkpoint.safetensors")


# In a process of its own: a real SIGINT ends the test run itself if anything goes wrong.
SIGNALS = """
import signal
from coam.training.stopping import stop_requests

before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
for number in (signal.SIGINT, signal.SIGTERM):
    with stop_requests() as request:
        assert request.number is None
        signal.raise_signal(number)
        assert request.number == number
        if number == signal.SIGINT:
            try:
                signal.raise_signal(number)  # a second one works as ever
            except KeyboardInterrupt:
                print("interrupted")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
signal.signal(signal.SIGINT, signal.SIG_IGN)  # as a job in the background has it
with stop_requests() as request:
    signal.raise_signal(signal.SIGINT)
    assert request.number is None
print("ignored")
"""


def test_a_second_signal_works_as_ever_and_ignored_ones_stay_ignored() -> None:
    # a test run in the background hands its ignored SIGINT on: the program begins with Python's own
    begin = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)\n"
    done = subprocess.run([sys.executable, "-c", begin + SIGNALS], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "interrupted\nignored\n"), done.stderr


def test_batches_must_be_shared_equally() -> None:
    check_batches(tiny.RECIPE, 2)
    with pytest.raises(ConfigError, match="a batch of 2 pairs cannot be shared by 3 processes"):
        check_batches(tiny.RECIPE, 3)


def test_log_lines_of_steps_that_are_taken_again_are_dropped(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1.0}\n{"step": 2.0}\n{"step": 3.0}\n{"ste')  # the last line was cut by a kill
    drop_lines_after(path, 2)
    assert path.read_text() == '{"step": 1.0}\n{"step": 2.0}\n'
    drop_lines_after(tmp_path / "none.jsonl", 2)


def test_damaged_lines_of_a_log_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    damaged = [
        "[" * 100_000,
        "7",
        "null",
        '{"loss": 1.0}',
        '{"step": "a"}',
        '{"step": 2.0, "loss": [1]}',
        "{",
    ]
    path.write_text("\n".join(['{"step": 1.0, "loss": 0.5}', *damaged, '{"step": 3.0}', '{"step": 4']))
    assert read_log(path) == [{"step": 1.0, "loss": 0.5}, {"step": 3.0}]


@pytest.mark.slow
def test_two_processes_end_with_equal_weights(data: Path, tmp_path: Path) -> None:
    script = tmp_path / "two.py"
    script.write_text(TWO)
    done = run_python(script, data, tmp_path)  # Fabric starts the file again for the second process
    assert done.returncode == 0, done.stderr
    tiny.assert_equal_files(tmp_path / "rank0.safetensors", tmp_path / "rank1.safetensors")
    trained = load_file(tmp_path / "rank0.safetensors")
    assert not torch.equal(trained["to_coarse.weight"], tiny.start().to_coarse.weight)
    assert [line["step"] for line in read_log(tmp_path / "log.jsonl")] == [1, 2, 3]

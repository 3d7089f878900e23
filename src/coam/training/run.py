"""Training of a matching network by a recipe: its data, its start, its steps, its model file."""

from __future__ import annotations

import math
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coam.data.sample import BatchSource
from coam.errors import ConfigError, DataError
from coam.models.encoders import Encoder, load_pretrained, public_weights
from coam.models.network import DescriptorNetwork
from coam.models.registry import ModelFile, build_model, load_model, save_model
from coam.tensors import exact_products
from coam.training.ahead import Ahead
from coam.training.checkpoint import TrainState
from coam.training.config import OptimiserSpec, Phase, Recipe, load_recipe
from coam.training.log import Report
from coam.training.loop import MODEL, Outcome, Run, make_fabric, run_lock, seed_step, step_seed, to_device
from coam.training.objective import Objective, build_objective, build_source
from coam.training.optimiser import (
    average_decay,
    averaged_copy,
    build_optimiser,
    learning_rate_factor,
    set_learning_rate,
    update_average,
)


def run_recipe(
    recipe: Recipe | str | Path,
    data: Path,
    folder: Path,
    minutes: float = math.inf,
    report: Report | None = None,
    device: str = "auto",
    devices: int = 1,
    download: bool = False,
) -> Outcome[DescriptorNetwork]:
    """Train `recipe` on the data below `data`; everything it leaves lies in `folder`.

    `download`: the encoder's public weights may be fetched where they are not on this machine.
    """
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe)
    if not data.is_dir():
        raise DataError(f"{data}: no such folder; --data names the one that holds the recipe's sources")
    check_batches(recipe, devices)  # before the other processes are started
    start = build_start(recipe, data, download)
    fabric = make_fabric(device, devices)
    source = build_source(recipe, data, fabric.device)
    return train(recipe, source, start.model, folder, fabric, minutes * 60, report, inherited_card(start))


def build_start(recipe: Recipe, root: Path, download: bool = False) -> ModelFile:
    """The model a recipe starts from, with the card of the one it fine-tunes (empty for a new one).

    `download`: see `load_encoder_weights`.
    """
    spec = recipe.model
    if spec.start is not None:
        return reconfigured(load_model(spec.start), spec.config)
    torch.manual_seed(recipe.seed)
    model = build_model(spec.architecture, spec.config)
    if spec.encoder_weights is not None:
        load_encoder_weights(model.encoder, root / spec.encoder_weights, download)
    return ModelFile(model, recipe.name, spec.architecture, trained=False)


def reconfigured(file: ModelFile, changes: dict[str, Any]) -> ModelFile:
    """The same weights in a network with other settings; those that ask for other weights are refused."""
    if not changes:
        return file
    model = build_model(file.architecture, {**asdict(file.model.config), **changes})
    try:
        model.load_state_dict(file.model.state_dict())
    except RuntimeError as error:
        raise ConfigError(f"model.config: the weights of {file.name!r} do not fit {changes}") from error
    return replace(file, model=model)


def load_encoder_weights(encoder: Encoder, path: Path, download: bool) -> None:
    """Fill an encoder from the file a recipe names; where it is missing, from torchvision's public one.

    The public file is looked for where torch keeps its downloads; it is fetched only with `download`.
    """
    public = public_weights(encoder)
    if path.is_file() or public is None or path.name != public.name:
        load_pretrained(encoder, path)
    elif public.is_file():
        load_pretrained(encoder, public)
    elif download:
        load_pretrained(encoder, download=True)
    else:
        raise DataError(
            f"{path}: not there, and not at {public}; put it there, or add --download to fetch"
            f" {encoder.public_url}"
        )


def train(
    recipe: Recipe,
    source: BatchSource[Any],
    model: DescriptorNetwork,
    folder: Path,
    fabric: Any = None,
    budget_seconds: float = math.inf,
    report: Report | None = None,
    card: dict[str, Any] | None = None,
) -> Outcome[DescriptorNetwork]:
    """Train until the recipe's steps are done or the time is over; goes on from a checkpoint in `folder`.

    `report` gets every line of the log. `card` goes into the model's file, with recipe and steps added.
    Ctrl-C and SIGTERM let the step under way end, save everything, and raise `Stopped`.
    """
    started = time.monotonic()
    fabric = fabric or make_fabric()
    check_batches(recipe, fabric.world_size)
    model = to_device(model, fabric.device)
    state = TrainState(model, build_optimiser(model, recipe.optimiser))
    with run_lock(folder, fabric):
        run = Run(recipe, state, folder, fabric, report, started)
        step = Step(recipe, source, build_objective(model, recipe), state, fabric)
        set_training_mode(model, recipe.optimiser)
        try:
            run.take_steps(step, lambda: run.seconds() >= budget_seconds)
        finally:
            step.close()
        averaged = averaged_copy(model, state.average)
        if fabric.is_global_zero:
            name, full_card = describe(recipe, state.step, card or {})
            save_model(averaged, folder / MODEL, name, full_card)
        return run.end(averaged)


def phase_of(recipe: Recipe, step: int) -> Phase:
    """The phase in which `step` lies."""
    for phase in recipe.phases:
        if step < phase.steps:
            return phase
        step -= phase.steps
    return recipe.phases[-1]


class Step:
    """One optimiser step: draw a batch, forward, backward, update weights and their average.

    On CUDA the whole step is recorded once per phase as a graph and then replayed: it consists of some
    thousands of small operations, and launching them one by one takes longer than running them.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: BatchSource[Any],
        objective: Objective[Any],
        state: TrainState,
        fabric: Any,
    ) -> None:
        self.recipe, self.source, self.state, self.fabric = recipe, source, state, fabric
        self.objective = objective
        self.wrapped, self.optimiser = fabric.setup(objective, state.optimiser)
        device = fabric.device
        self.generator = (
            torch.cuda.default_generators[device.index or 0]
            if device.type == "cuda"
            else torch.Generator(device=device)
        )
        self.decay = torch.ones((), device=device)  # of the moving average
        self.use_graph = device.type == "cuda" and fabric.world_size == 1 and source.recordable
        # Batches that are read from disk are drawn while the network learns from the one before.
        self.ahead = None if source.recordable else Ahead(self._draw)
        if self.ahead is not None:
            # The precision of products is a setting of the whole process: a thread may not switch it.
            torch.set_float32_matmul_precision("highest")
        self.phase: Phase | None = None
        self.graph: Any = None
        self.eager_left = 0
        self.result: dict[str, Tensor] | None = None

    def __call__(self) -> tuple[dict[str, Tensor], int]:
        """Take the next step; returns its figures, the gradient's norm included, and the number of pairs."""
        step, spec = self.state.step, self.recipe.optimiser
        phase = phase_of(self.recipe, step)
        seed_step(self.generator, self.recipe.seed, step, self.fabric.global_rank)
        set_learning_rate(
            self.optimiser,
            learning_rate_factor(step, self.recipe.steps, spec.warmup, spec.final_factor, spec.halve_every),
        )
        self.decay.fill_(average_decay(spec.ema, step))
        if phase != self.phase:
            self.phase, self.graph, self.result, self.eager_left = phase, None, None, 4
            self.objective.use_compiled(phase.compile and self.use_graph)
        return self._figures(phase), phase.batch

    def close(self) -> None:
        """Draw no further batches."""
        if self.ahead is not None:
            self.ahead.close()

    def _figures(self, phase: Phase) -> dict[str, Tensor]:
        if not self.use_graph:
            return self._take(phase)
        if self.graph is None and self.eager_left > 0:  # let libraries allocate and choose before recording
            self.eager_left -= 1
            return self._on_side_stream(phase)
        if self.graph is None:
            self._record(phase)
        self.graph.replay()
        assert self.result is not None
        return self.result

    def _take(self, phase: Phase) -> dict[str, Tensor]:
        if self.ahead is not None:
            batch = self.ahead.take(self.state.step, self.recipe.steps)
        else:
            with exact_products():  # rounded positions would be wrong ones
                batch = self._sample(phase, self.generator)
        self.optimiser.zero_grad(set_to_none=True)
        figures = self.wrapped(**batch.tensors())
        self.fabric.backward(figures["loss"])
        network = self.state.network
        norm = nn.utils.clip_grad_norm_(network.parameters(), self.recipe.optimiser.clip)
        self.optimiser.step()
        update_average(self.state.average, network, self.decay)
        return {**{key: value.detach() for key, value in figures.items()}, "gradient": norm}

    def _sample(self, phase: Phase, generator: torch.Generator) -> Any:
        share = phase.batch // self.fabric.world_size
        return self.source.sample(share, phase.size, phase.points, generator)

    def _draw(self, step: int) -> Any:
        """The batch of a step, which depends on nothing but the recipe, the step and the process."""
        generator = torch.Generator(device=self.fabric.device)
        generator.manual_seed(step_seed(self.recipe.seed, step, self.fabric.global_rank))
        return self._sample(phase_of(self.recipe, step), generator)

    def _on_side_stream(self, phase: Phase) -> dict[str, Tensor]:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            result = self._take(phase)
        torch.cuda.current_stream().wait_stream(stream)
        return result

    def _record(self, phase: Phase) -> None:
        self.optimiser.zero_grad(set_to_none=True)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.result = self._take(phase)


def set_training_mode(model: nn.Module, spec: OptimiserSpec) -> None:
    """Training mode; batch statistics (the encoder's, or all) stay as they are if the recipe says so."""
    model.train()
    if spec.freeze_norm:
        frozen = model
    elif spec.freeze_encoder_norm:
        frozen = model.get_submodule("encoder")
    else:
        return
    for module in frozen.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def check_batches(recipe: Recipe, processes: int) -> None:
    """Every process takes an equal part of each batch."""
    for phase in recipe.phases:
        if phase.batch % processes:
            raise ConfigError(
                f"a batch of {phase.batch} pairs cannot be shared by {processes} processes equally"
            )


def describe(recipe: Recipe, step: int, card: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and card of the model's file; what fine-tuning did stands beside what its start's card says."""
    provenance = {"recipe": recipe.name, "steps": step}
    if "fine_tuned" not in card:
        return recipe.name, {**card, **provenance}
    tuned = {**card["fine_tuned"], **provenance}
    return f"{tuned['from']}+{recipe.name}", {**card, "fine_tuned": tuned}


def inherited_card(start: ModelFile) -> dict[str, Any]:
    """What a fine-tuned model's file says of its start: its whole card, and which file it was."""
    if not start.trained:
        return {}
    note = "all that is not said here is of the model it started from, the calibration of its pair_score too"
    tuned = {"from": start.name, "sha256": start.sha256, "note": note}
    if "fine_tuned" in start.card:
        tuned["earlier"] = start.card["fine_tuned"]
    return {**start.card, "fine_tuned": tuned}

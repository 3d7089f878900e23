"""The training loop, in the order in which things happen.

Every step draws its randomness from a seed made of the recipe's seed, the step and the process, so a run that
was killed and resumed takes exactly the steps that an unbroken one takes. Ctrl-C ends it after a whole step.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coam.data.posed import PosedSource
from coam.data.sample import PairSource
from coam.errors import ConfigError, DataError, MissingExtraError
from coam.models.encoders import load_pretrained
from coam.models.registry import (
    DescriptorModel,
    ModelFile,
    architecture_of,
    build_model,
    load_model,
    save_model,
)
from coam.training.checkpoint import load_checkpoint, save_checkpoint
from coam.training.config import LossSpec, Recipe
from coam.training.log import Clock, append_line, check_finite, drop_lines_after, summarise
from coam.training.objective import Objective
from coam.training.objective_posed import EpipolarObjective
from coam.training.schedule import phase_of, start_average
from coam.training.step import Step, build_optimiser, set_training_mode
from coam.training.stopping import Stopped, stop_requests

Report = Callable[[dict[str, float]], None]
MODEL, CHECKPOINT, LOG = "model.safetensors", "checkpoint.safetensors", "log.jsonl"


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    model: DescriptorModel  # with the averaged weights
    step: int
    finished: bool  # False: the time budget ended it; run again to go on
    seconds: float
    first_process: bool = True  # False in the others of a run on several devices
    taken: int = 1  # steps of this call; 0: the run was complete before


def build_start(recipe: Recipe, root: Path) -> ModelFile:
    """The model a recipe starts from, with the card of the one it fine-tunes (empty for a new one)."""
    spec = recipe.model
    if spec.start is not None:
        return load_model(spec.start)
    torch.manual_seed(recipe.seed)
    model = build_model(spec.architecture, spec.config)
    if spec.encoder_weights is not None:
        load_pretrained(model.encoder, root / spec.encoder_weights)
    return ModelFile(model, recipe.name, spec.architecture, trained=False)


def train(
    recipe: Recipe,
    source: PairSource | PosedSource,
    model: DescriptorModel,
    folder: Path,
    fabric: Any = None,
    budget_seconds: float = math.inf,
    report: Report | None = None,
    card: dict[str, Any] | None = None,
) -> Outcome:
    """Train until the recipe's steps are done or the time is over; goes on from a checkpoint in `folder`.

    `report` gets every line of the log. `card` goes into the model's file, with recipe and steps added.
    Ctrl-C and SIGTERM let the step under way end, save everything, and raise `Stopped`.
    """
    start_time = time.monotonic()
    fabric = fabric or make_fabric()
    check_batches(recipe, fabric.world_size)
    make_folder(folder)
    checkpoint = folder / CHECKPOINT
    model = model.to(fabric.device)
    if fabric.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = build_optimiser(model, recipe.optimiser)
    average = start_average(model)
    step = load_checkpoint(checkpoint, recipe, model, average, optimiser) if checkpoint.exists() else 0
    losses = build_objective(model, recipe.loss)
    objective, wrapped = fabric.setup(losses, optimiser)
    take_step = Step(recipe, source, model, losses, objective, wrapped, average, fabric)
    set_training_mode(model, recipe.optimiser)
    if fabric.is_global_zero:
        drop_lines_after(folder / LOG, step)  # a killed run may have logged steps that it did not save
    clock = Clock(fabric.device)
    first_step, last, signalled = step, step >= recipe.steps, None

    with stop_requests() as request:
        while not last:
            figures, norm = take_step(step)
            step += 1
            clock.add(phase_of(recipe, step - 1).batch)
            over, signalled = time.monotonic() - start_time >= budget_seconds, request.number
            if fabric.world_size > 1:  # all must stop at the same step, so the first one looks for all
                over, signalled = fabric.broadcast((over, signalled))
            last = over or signalled is not None or step == recipe.steps
            if last or step % recipe.log_every == 0 or step % recipe.save_every == 0:
                line = summarise(figures, norm, step, clock)
                if fabric.is_global_zero:
                    append_line(folder / LOG, line, report)
                check_finite(line, checkpoint)  # before anything broken is saved
            if fabric.is_global_zero and (last or step % recipe.save_every == 0):
                save_checkpoint(checkpoint, step, recipe, model, average, optimiser)

    averaged = build_model_like(model, average)
    if fabric.is_global_zero:
        name, full_card = describe(recipe, step, card or {})
        save_model(averaged, folder / MODEL, name, full_card)
    fabric.barrier()
    if signalled is not None and step < recipe.steps:
        raise Stopped(step, signalled, fabric.is_global_zero)
    seconds = time.monotonic() - start_time
    finished, taken = step >= recipe.steps, step - first_step
    return Outcome(averaged, step, finished, seconds, fabric.is_global_zero, taken)


def build_objective(model: DescriptorModel, spec: LossSpec) -> Objective | EpipolarObjective:
    """The losses by name: of known correspondences, or of known cameras."""
    return EpipolarObjective(model, spec) if spec.kind == "epipolar" else Objective(model, spec)


def describe(recipe: Recipe, step: int, card: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Name and card of the model's file; what fine-tuning did stands beside what its start's card says."""
    provenance = {"recipe": recipe.name, "steps": step}
    if "fine_tuned" not in card:
        return recipe.name, {**card, **provenance}
    tuned = {**card["fine_tuned"], **provenance}
    return f"{tuned['from']}+{recipe.name}", {**card, "fine_tuned": tuned}


def make_fabric(device: str = "auto", devices: int = 1) -> Any:
    """Lightning Fabric: "auto" is CUDA where there is one; more than one device train together (DDP)."""
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise MissingExtraError("lightning-fabric", "train") from error
    if device not in ("auto", "cpu", "cuda"):
        raise ConfigError(f"cannot train on {device!r}; choose auto, cpu or cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("there is no CUDA device here; use --device cpu")
    chosen = "cuda" if device != "cpu" and torch.cuda.is_available() else "cpu"
    if chosen == "cuda" and devices > torch.cuda.device_count():
        raise ConfigError(f"there are {torch.cuda.device_count()} CUDA devices, not {devices}")
    fabric = Fabric(accelerator=chosen, devices=devices, strategy="ddp" if devices > 1 else "auto")
    fabric.launch()
    return fabric


def check_batches(recipe: Recipe, processes: int) -> None:
    """Every process takes an equal part of each batch."""
    for phase in recipe.phases:
        if phase.batch % processes:
            raise ConfigError(
                f"a batch of {phase.batch} pairs cannot be shared by {processes} processes equally"
            )


def make_folder(folder: Path) -> None:
    """Make the run's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made a folder ({error.strerror}); choose another") from error


def build_model_like(model: DescriptorModel, state: dict[str, Tensor]) -> DescriptorModel:
    """A copy of the network with other weights, in evaluation mode, on the CPU."""
    copy = build_model(architecture_of(model), dataclasses.asdict(model.config))
    copy.load_state_dict({key: value.detach().cpu() for key, value in state.items()})
    return copy.eval()

"""The training loop: resume, take steps, log, save checkpoints, stop when time is over or someone asks.

It is the same for everything that is trained; what a step does is the caller's. A step draws its randomness
from a seed made of the recipe's seed, the step and the process, so a run that was killed and resumed takes
exactly the steps that an unbroken one takes. Ctrl-C and SIGTERM end it after a whole step.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor, nn

from coam.errors import ConfigError, DataError, MissingExtraError
from coam.store.lock import folder_lock
from coam.training.checkpoint import TrainState, load_checkpoint, save_checkpoint
from coam.training.config import RunSpec
from coam.training.log import Report, RunLog, check_finite, drop_lines_after
from coam.training.stopping import Stopped, stop_requests

MODEL, CHECKPOINT, LOG = "model.safetensors", "checkpoint.safetensors", "log.jsonl"
Network = TypeVar("Network", bound=nn.Module)


@dataclass(frozen=True)
class Outcome(Generic[Network]):
    """What a run leaves behind."""

    model: Network  # with the averaged weights
    step: int
    finished: bool  # False: the time budget ended it; run again to go on
    seconds: float
    first_process: bool = True  # False in the others of a run on several devices
    taken: int = 1  # steps of this call; 0: the run was complete before


class Run:
    """A training in its folder, which goes on from the checkpoint that it finds there."""

    def __init__(
        self,
        recipe: RunSpec,
        state: TrainState,
        folder: Path,
        fabric: Any,
        report: Report | None = None,
        started: float | None = None,
    ) -> None:
        """`report` gets every line of the log; `started` is when the time began to run (`time.monotonic`)."""
        self.recipe, self.state, self.folder, self.fabric, self.report = recipe, state, folder, fabric, report
        self.started = time.monotonic() if started is None else started
        self.signalled: int | None = None  # number of the signal that asked to stop
        make_folder(folder)
        if (folder / CHECKPOINT).exists():
            load_checkpoint(folder / CHECKPOINT, recipe, state)
        if fabric.is_global_zero:  # a killed run may have logged steps that it did not save
            drop_lines_after(folder / LOG, state.step)
        self.first_step = state.step

    @property
    def finished(self) -> bool:
        """Whether the steps, or the whole of the time that stands for them, are over."""
        return self.state.step >= self.recipe.steps or (self.state.progress or 0.0) >= 1.0

    def seconds(self) -> float:
        """Since the run was started."""
        return time.monotonic() - self.started

    def take_steps(
        self, take_step: Callable[[], tuple[dict[str, Tensor], int]], is_over: Callable[[], bool]
    ) -> None:
        """Take steps until the run is finished, `is_over` says so after one, or a signal comes.

        `take_step` returns figures (with "loss" and "gradient") and the number of pairs it learned from.
        """
        state, fabric, last = self.state, self.fabric, self.finished
        log = RunLog(self.folder / LOG, fabric.device, self.report, fabric.is_global_zero)
        with stop_requests() as request:
            while not last:
                figures, pairs = take_step()
                state.step += 1
                log.pairs += pairs
                over, self.signalled = is_over(), request.number
                if fabric.world_size > 1:  # all must stop at the same step, so the first one looks for all
                    over, self.signalled = fabric.broadcast((over, self.signalled))
                last = over or self.signalled is not None or self.finished
                saves = last or state.step % self.recipe.save_every == 0
                if saves or state.step % self.recipe.log_every == 0:
                    line = log.write(figures, state.step, state.progress)
                    check_finite(line, self.folder / CHECKPOINT)  # before anything broken is saved
                if saves and fabric.is_global_zero:
                    save_checkpoint(self.folder / CHECKPOINT, self.recipe, state)

    def end(self, model: Network) -> Outcome[Network]:
        """The outcome, once the model is saved; raises `Stopped` where a signal ended the run early."""
        self.fabric.barrier()
        first_process = self.fabric.is_global_zero
        if self.signalled is not None and not self.finished:
            raise Stopped(self.state.step, self.signalled, first_process)
        taken = self.state.step - self.first_step
        return Outcome(model, self.state.step, self.finished, self.seconds(), first_process, taken)


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


def to_device(network: Network, device: torch.device) -> Network:
    """The network where it is trained; on CUDA in the layout, and with the products, that are fast there."""
    network = network.to(device)
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        network = network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


def run_lock(folder: Path, fabric: Any) -> AbstractContextManager[None]:
    """The run's folder for this run alone; the first of its processes has the lock for all."""
    return folder_lock(folder) if fabric.is_global_zero else nullcontext()


def make_folder(folder: Path) -> None:
    """Make the run's folder."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"{folder}: cannot be made a folder ({error.strerror}); choose another") from error


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of a step of one process."""
    return (seed * 1_000_003 + step) * 1_009 + rank


def seed_step(generator: torch.Generator, seed: int, step: int, rank: int) -> None:
    """One seed per step and process, for the data and for the losses' own draws."""
    value = step_seed(seed, step, rank)
    generator.manual_seed(value)
    torch.manual_seed(value)

"""The training loop, in the order in which things happen.

Every step draws its randomness from a seed made of the recipe's seed, the step and the process, so a run that was
killed and resumed takes exactly the steps that an unbroken one takes.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coam.data.sample import PairSource
from coam.errors import CoamError, MissingExtraError
from coam.models.encoders import load_pretrained
from coam.models.registry import DescriptorModel, build_model, load_model, save_model
from coam.training.checkpoint import load_checkpoint, save_checkpoint
from coam.training.config import OptimiserSpec, Phase, Recipe
from coam.training.objective import Objective
from coam.training.schedule import learning_rate_factor, phase_of, start_average, update_average

WATCHED = ("loss", "descriptor", "coarse", "fine", "score", "accuracy", "error", "valid", "temperature")


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    model: DescriptorModel  # with the averaged weights
    step: int
    finished: bool  # False: the time budget ended it; run again to go on
    seconds: float


def build_start(recipe: Recipe, root: Path) -> DescriptorModel:
    """The model a recipe starts from."""
    spec = recipe.model
    if spec.start is not None:
        return load_model(spec.start).model
    torch.manual_seed(recipe.seed)
    model = build_model(spec.architecture, spec.config)
    if spec.encoder_weights is not None:
        load_pretrained(model.encoder, root / spec.encoder_weights)
    return model


def build_optimiser(model: nn.Module, spec: OptimiserSpec) -> torch.optim.AdamW:
    """AdamW; the pretrained encoder learns slower, and vectors (norms, biases) do not decay."""
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            groups.setdefault((name.startswith("encoder."), parameter.ndim > 1), []).append(parameter)
    cuda = next(model.parameters()).is_cuda
    settings: list[dict[str, Any]] = []
    for (in_encoder, is_matrix), parameters in groups.items():
        rate = spec.lr * (spec.encoder_factor if in_encoder else 1.0)
        settings.append(
            {
                "params": parameters,
                "lr": torch.tensor(rate, device="cuda") if cuda else rate,  # a CUDA graph reads it from the device
                "base_lr": rate,
                "weight_decay": spec.weight_decay if is_matrix else 0.0,
            }
        )
    return torch.optim.AdamW(settings, fused=cuda, capturable=cuda)


def set_learning_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Give every group `factor` times its own rate."""
    for group in optimiser.param_groups:
        rate = group["base_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


class Step:
    """One optimiser step: draw a batch, forward, backward, update weights and their average.

    On CUDA the whole step is recorded once per phase as a graph and then replayed: it consists of some thousands of
    small operations, and launching them one by one takes longer than running them.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: PairSource,
        model: DescriptorModel,
        losses: Objective,
        objective: nn.Module,
        optimiser: Any,
        average: dict[str, Tensor],
        fabric: Any,
    ) -> None:
        self.recipe, self.source, self.model = recipe, source, model
        self.losses, self.objective = losses, objective  # bare, and as Fabric wraps it
        self.optimiser, self.average, self.fabric = optimiser, average, fabric
        device = fabric.device
        self.generator = (
            torch.cuda.default_generators[device.index or 0]
            if device.type == "cuda"
            else torch.Generator(device=device)
        )
        self.keep = torch.ones((), device=device)  # share of the average that is kept
        self.use_graph = device.type == "cuda" and fabric.world_size == 1
        self.phase: Phase | None = None
        self.graph: Any = None
        self.eager_left = 0
        self.result: tuple[dict[str, Tensor], Tensor] | None = None

    def __call__(self, step: int) -> tuple[dict[str, Tensor], Tensor]:
        """Take step number `step`; returns the figures and the gradient norm."""
        optimiser, phase = self.recipe.optimiser, phase_of(self.recipe, step)
        seed_step(self.generator, self.recipe.seed, step, self.fabric.global_rank)
        set_learning_rate(
            self.optimiser,
            learning_rate_factor(step, self.recipe.steps, optimiser.warmup, optimiser.final_factor),
        )
        self.keep.fill_(min(optimiser.ema, (1 + step) / (10 + step)))
        if phase != self.phase:
            self.phase, self.graph, self.result, self.eager_left = phase, None, None, 4
            self.losses.use_compiled(phase.compile and self.use_graph)
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

    def _take(self, phase: Phase) -> tuple[dict[str, Tensor], Tensor]:
        share = phase.batch // self.fabric.world_size
        batch = self.source.sample(share, phase.size, phase.points, self.generator)
        self.optimiser.zero_grad(set_to_none=True)
        figures = self.objective(**vars(batch))
        self.fabric.backward(figures["loss"])
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimiser.clip)
        self.optimiser.step()
        update_average(self.average, self.model, self.keep)
        return {key: value.detach() for key, value in figures.items()}, norm

    def _on_side_stream(self, phase: Phase) -> tuple[dict[str, Tensor], Tensor]:
        stream = torch.cuda.Stream()
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


def train(
    recipe: Recipe,
    source: PairSource,
    model: DescriptorModel,
    folder: Path,
    fabric: Any = None,
    budget_seconds: float = math.inf,
    report: Callable[[dict[str, float]], None] | None = None,
) -> Outcome:
    """Train until the recipe's steps are done or the time is over; goes on from a checkpoint in `folder`."""
    start_time = time.monotonic()
    fabric = fabric or single_device()
    folder.mkdir(parents=True, exist_ok=True)
    checkpoint = folder / "checkpoint.safetensors"
    model = model.to(fabric.device)
    if fabric.device.type == "cuda":
        torch.set_float32_matmul_precision("high")
        model = model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimiser = build_optimiser(model, recipe.optimiser)
    average = start_average(model)
    step = load_checkpoint(checkpoint, recipe, model, average, optimiser) if checkpoint.exists() else 0
    losses = Objective(model, recipe.loss)
    objective, wrapped = fabric.setup(losses, optimiser)
    take_step = Step(recipe, source, model, losses, objective, wrapped, average, fabric)
    clock = Clock(fabric.device)
    set_training_mode(model, recipe.optimiser)

    while step < recipe.steps and time.monotonic() - start_time < budget_seconds:
        figures, norm = take_step(step)
        step += 1
        clock.add(phase_of(recipe, step - 1).batch)
        if step % recipe.log_every == 0 or step == recipe.steps:
            line = summarise(figures, norm, step, clock)
            if fabric.is_global_zero:
                log(folder / "log.jsonl", line, report)
            check_finite(line, checkpoint)
        if fabric.is_global_zero and step % recipe.save_every == 0:
            save_checkpoint(checkpoint, step, recipe, model, average, optimiser)

    averaged = build_model_like(model, average)
    if fabric.is_global_zero:
        save_checkpoint(checkpoint, step, recipe, model, average, optimiser)
        save_model(averaged, folder / "model.safetensors", recipe.name, {"recipe": recipe.name, "steps": step})
    return Outcome(averaged, step, step >= recipe.steps, time.monotonic() - start_time)


def single_device() -> Any:
    """Lightning Fabric on the one best device."""
    try:
        from lightning_fabric import Fabric
    except ImportError as error:
        raise MissingExtraError("lightning-fabric", "train") from error
    fabric = Fabric(accelerator="cuda" if torch.cuda.is_available() else "cpu", devices=1)
    fabric.launch()
    return fabric


def seed_step(generator: torch.Generator, seed: int, step: int, rank: int) -> None:
    """One seed per step and process, for the data and for the losses' own draws."""
    value = (seed * 1_000_003 + step) * 1_009 + rank
    generator.manual_seed(value)
    torch.manual_seed(value)


def set_training_mode(model: nn.Module, spec: OptimiserSpec) -> None:
    """Training mode; the encoder's batch statistics stay those of its pretraining if the recipe says so."""
    model.train()
    if spec.freeze_encoder_norm:
        for module in model.get_submodule("encoder").modules():
            if isinstance(module, nn.BatchNorm2d):
                module.eval()


def build_model_like(model: DescriptorModel, state: dict[str, Tensor]) -> DescriptorModel:
    """A copy of the network with other weights, in evaluation mode, on the CPU."""
    import dataclasses

    from coam.models.registry import architecture_of

    copy = build_model(architecture_of(model), dataclasses.asdict(model.config))
    copy.load_state_dict({key: value.detach().cpu() for key, value in state.items()})
    return copy.eval()


class Clock:
    """How many pairs a second; read only when asked, because reading waits for the device."""

    def __init__(self, device: torch.device) -> None:
        self.cuda = device.type == "cuda"
        self.start, self.pairs = time.perf_counter(), 0

    def add(self, pairs: int) -> None:
        """Count the pairs of a step."""
        self.pairs += pairs

    def pairs_per_second(self) -> float:
        """Since the last reading."""
        if self.cuda:
            torch.cuda.synchronize()
        now = time.perf_counter()
        rate = self.pairs / (now - self.start)
        self.start, self.pairs = now, 0
        return rate


def summarise(figures: dict[str, Tensor], norm: Tensor, step: int, clock: Clock) -> dict[str, float]:
    """One line of the log."""
    values = torch.stack([figures[key].float() for key in WATCHED] + [norm.float()]).tolist()
    line = {"step": float(step), **dict(zip((*WATCHED, "gradient"), values, strict=True))}
    line["pairs_per_second"] = clock.pairs_per_second()
    return line


def log(path: Path, line: dict[str, float], report: Callable[[dict[str, float]], None] | None) -> None:
    """Append to the JSON-lines file and tell whoever watches."""
    with path.open("a") as file:
        file.write(json.dumps({key: round(value, 6) for key, value in line.items()}) + "\n")
    if report is not None:
        report(line)


def check_finite(line: dict[str, float], checkpoint: Path) -> None:
    """Stop before a broken step is saved."""
    if not math.isfinite(line["loss"]) or not math.isfinite(line["gradient"]):
        raise CoamError(
            f"the loss is not finite at step {line['step']:.0f}; lower the learning rate and go on from {checkpoint.name}"
        )

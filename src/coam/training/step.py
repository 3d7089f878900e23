"""One optimiser step: draw a batch, forward, backward, update the weights and their average."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from coam.data.posed import PosedSource
from coam.data.sample import PairSource, is_recordable
from coam.models.registry import DescriptorModel
from coam.tensors import exact_products
from coam.training.config import OptimiserSpec, Phase, Recipe
from coam.training.objective import Objective
from coam.training.objective_posed import EpipolarObjective
from coam.training.schedule import learning_rate_factor, phase_of, update_average


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
                # A CUDA graph reads the rate from the device.
                "lr": torch.tensor(rate, device="cuda") if cuda else rate,
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

    On CUDA the whole step is recorded once per phase as a graph and then replayed: it consists of some
    thousands of small operations, and launching them one by one takes longer than running them.
    """

    def __init__(
        self,
        recipe: Recipe,
        source: PairSource | PosedSource,
        model: DescriptorModel,
        losses: Objective | EpipolarObjective,
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
        self.use_graph = device.type == "cuda" and fabric.world_size == 1 and is_recordable(source)
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
            learning_rate_factor(
                step, self.recipe.steps, optimiser.warmup, optimiser.final_factor, optimiser.halve_every
            ),
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
        with exact_products():  # rounded positions would be wrong ones
            batch = self.source.sample(share, phase.size, phase.points, self.generator)
        self.optimiser.zero_grad(set_to_none=True)
        figures = self.objective(**vars(batch))
        self.fabric.backward(figures["loss"])
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.recipe.optimiser.clip)
        self.optimiser.step()
        update_average(self.average, self.model, self.keep)
        return {key: value.detach() for key, value in figures.items()}, norm

    def _on_side_stream(self, phase: Phase) -> tuple[dict[str, Tensor], Tensor]:
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


def seed_step(generator: torch.Generator, seed: int, step: int, rank: int) -> None:
    """One seed per step and process, for the data and for the losses' own draws."""
    value = (seed * 1_000_003 + step) * 1_009 + rank
    generator.manual_seed(value)
    torch.manual_seed(value)


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

"""The training of the stylizer: its step, its course by steps and time, its figures on held-out photos."""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from coam.errors import DataError
from coam.models.network import DescriptorNetwork
from coam.models.registry import config_from_dict, load_model
from coam.stylization.network import StylizerConfig, StylizerNetwork, save_network
from coam.stylization.objective import Discriminator, backward, sample_batch
from coam.stylization.pairs import StylePairs, load_pairs
from coam.stylization.recipe import StylizeRecipe
from coam.training.checkpoint import TrainState
from coam.training.log import Report
from coam.training.loop import MODEL, Outcome, Run, make_fabric, run_lock, seed_step, to_device
from coam.training.optimiser import (
    adamw,
    average_decay,
    averaged_copy,
    learning_rate_factor,
    parameter_group,
    set_learning_rate,
    update_average,
)

FINEST = 10_000  # parts into which the learning rate's course is cut
WEIGHT_DECAY = 0.01
CLIP = 1.0  # largest gradient norm of each network
EXAMPLES, SHOWN = 8, 4  # of each set of held-out photos: judged, and drawn


class StylizerStep:
    """One step: draw a batch, match it, learn from it."""

    def __init__(self, recipe: StylizeRecipe, device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device = recipe, device
        network = StylizerNetwork(config_from_dict(StylizerConfig, recipe.network))
        self.network = to_device(network, device)
        self.judge = to_device(Discriminator(), device)
        self.parts: list[nn.Module] = [self.network.mender, self.network.refiner, self.judge]
        rates = (recipe.lr, recipe.refiner_lr, recipe.judge_lr)
        groups = [
            parameter_group(
                part.parameters(),
                rate,
                betas=(0.5, 0.99) if part is self.judge else (0.9, 0.99),
                weight_decay=WEIGHT_DECAY,
            )
            for part, rate in zip(self.parts, rates, strict=True)
        ]
        self.state = TrainState(self.network, adamw(groups), "network", {"judge": self.judge}, progress=0.0)
        self.generator = torch.Generator(device=device)
        self.matcher: DescriptorNetwork
        self.pairs: StylePairs

    def load_data(self, root: Path) -> None:
        """The matcher, which stays as it is, and all photos."""
        recipe = self.recipe
        self.matcher = load_model(recipe.matcher).model.to(self.device).eval().requires_grad_(False)
        self.pairs = load_pairs(
            recipe.sources, root, self.device, side=recipe.bank_side, worlds=recipe.worlds,
            max_groups=recipe.max_groups, adain=recipe.adain, styles=recipe.styles, seed=recipe.seed,
        )  # fmt: skip

    def __call__(self) -> tuple[dict[str, Tensor], int]:
        """Take the next step; returns its figures and the number of pairs."""
        recipe, state = self.recipe, self.state
        step, progress = state.step, state.progress or 0.0
        phase = recipe.phase_at(progress)
        seed_step(self.generator, recipe.seed, step, 0)
        course = learning_rate_factor(int(progress * FINEST), FINEST, 0, recipe.final_factor)
        set_learning_rate(state.optimiser, course * min(1.0, (step + 1) / recipe.warmup))
        with torch.no_grad():
            batch = self.pairs.sample(phase.batch, phase.size, self.generator)
        sampled = sample_batch(self.matcher, batch, recipe.descriptor_noise, self.generator)
        self.network.train()
        state.optimiser.zero_grad(set_to_none=True)
        figures = backward(
            self.network, self.judge, batch, sampled, recipe, refining=progress >= recipe.refine_from
        )
        norms = [nn.utils.clip_grad_norm_(part.parameters(), CLIP) for part in self.parts]
        state.optimiser.step()
        decay = torch.tensor(average_decay(recipe.ema, step), device=self.device)
        update_average(state.average, self.network, decay)
        return {**figures, "gradient": norms[0]}, phase.batch


class Course:
    """How far a run is, by its steps or by the time that is left for it, whichever is further."""

    def __init__(self, state: TrainState, steps: int, seconds: float) -> None:
        self.state, self.steps, self.seconds = state, steps, seconds
        self.began, self.first = time.monotonic(), state.progress or 0.0

    def is_over(self) -> bool:
        """Called after each step: go on to where the run is now."""
        spent = (time.monotonic() - self.began) / self.seconds if self.seconds > 0 else 1.0
        by_time = self.first + (1 - self.first) * min(1.0, spent)
        self.state.progress = min(1.0, max(self.state.step / self.steps, by_time))
        return self.state.progress >= 1.0


def train_stylizer(
    recipe: StylizeRecipe,
    root: Path,
    folder: Path,
    minutes: float = math.inf,
    device: str = "auto",
    report: Report | None = None,
) -> Outcome[StylizerNetwork]:
    """Train on the photos below `root` until the steps or the minutes are over; goes on from a checkpoint.

    `folder` gets model.safetensors, log.jsonl, checkpoint.safetensors and panels of held-out photos. The
    minutes include the loading of the photos. Ctrl-C and SIGTERM let the step under way end, save everything
    but the panels, and raise `Stopped`.
    """
    started = time.monotonic()
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; --data names the one that holds the recipe's photos")
    fabric = make_fabric(device)
    with run_lock(folder, fabric):
        step = StylizerStep(recipe, fabric.device)
        run = Run(recipe, step.state, folder, fabric, report, started)
        step.load_data(root)
        course = Course(step.state, recipe.steps, minutes * 60 - run.seconds())
        run.take_steps(step, course.is_over)
        network = averaged_copy(step.network, step.state.average)
        card: dict[str, Any] = {
            "licence": "Apache-2.0",
            "recipe": recipe.name,
            "steps": step.state.step,
            "matcher": recipe.matcher,
            "seconds": round(run.seconds()),
        }
        if run.finished:
            card["held_out"] = validate(recipe, network.to(fabric.device), step.matcher, root, folder)
        save_network(network.cpu(), folder / MODEL, card)
        return run.end(network)


@torch.no_grad()
def validate(
    recipe: StylizeRecipe,
    network: StylizerNetwork,
    matcher: DescriptorNetwork,
    root: Path,
    folder: Path,
) -> dict[str, float]:
    """Mean L1 on worlds of held-out photos, one panel each in `folder`; empty where there are none."""
    from coam.stylization.guided import to_bytes
    from coam.stylization.panel import draw_row

    device = next(network.parameters()).device
    sources = tuple(source for source in recipe.validation if (root / source.path).is_dir())
    sums: dict[str, list[float]] = {}
    size = recipe.phases[-1].size
    for source in sources:
        pairs = load_pairs((source,), root, device, side=recipe.bank_side, worlds=0.0)
        generator = torch.Generator(device=device).manual_seed(0)
        batch = pairs.sample(EXAMPLES, size, generator)
        sampled = sample_batch(matcher, batch, 0.0, generator)
        stage1, both = network(batch.view, batch.style, sampled.colours, sampled.evidence)
        rows = {
            "view": batch.view, "style": batch.style, "sampled": sampled.colours,
            "stage1": stage1, "stage2": both, "answer": batch.answer,
        }  # fmt: skip
        common = batch.common.float()
        for name in ("view", "sampled", "stage1", "stage2"):
            difference = (rows[name] - batch.answer).abs().mean(dim=1, keepdim=True) * common
            per_pair = difference.sum(dim=(1, 2, 3)) / common.sum(dim=(1, 2, 3)).clamp(min=1)
            sums.setdefault(name, []).extend(per_pair.tolist())
        label = source.path.replace("/", "_")
        for i in range(SHOWN):
            row = draw_row({name: to_bytes(pictures[i]) for name, pictures in rows.items()}, size)
            row.save(folder / f"panel_{label}_{i}.png")
    return {name: round(sum(values) / len(values), 5) for name, values in sums.items()}

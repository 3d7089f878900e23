"""The training of the stylizer, in the order in which things happen.

On a machine without the command line: python -m coam.stylization.train ROOT OUT --minutes 4
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from coam.errors import ConfigError, DataError, WeightsError
from coam.models.registry import DescriptorModel, config_from_dict, load_model
from coam.storage import atomic_write
from coam.stylization.discriminator import Discriminator
from coam.stylization.network import StylizerConfig, StylizerNetwork
from coam.stylization.objective import backward, sample_batch
from coam.stylization.pairs import StylePairs, load_pairs
from coam.stylization.recipe import SizePhase, StylizeRecipe, load_stylize_recipe
from coam.stylization.weights import save_network
from coam.tensors import pick_device
from coam.training.log import Clock, append_line, drop_lines_after
from coam.training.schedule import learning_rate_factor, start_average, update_average
from coam.training.step import seed_step, set_learning_rate

Report = Callable[[dict[str, float]], None]
MODEL, CHECKPOINT, LOG = "model.safetensors", "checkpoint.safetensors", "log.jsonl"
MOMENTS = ("step", "exp_avg", "exp_avg_sq")
FINEST = 10_000  # parts into which the learning rate's course is cut


@dataclass(frozen=True)
class Outcome:
    """What a run leaves behind."""

    network: StylizerNetwork  # with the averaged weights
    step: int
    finished: bool  # False: it was cut short; run again to go on
    seconds: float


class Trainer:
    """Networks, optimiser and average of a run."""

    def __init__(self, recipe: StylizeRecipe, device: torch.device) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.device = recipe, device
        self.network = StylizerNetwork(config_from_dict(StylizerConfig, recipe.network)).to(device)
        self.judge = Discriminator().to(device)
        if device.type == "cuda":
            torch.set_float32_matmul_precision("high")
            self.network = self.network.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
            self.judge = self.judge.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.parts: dict[str, tuple[nn.Module, float]] = {
            "mender": (self.network.mender, recipe.lr),
            "refiner": (self.network.refiner, recipe.refiner_lr),
            "judge": (self.judge, recipe.judge_lr),
        }
        self.optimiser = torch.optim.AdamW(
            [
                {
                    "params": list(module.parameters()),
                    "lr": rate,
                    "base_lr": rate,
                    "betas": (0.5, 0.99) if name == "judge" else (0.9, 0.99),
                }
                for name, (module, rate) in self.parts.items()
            ],
            weight_decay=0.01,
        )
        self.average = start_average(self.network)
        self.step, self.progress = 0, 0.0

    def take_step(
        self, matcher: DescriptorModel, pairs: StylePairs, phase: SizePhase, generator: torch.Generator
    ) -> dict[str, Tensor]:
        """Draw a batch, match it, learn from it."""
        recipe = self.recipe
        seed_step(generator, recipe.seed, self.step, 0)
        course = learning_rate_factor(int(self.progress * FINEST), FINEST, 0, recipe.final_factor) * min(
            1.0, (self.step + 1) / recipe.warmup
        )
        set_learning_rate(self.optimiser, course)
        with torch.no_grad():
            batch = pairs.sample(phase.batch, phase.size, generator)
        sampled = sample_batch(matcher, batch, recipe.descriptor_noise, generator)
        self.network.train()
        self.optimiser.zero_grad(set_to_none=True)
        refining = self.progress >= recipe.refine_from
        figures = backward(self.network, self.judge, batch, sampled, recipe, refining)
        norms = [nn.utils.clip_grad_norm_(module.parameters(), 1.0) for module, _ in self.parts.values()]
        figures["gradient"] = norms[0]
        self.optimiser.step()
        keep = min(recipe.ema, (1 + self.step) / (10 + self.step))
        update_average(self.average, self.network, torch.tensor(keep, device=self.device))
        self.step += 1
        return figures

    def averaged(self) -> StylizerNetwork:
        """A copy of the network with the averaged weights, on the CPU."""
        copy = StylizerNetwork(self.network.config)
        copy.load_state_dict({key: value.detach().cpu() for key, value in self.average.items()})
        return copy.eval()

    def save(self, path: Path) -> None:
        """All that a killed run needs to go on."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        tensors |= {f"judge.{k}": v for k, v in self.judge.state_dict().items()}
        tensors |= {f"average.{k}": v for k, v in self.average.items()}
        for name, parameter in self._named_parameters():
            state = self.optimiser.state.get(parameter, {})
            tensors |= {f"moment.{name}.{key}": state[key] for key in MOMENTS if key in state}
        metadata = {
            "step": str(self.step),
            "progress": str(self.progress),
            "recipe": json.dumps(dataclasses.asdict(self.recipe)),
        }
        with atomic_write(path) as temporary:
            save_file(
                {k: v.detach().cpu().clone().contiguous() for k, v in tensors.items()}, temporary, metadata
            )

    def restore(self, path: Path) -> None:
        """Go on from what `save` wrote; a checkpoint of another recipe is refused."""
        try:
            with safe_open(path, framework="pt") as file:
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
                metadata = dict(file.metadata() or {})
            if json.loads(metadata["recipe"]) != json.loads(json.dumps(dataclasses.asdict(self.recipe))):
                raise WeightsError(f"{path}: was made by another recipe; choose another output folder")
            self.step, self.progress = int(metadata["step"]), float(metadata["progress"])
            self.network.load_state_dict(_below("network.", tensors))
            self.judge.load_state_dict(_below("judge.", tensors))
            for key, value in self.average.items():
                value.copy_(tensors[f"average.{key}"])
        except (SafetensorError, OSError, ValueError, KeyError, RuntimeError) as error:
            line = str(error).splitlines()[0]
            raise WeightsError(f"{path}: no checkpoint of this training ({line}); remove it") from error
        for name, parameter in self._named_parameters():
            state = {k: tensors[f"moment.{name}.{k}"] for k in MOMENTS if f"moment.{name}.{k}" in tensors}
            if state:
                self.optimiser.state[parameter] = {
                    k: v if k == "step" else v.to(self.device) for k, v in state.items()
                }

    def _named_parameters(self) -> list[tuple[str, nn.Parameter]]:
        return [
            (f"{part}.{name}", parameter)
            for part, (module, _) in self.parts.items()
            for name, parameter in module.named_parameters()
        ]


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def train_stylizer(
    recipe: StylizeRecipe,
    root: Path,
    folder: Path,
    minutes: float = math.inf,
    device: str = "auto",
    report: Report | None = None,
) -> Outcome:
    """Train on the photos below `root` until the steps or the minutes are over; goes on from a checkpoint.

    `folder` gets model.safetensors, log.jsonl, checkpoint.safetensors and panels of held-out photos. The
    minutes include the loading of the photos.
    """
    start = time.monotonic()
    if not root.is_dir():
        raise DataError(f"{root}: no such folder; --data names the one that holds the recipe's photos")
    chosen = pick_device(device)
    folder.mkdir(parents=True, exist_ok=True)
    trainer = Trainer(recipe, chosen)
    if (folder / CHECKPOINT).exists():
        trainer.restore(folder / CHECKPOINT)
    drop_lines_after(folder / LOG, trainer.step)
    matcher = load_model(recipe.matcher).model.to(chosen).eval().requires_grad_(False)
    pairs = load_pairs(
        recipe.sources, root, chosen, side=recipe.bank_side, worlds=recipe.worlds,
        max_groups=recipe.max_groups, adain=recipe.adain, styles=recipe.styles, seed=recipe.seed,
    )  # fmt: skip
    generator = torch.Generator(device=chosen)
    clock = Clock(chosen)
    began, first_progress = time.monotonic(), trainer.progress
    left = minutes * 60 - (began - start)
    over = trainer.step >= recipe.steps
    while not over:
        figures = trainer.take_step(matcher, pairs, phase_at(recipe, trainer.progress), generator)
        clock.add(phase_at(recipe, trainer.progress).batch)
        spent = (time.monotonic() - began) / left if left > 0 else 1.0
        by_time = first_progress + (1 - first_progress) * min(1.0, spent)
        trainer.progress = min(1.0, max(trainer.step / recipe.steps, by_time))
        over = trainer.progress >= 1.0
        if over or trainer.step % recipe.log_every == 0:
            append_line(folder / LOG, _line(figures, trainer, clock), report)
        if trainer.step % recipe.save_every == 0:
            trainer.save(folder / CHECKPOINT)
    trainer.save(folder / CHECKPOINT)
    network = trainer.averaged()
    seconds = time.monotonic() - start
    card = {
        "licence": "Apache-2.0",
        "recipe": recipe.name,
        "steps": trainer.step,
        "matcher": recipe.matcher,
        "seconds": round(seconds),
    }
    card["held_out"] = validate(recipe, network.to(chosen), matcher, root, folder)
    save_network(network.cpu(), folder / MODEL, card)
    return Outcome(network, trainer.step, trainer.progress >= 1.0, time.monotonic() - start)


def phase_at(recipe: StylizeRecipe, progress: float) -> SizePhase:
    """The phase that holds at this share of the training."""
    return next((phase for phase in recipe.phases if progress < phase.until), recipe.phases[-1])


def _line(figures: dict[str, Tensor], trainer: Trainer, clock: Clock) -> dict[str, float]:
    line = {"step": float(trainer.step), **{key: float(value) for key, value in figures.items()}}
    if not math.isfinite(line["loss"]):
        raise ConfigError(f"the loss is not finite at step {trainer.step}; try a lower learning rate")
    return line | {"progress": trainer.progress, "pairs_per_second": clock.pairs_per_second()}


@torch.no_grad()
def validate(
    recipe: StylizeRecipe,
    network: StylizerNetwork,
    matcher: DescriptorModel,
    root: Path,
    folder: Path,
    examples: int = 8,
) -> dict[str, float]:
    """Mean L1 on worlds of held-out photos, one panel each in `folder`; empty where there are none."""
    from coam.stylization.apply import to_bytes
    from coam.stylization.panel import draw_row

    device = next(network.parameters()).device
    sources = tuple(source for source in recipe.validation if (root / source.path).is_dir())
    sums: dict[str, list[float]] = {}
    size = recipe.phases[-1].size
    for source in sources:
        pairs = load_pairs((source,), root, device, side=recipe.bank_side, worlds=0.0)
        generator = torch.Generator(device=device).manual_seed(0)
        batch = pairs.sample(examples, size, generator)
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
        for i in range(min(examples, 4)):
            row = draw_row({name: to_bytes(pictures[i]) for name, pictures in rows.items()}, size)
            row.save(folder / f"panel_{label}_{i}.png")
    return {name: round(sum(values) / len(values), 5) for name, values in sums.items()}


def print_line(line: dict[str, float]) -> None:
    """A log line for people."""
    shown = {key: value for key, value in line.items() if key not in ("step", "pairs_per_second")}
    figures = "  ".join(f"{key} {value:.4f}" for key, value in shown.items())
    rate = f"{line['pairs_per_second']:.1f} pairs/s"
    print(f"step {line['step']:5.0f}  {figures}  {rate}", file=sys.stderr, flush=True)


def main() -> None:
    """Entry point of `python -m coam.stylization.train`."""
    parser = argparse.ArgumentParser(description="Train the stylizer.")
    parser.add_argument("root", type=Path, help="folder that the recipe's paths start from")
    parser.add_argument("out", type=Path, help="folder for the run")
    parser.add_argument("--recipe", default="stylize", help="stylize, or a .yaml file")
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    recipe = load_stylize_recipe(options.recipe)
    outcome = train_stylizer(recipe, options.root, options.out, options.minutes, options.device, print_line)
    print(f"{outcome.step} steps in {outcome.seconds:.0f} s, wrote {options.out / MODEL}")


if __name__ == "__main__":
    main()

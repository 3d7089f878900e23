"""A whole run by recipe name: build the data, build the model, train, tell how it goes."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch

from coam.training.config import Recipe, load_recipe
from coam.training.loop import Outcome, build_start, single_device, train
from coam.training.sources import build_mixture


def run_recipe(
    recipe: Recipe | str | Path,
    data: Path,
    folder: Path,
    minutes: float = math.inf,
    report: Callable[[dict[str, float]], None] | None = None,
) -> Outcome:
    """Train `recipe` on the data below `data`; everything it leaves lies in `folder`."""
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe)
    model = build_start(recipe, data)
    fabric = single_device()
    source = build_mixture(recipe, data, fabric.device)
    return train(recipe, source, model, folder, fabric, minutes * 60, report)


def print_line(line: dict[str, float]) -> None:
    """A log line for people."""
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    print(
        f"step {line['step']:6.0f}  loss {line['loss']:.3f}  descriptor {line['descriptor']:.3f}"
        f"  coarse {line['coarse']:.3f}  fine {line['fine']:.3f}  score {line['score']:.3f}"
        f"  right {line['accuracy']:.3f}  off {line['error']:.2f} px  T {line['temperature']:.1f}"
        f"  |g| {line['gradient']:.2f}  {line['pairs_per_second']:.0f} pairs/s  {memory:.1f} GiB",
        file=sys.stderr,
        flush=True,
    )

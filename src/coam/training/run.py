"""A whole run by recipe name: build the data, build the model, train, tell how it goes."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import torch

from coam.errors import DataError
from coam.models.registry import ModelFile
from coam.training.config import Recipe, load_recipe
from coam.training.loop import Outcome, Report, build_start, check_batches, make_fabric, train
from coam.training.sources import build_source


def run_recipe(
    recipe: Recipe | str | Path,
    data: Path,
    folder: Path,
    minutes: float = math.inf,
    report: Report | None = None,
    device: str = "auto",
    devices: int = 1,
) -> Outcome:
    """Train `recipe` on the data below `data`; everything it leaves lies in `folder`."""
    if not isinstance(recipe, Recipe):
        recipe = load_recipe(recipe)
    if not data.is_dir():
        raise DataError(f"{data}: no such folder; --data names the one that holds the recipe's sources")
    check_batches(recipe, devices)  # before the other processes are started
    start = build_start(recipe, data)
    fabric = make_fabric(device, devices)
    source = build_source(recipe, data, fabric.device)
    return train(recipe, source, start.model, folder, fabric, minutes * 60, report, inherited_card(start))


def inherited_card(start: ModelFile) -> dict[str, Any]:
    """What a fine-tuned model's file says of its start: its whole card, and which file it was."""
    if not start.trained:
        return {}
    note = "all that is not said here is of the model it started from, the calibration of its pair_score too"
    tuned = {"from": start.name, "sha256": start.sha256, "note": note}
    if "fine_tuned" in start.card:
        tuned["earlier"] = start.card["fine_tuned"]
    return {**start.card, "fine_tuned": tuned}


def print_line(line: dict[str, float]) -> None:
    """A log line for people."""
    memory = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    said_apart = ("step", "loss", "accuracy", "error", "valid", "temperature", "gradient", "pairs_per_second")
    parts = "".join(f"  {key} {value:.3f}" for key, value in line.items() if key not in said_apart)
    print(
        f"step {line['step']:6.0f}  loss {line['loss']:.3f}{parts}"
        f"  right {line['accuracy']:.3f}  off {line['error']:.2f} px  T {line['temperature']:.1f}"
        f"  |g| {line['gradient']:.2f}  {line['pairs_per_second']:.0f} pairs/s  {memory:.1f} GiB",
        file=sys.stderr,
        flush=True,
    )

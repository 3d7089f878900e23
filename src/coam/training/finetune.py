"""Fine-tuning on a folder of photos in a given time, on whatever machine there is."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coam.data.bank import list_photos
from coam.data.sample import PairSource
from coam.errors import ConfigError, DataError
from coam.models.registry import DescriptorModel
from coam.training.config import Phase, Recipe, from_mapping, load_recipe
from coam.training.log import read_log
from coam.training.loop import LOG, Outcome, Report, build_start, make_fabric, make_folder, train
from coam.training.objective import Objective
from coam.training.run import inherited_card
from coam.training.sources import build_mixture
from coam.training.stopping import Stopped

RECIPE = "finetune-photos"
RECIPE_FILE = "recipe.json"  # the recipe as planned, so that a run that goes on keeps its plan
CPU_SIZE, CPU_BATCH, CPU_POINTS = 192, 4, 512
SHARE_FOR_STEPS = 0.85  # of the time; the rest is for the figures before and after
TRIAL_STEPS = {
    "cpu": 2,
    "cuda": 8,
}  # on CUDA the first few are slow: kernels are chosen and a graph is recorded
CHECK_SEED, CHECK_PAIRS = 4_294_967, 16


@dataclass(frozen=True)
class Figures:
    """How well new views of the photos are matched, 0 to 1 and in pixels."""

    right: float  # share of points whose best cell in the other view is the right one (or next to it)
    error: float  # mean distance of the refined position from the truth, in pixels


@dataclass(frozen=True)
class FineTuned:
    """What fine-tuning did."""

    outcome: Outcome
    recipe: Recipe
    photos: int
    before: Figures
    after: Figures
    trained_start: bool  # False: the model it started from had no trained weights


def finetune_photos(
    photos: Path,
    folder: Path,
    minutes: float = 5.0,
    start: str | None = None,
    device: str = "auto",
    report: Report | None = None,
    tell_plan: Callable[[Recipe], None] | None = None,
) -> FineTuned:
    """Fine-tune a model (the shipped one unless `start` names another) on warped views of a folder's photos.

    The number of steps is planned from a short trial so that about `minutes` pass; a run in `folder` that was
    stopped goes on with its own plan. `tell_plan` hears of the plan before the first step.
    """
    began = time.monotonic()
    photos = _checked_folders(photos, folder)
    recipe, planned = _starting_recipe(photos, folder, start)
    count = min(len(list_photos(photos)), recipe.max_groups or sys.maxsize)
    file = build_start(recipe, photos)
    fabric = make_fabric(device)
    recipe = recipe if planned else _for_device(recipe, fabric.device)
    source = build_mixture(recipe, photos, fabric.device)
    before = check(file.model, recipe, source, fabric.device)
    if not planned:
        rate = _trial(recipe, source, file.model, fabric)
        recipe = plan_steps(recipe, rate, SHARE_FOR_STEPS * (minutes * 60 - (time.monotonic() - began)))
        make_folder(folder)
        _write_recipe(recipe, folder / RECIPE_FILE)
    if tell_plan is not None:
        tell_plan(recipe)
    seconds = minutes * 60 - (time.monotonic() - began)
    card = _card(inherited_card(file), recipe, count)
    outcome = train(recipe, source, copy.deepcopy(file.model), folder, fabric, seconds, report, card)
    after = check(outcome.model, recipe, source, fabric.device)
    return FineTuned(outcome, recipe, count, before, after, file.trained)


@torch.no_grad()
def check(model: DescriptorModel, recipe: Recipe, source: PairSource, device: torch.device) -> Figures:
    """Figures on fixed random views that training does not draw (but of the same photos)."""
    model = copy.deepcopy(model).to(device).eval()
    objective, phase = Objective(model, recipe.loss), recipe.phases[-1]
    generator = torch.Generator(device=device).manual_seed(CHECK_SEED)
    right, error = [], []
    for _ in range(math.ceil(CHECK_PAIRS / phase.batch)):
        batch = source.sample(phase.batch, phase.size, phase.points, generator)
        torch.manual_seed(CHECK_SEED)
        figures = objective(**vars(batch))
        right.append(float(figures["accuracy"]))
        error.append(float(figures["error"]))
    return Figures(sum(right) / len(right), sum(error) / len(error))


def plan_steps(recipe: Recipe, pairs_per_second: float, seconds: float) -> Recipe:
    """As many steps of the (one) phase as fit into the time, at most as many as the recipe has."""
    phase = recipe.phases[0]
    steps = max(1, min(phase.steps, int(seconds * pairs_per_second / phase.batch)))
    warmup = max(1, min(recipe.optimiser.warmup, steps // 10))
    log_every = max(1, min(recipe.log_every, steps // 50))
    return replace(
        recipe,
        phases=(replace(phase, steps=steps),),
        optimiser=replace(recipe.optimiser, warmup=warmup),
        log_every=log_every,
        save_every=max(10, min(recipe.save_every, steps // 5)),
    )


def _checked_folders(photos: Path, folder: Path) -> Path:
    if not photos.is_dir():
        raise DataError(f"{photos}: no such folder of photos")
    photos = photos.resolve()
    if folder.resolve().is_relative_to(photos):
        raise ConfigError(f"{folder}: lies inside the folder of photos; choose an output folder elsewhere")
    return photos


def _starting_recipe(photos: Path, folder: Path, start: str | None) -> tuple[Recipe, bool]:
    """The recipe of the run in `folder` if there is one (True), else the packaged one for these photos."""
    recipe = load_recipe(RECIPE)
    model = replace(recipe.model, start=start or recipe.model.start)
    sources = tuple(replace(source, path=str(photos)) for source in recipe.sources)
    recipe = replace(recipe, model=model, sources=sources)
    stored = folder / RECIPE_FILE
    if not stored.exists():
        return recipe, False
    try:
        planned: Recipe = from_mapping(Recipe, json.loads(stored.read_text(encoding="utf-8")), stored.name)
    except (OSError, ValueError) as error:
        raise DataError(f"{stored}: cannot be read; remove the folder to start anew") from error
    if (planned.model, planned.sources) != (model, sources):
        raise ConfigError(f"{folder}: holds a run with other photos or another model; choose another folder")
    return planned, True


def _for_device(recipe: Recipe, device: torch.device) -> Recipe:
    """Small pictures and batches where there is no GPU."""
    if device.type == "cuda":
        return recipe
    steps = recipe.phases[0].steps
    return replace(recipe, phases=(Phase(steps, CPU_SIZE, CPU_BATCH, CPU_POINTS),))


def _trial(recipe: Recipe, source: PairSource, model: DescriptorModel, fabric: Any) -> float:
    """Pairs per second of real training steps, whose result is thrown away."""
    steps = TRIAL_STEPS[fabric.device.type]
    trial = replace(recipe, phases=(replace(recipe.phases[0], steps=steps),), log_every=1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(trial, source, copy.deepcopy(model), Path(folder), fabric)
        except Stopped as stopped:
            raise KeyboardInterrupt from stopped  # of a trial nothing is kept to go on from
        return read_log(Path(folder) / LOG)[-1]["pairs_per_second"]


def _write_recipe(recipe: Recipe, path: Path) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(dataclasses.asdict(recipe), indent=1) + os.linesep, encoding="utf-8")
    temporary.replace(path)


def _card(card: dict[str, Any], recipe: Recipe, photos: int) -> dict[str, Any]:
    phase = recipe.phases[0]
    details = {"photos": photos, "size": phase.size, "batch": phase.batch, "lr": recipe.optimiser.lr}
    return {**card, "fine_tuned": {**card.get("fine_tuned", {}), **details}}

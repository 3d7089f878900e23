"""Fine-tuning on a folder of photos in a given time, on whatever machine there is."""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from coam.data.photo_bank import photos_below
from coam.data.sample import PairSource
from coam.errors import ConfigError, DataError
from coam.models.network import DescriptorNetwork
from coam.store.atomic import write_json
from coam.store.documents import read_json
from coam.training.config import Phase, Recipe, from_mapping, load_recipe
from coam.training.log import Report, read_log
from coam.training.loop import LOG, Outcome, make_fabric, make_folder
from coam.training.objective import CorrespondenceObjective
from coam.training.run import build_start, inherited_card, train
from coam.training.sources import build_mixture
from coam.training.stopping import Stopped

RECIPE = "finetune-photos"
RECIPE_FILE = "recipe.json"  # the recipe as planned, so that a run that goes on keeps its plan
CHECK_SEED = 4_294_967  # of the views on which models are compared; training draws others


@dataclass(frozen=True)
class FinetuneOptions:
    """How the time is spent."""

    cpu_size: int = 192  # pixels of a picture where there is no GPU
    cpu_batch: int = 4  # pairs
    cpu_points: int = 512  # correspondences of a pair
    share_for_steps: float = 0.85  # of the time; the rest is for the figures before and after
    trial_steps_cpu: int = 2
    trial_steps_cuda: int = 8  # the first few are slow: kernels are chosen and a graph is recorded
    check_pairs: int = 16  # pairs on which the model is compared with its start


OPTIONS = FinetuneOptions()


@dataclass(frozen=True)
class Figures:
    """How well new views of the photos are matched, 0 to 1 and in pixels."""

    right: float  # share of points whose best cell in the other view is the right one (or next to it)
    error: float  # mean distance of the refined position from the truth, in pixels


@dataclass(frozen=True)
class FineTuned:
    """What fine-tuning did."""

    outcome: Outcome[DescriptorNetwork]
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
    count = min(len(photos_below(photos)), recipe.max_groups or sys.maxsize)
    file = build_start(recipe, photos)
    fabric = make_fabric(device)
    if not planned and fabric.device.type != "cuda":  # small pictures and batches where there is no GPU
        phase = Phase(recipe.phases[0].steps, OPTIONS.cpu_size, OPTIONS.cpu_batch, OPTIONS.cpu_points)
        recipe = replace(recipe, phases=(phase,))
    source = build_mixture(recipe, photos, fabric.device)
    before = check(file.model, recipe, source, fabric.device)
    if not planned:
        rate = _trial(recipe, source, file.model, fabric)
        recipe = plan_steps(
            recipe, rate, OPTIONS.share_for_steps * (minutes * 60 - (time.monotonic() - began))
        )
        make_folder(folder)
        write_json(folder / RECIPE_FILE, dataclasses.asdict(recipe), indent=1)
    if tell_plan is not None:
        tell_plan(recipe)
    seconds = minutes * 60 - (time.monotonic() - began)
    card = _card(inherited_card(file), recipe, count)
    outcome = train(recipe, source, copy.deepcopy(file.model), folder, fabric, seconds, report, card)
    after = check(outcome.model, recipe, source, fabric.device)
    return FineTuned(outcome, recipe, count, before, after, file.trained)


@torch.no_grad()
def check(model: DescriptorNetwork, recipe: Recipe, source: PairSource, device: torch.device) -> Figures:
    """Figures on fixed random views that training does not draw (but of the same photos)."""
    model = copy.deepcopy(model).to(device).eval()
    objective, phase = CorrespondenceObjective(model, recipe.loss), recipe.phases[-1]
    generator = torch.Generator(device=device).manual_seed(CHECK_SEED)
    found = []
    for _ in range(math.ceil(OPTIONS.check_pairs / phase.batch)):
        batch = source.sample(phase.batch, phase.size, phase.points, generator)
        torch.manual_seed(CHECK_SEED)
        found.append(objective(**batch.tensors()))
    right, error = (sum(float(f[key]) for f in found) / len(found) for key in ("accuracy", "error"))
    return Figures(right, error)


def plan_steps(recipe: Recipe, pairs_per_second: float, seconds: float) -> Recipe:
    """As many steps of the (one) phase as fit into the time, at most as many as the recipe has."""
    phase = recipe.phases[0]
    steps = max(1, min(phase.steps, int(seconds * pairs_per_second / phase.batch)))
    warmup = max(1, min(recipe.optimiser.warmup, steps // 10))
    return replace(
        recipe,
        phases=(replace(phase, steps=steps),),
        optimiser=replace(recipe.optimiser, warmup=warmup),
        log_every=max(1, min(recipe.log_every, steps // 50)),
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
    advice = "remove the folder to start anew"
    try:
        planned: Recipe = from_mapping(Recipe, read_json(stored, dict, advice), stored.name)
    except ConfigError as error:
        raise DataError(f"{stored}: is damaged ({error}); {advice}") from error
    if (planned.model, planned.sources) != (model, sources):
        raise ConfigError(f"{folder}: holds a run with other photos or another model; choose another folder")
    return planned, True


def _trial(recipe: Recipe, source: PairSource, model: DescriptorNetwork, fabric: Any) -> float:
    """Pairs per second of real training steps, whose result is thrown away."""
    cuda = fabric.device.type == "cuda"
    steps = OPTIONS.trial_steps_cuda if cuda else OPTIONS.trial_steps_cpu
    trial = replace(recipe, phases=(replace(recipe.phases[0], steps=steps),), log_every=1)
    with tempfile.TemporaryDirectory() as folder:
        try:
            train(trial, source, copy.deepcopy(model), Path(folder), fabric)
        except Stopped as stopped:
            raise KeyboardInterrupt from stopped  # of a trial nothing is kept to go on from
        return read_log(Path(folder) / LOG)[-1]["pairs_per_second"]


def _card(card: dict[str, Any], recipe: Recipe, photos: int) -> dict[str, Any]:
    phase = recipe.phases[0]
    details = {"photos": photos, "size": phase.size, "batch": phase.batch, "lr": recipe.optimiser.lr}
    return {**card, "fine_tuned": {**card.get("fine_tuned", {}), **details}}

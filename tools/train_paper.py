"""Train the paper's network: first short runs that show what its loss needs to start, then the model itself.

    python tools/train_paper.py study DATA RUNS          # two minutes of a GPU; table at the end
    python tools/train_paper.py train DATA RUNS          # 20 minutes: cdunet-paper-lite1, then its -hinge
    python tools/train_paper.py table docs/paper_study   # their tables from saved figures
    python tools/train_paper.py ablation DATA RUNS       # with and without conditioning: 16 minutes
    python tools/train_paper.py ablation-table docs/paper_ablation

DATA holds what the recipe `cdunet-paper-lite1` names, and photos_val/ and aligned_val/ (tools/ablation.py),
which are held out. Every run leaves RUNS/NAME.json with the figures of every pair.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
from ablation import COLUMNS, SETS, THRESHOLDS, PairFigures, build_sets, cells, score_source
from ablation import short as difference_text
from docs_tables import table_text

from coam.evaluation.metrics.bootstrap import compare_paired
from coam.training.config import ModelSpec, OptimiserSpec, Recipe, load_recipe
from coam.training.log import print_line, read_log
from coam.training.loop import LOG, MODEL, Outcome, make_fabric
from coam.training.objective import build_source
from coam.training.run import build_start, train

RECIPES = ("cdunet-paper-lite1", "cdunet-paper-lite1-hinge")
STUDY_PAIRS = 32  # of each held-out set
ROWS = {
    "published": "as published: hinge, Adam 1e-4, frozen encoder",
    "+ rate 8e-4, encoder trained": "rate 8e-4, encoder trained",
    "+ constant weight": "and c_x without a gradient",
    "+ scaled attention": "and attention logits times 1/64",
    "without conditioning": "that without conditioning",
    "nce": "InfoNCE, conditioned",
}


def variants(base: Recipe) -> dict[str, Recipe]:
    """From the published training one change after the other; then what is left out or put in its place."""

    def model(recipe: Recipe, **changes: object) -> Recipe:
        return replace(recipe, model=replace(recipe.model, config={**recipe.model.config, **changes}))

    def loss(recipe: Recipe, **changes: object) -> Recipe:
        return replace(recipe, loss=replace(recipe.loss, **changes))  # type: ignore[arg-type]

    published = OptimiserSpec(
        lr=1e-4, encoder_factor=0.0, weight_decay=0.0, warmup=1, final_factor=1.0, clip=100.0
    )
    hinge = loss(base, kind="hinge", constant_weight=True)
    unscaled = model(hinge, attention_scale=None)
    learned = loss(unscaled, constant_weight=False)
    return {
        "published": replace(learned, optimiser=published),
        "+ rate 8e-4, encoder trained": learned,
        "+ constant weight": unscaled,
        "+ scaled attention": hinge,
        "without conditioning": model(hinge, conditioning=False),
        "nce": base,
    }


def study(data: Path, runs: Path, steps: int) -> None:
    """Train and measure every variant that has no figures yet."""
    base = load_recipe(RECIPES[0])
    fabric = make_fabric()
    source, held_out = build_source(base, data, fabric.device), build_sets(data, fabric.device)
    runs.mkdir(parents=True, exist_ok=True)
    phase = replace(base.phases[0], steps=steps, compile=False)
    for number, (name, recipe) in enumerate(variants(base).items()):
        result = runs / f"{number}.json"
        if result.exists():
            continue
        warmup = min(recipe.optimiser.warmup, steps // 5)
        recipe = replace(
            recipe,
            phases=(phase,),
            optimiser=replace(recipe.optimiser, warmup=warmup),
            log_every=max(1, steps // 10),
        )
        print(f"== {name}", flush=True)
        folder = runs / str(number)
        outcome = train(recipe, source, build_start(recipe, data).model, folder, fabric, report=print_line)
        model = outcome.model.to(fabric.device)
        figures = {key: score_source(model, pairs, STUDY_PAIRS) for key, pairs in held_out.items()}
        log = [
            {key: line[key] for key in ("step", "descriptor", "accuracy")} for line in read_log(folder / LOG)
        ]
        write_entry(result, name, outcome, figures, {"log": log})
    print(table(runs))


def table(folder: Path) -> str:
    """Share of right matches in training at the start, half-way and at the end; held-out accuracy at 3 px."""
    entries = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    column = THRESHOLDS.index(3.0)
    rows = []
    for entry in entries:
        log = [line["accuracy"] for line in entry["log"]]
        course = " ".join(short(value) for value in (log[0], log[len(log) // 2], log[-1]))
        held_out = [np.mean([pair["accuracy"][column] for pair in entry["pairs"][key]]) for key in SETS]
        rows.append([ROWS.get(entry["variant"], entry["variant"]), course, *map(short, held_out)])
    return table_text(["run", "start / half / end", *SETS], rows)


def short(value: float, sign: str = "") -> str:
    """As the pages have it: .123, or +.123."""
    return f"{value:{sign}.3f}".replace("0.", ".", 1)


def train_models(data: Path, runs: Path, compiled: bool) -> None:
    """Both parts of the model's training, the second from the weights of the first, with held-out figures."""
    fabric = make_fabric()
    first, second = (load_recipe(name) for name in RECIPES)
    source, held_out = build_source(first, data, fabric.device), build_sets(data, fabric.device)
    second = replace(second, model=replace(second.model, start=str(runs / first.name / MODEL)))
    for recipe in (first, second):
        phases = tuple(replace(phase, compile=compiled and phase.compile) for phase in recipe.phases)
        recipe = replace(recipe, phases=phases, log_every=100)
        start = build_start(recipe, data)
        outcome = train(recipe, source, start.model, runs / recipe.name, fabric, report=print_line)
        network = outcome.model.to(fabric.device)
        figures = {key: score_source(network, pairs) for key, pairs in held_out.items()}
        write_entry(runs / f"{recipe.name}.json", recipe.name, outcome, figures)
    print(model_table(runs))


def model_table(folder: Path) -> str:
    """Held-out accuracy of the trained models at every threshold, and what the hinge changed."""
    rows = []
    first, second = (json.loads((folder / f"{name}.json").read_text())["pairs"] for name in RECIPES)
    column = THRESHOLDS.index(3.0)
    for key in SETS:
        a, b = (np.array([pair["accuracy"] for pair in pairs[key]]) for pairs in (first, second))
        change = compare_paired(
            lambda i, a=a: a[i, column].mean(), lambda i, b=b: b[i, column].mean(), list(range(len(a)))
        ).difference
        value, low, high = (short(v, "+") for v in (change.value, change.low, change.high))
        shown = [" ".join(map(short, x.mean(axis=0))) for x in (a, b)]
        rows.append([key, *shown, f"{value} [{low}, {high}]"])
    thresholds = " / ".join(f"{t:g}" for t in THRESHOLDS)
    columns = [f"{len(a)} held-out pairs each", f"after InfoNCE: {thresholds} px", "after the hinge"]
    return table_text([*columns, "difference at 3 px"], rows)


# ---- conditioning and the loss, two seeds each, equal steps

ABLATION_STEPS = (1800, 500)  # of InfoNCE, then of the hinge from its weights
# Names of what InfoNCE leaves and of what the hinge makes of it, by conditioning.
PARTS = {True: ("nce", "full"), False: ("nce-no-conditioning", "no-conditioning")}
# Saved name -> what it is compared with, and its row.
ABLATION = {
    "full": ("full", "InfoNCE, then the paper's hinge"),
    "no-conditioning": ("full", "the same without conditioning"),
    "nce": ("nce", "InfoNCE alone"),
    "nce-no-conditioning": ("nce", "the same without conditioning"),
}


def ablation_recipes(runs: Path, conditioning: bool, seed: int) -> dict[str, Recipe]:
    """Both parts by name; the second starts from what the first leaves in RUNS."""
    first, second = (
        replace(
            recipe, phases=(replace(recipe.phases[0], steps=steps, compile=False),), log_every=100, seed=seed
        )
        for recipe, steps in zip(map(load_recipe, RECIPES), ABLATION_STEPS, strict=True)
    )
    names = PARTS[conditioning]
    first = replace(
        first, model=replace(first.model, config={**first.model.config, "conditioning": conditioning})
    )
    trained = runs.resolve() / f"{names[0]}-{seed}" / MODEL
    return dict(zip(names, (first, replace(second, model=ModelSpec(start=str(trained)))), strict=True))


def ablation(data: Path, runs: Path, seeds: int) -> None:
    """Train the network with and without conditioning; RUNS/NAME-SEED.json and RUNS/NAME-SEED/ of each."""
    fabric = make_fabric()
    base = load_recipe(RECIPES[0])
    source, held_out = build_source(base, data, fabric.device), build_sets(data, fabric.device)
    runs.mkdir(parents=True, exist_ok=True)
    for seed in range(1, seeds + 1):
        for conditioning in PARTS:
            for name, recipe in ablation_recipes(runs, conditioning, seed).items():
                result = runs / f"{name}-{seed}.json"
                if result.exists():
                    continue
                print(f"== {name}, seed {seed}", flush=True)
                start = build_start(recipe, data)
                folder = runs / f"{name}-{seed}"
                outcome = train(recipe, source, start.model, folder, fabric, report=print_line)
                network = outcome.model.to(fabric.device)
                figures = {key: score_source(network, pairs) for key, pairs in held_out.items()}
                write_entry(result, name, outcome, figures, {"seed": seed})


def ablation_table(folder: Path) -> str:
    """Mean accuracy of every variant and set, and its difference to that with conditioning."""
    found = cells(folder, {name: against for name, (against, _) in ABLATION.items()})
    rows = [[ABLATION[name][1], *map(difference_text, row)] for name, row in found.items()]
    return table_text(list(COLUMNS), rows)


def write_entry(
    path: Path,
    name: str,
    outcome: Outcome[Any],
    figures: dict[str, list[PairFigures]],
    more: dict[str, Any] | None = None,
) -> None:
    """What a run leaves."""
    pairs = {key: [asdict(pair) for pair in value] for key, value in figures.items()}
    entry = {"variant": name, "steps": outcome.step, "seconds": round(outcome.seconds), "pairs": pairs}
    path.write_text(json.dumps(entry | (more or {})))


def main() -> None:
    """Parse and do."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("study", "train"):
        command = commands.add_parser(name)
        command.add_argument("data", type=Path)
        command.add_argument("runs", type=Path)
    commands.choices["study"].add_argument("--steps", type=int, default=240)
    commands.choices["train"].add_argument("--no-compile", action="store_true")
    runner = commands.add_parser("ablation")
    runner.add_argument("data", type=Path)
    runner.add_argument("runs", type=Path)
    runner.add_argument("--seeds", type=int, default=2)
    for name in ("table", "ablation-table"):
        commands.add_parser(name).add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "study":
        study(options.data, options.runs, options.steps)
    elif options.command == "train":
        train_models(options.data, options.runs, not options.no_compile)
    elif options.command == "ablation":
        ablation(options.data, options.runs, options.seeds)
    elif options.command == "ablation-table":
        sys.stdout.write(ablation_table(options.folder) + "\n")
    else:
        sys.stdout.write(f"{table(options.folder)}\n\n{model_table(options.folder)}\n")


if __name__ == "__main__":
    main()

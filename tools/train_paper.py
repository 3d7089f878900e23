"""Train the paper's network: first short runs that show what its loss needs to start, then the model itself.

    python tools/train_paper.py study DATA RUNS                 # a minute or two of a GPU; table at the end
    python tools/train_paper.py train DATA RUNS --minutes 20    # RUNS/cdunet-paper-lite1/model.safetensors
    python tools/train_paper.py table docs/paper_study          # the study's table from saved figures

DATA holds what the recipe `cdunet-paper-lite1` names, and photos_val/ and aligned_val/ (tools/ablation.py), which are
held out. Every run of the study leaves RUNS/NAME.json; finished ones are not repeated.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import torch
from ablation import SETS, THRESHOLDS, build_sets, score_source

from coam.training.config import OptimiserSpec, Phase, Recipe, load_recipe
from coam.training.log import print_line, read_log
from coam.training.loop import LOG, make_fabric
from coam.training.objective import build_source
from coam.training.run import build_start, train

RECIPE = "cdunet-paper-lite1"
STUDY_PAIRS = 32  # of each held-out set


def variants(base: Recipe) -> dict[str, Recipe]:
    """From the published training, one change on top of the other; then what is left out or put in its place."""

    def model(recipe: Recipe, **changes: object) -> Recipe:
        return replace(recipe, model=replace(recipe.model, config={**recipe.model.config, **changes}))

    def loss(recipe: Recipe, **changes: object) -> Recipe:
        return replace(recipe, loss=replace(recipe.loss, **changes))  # type: ignore[arg-type]

    published = OptimiserSpec(
        lr=1e-4, encoder_factor=0.0, weight_decay=0.0, warmup=1, final_factor=1.0, clip=100.0
    )
    unscaled = model(base, attention_scale=None)
    learned = loss(unscaled, constant_weight=False)
    return {
        "published": replace(learned, optimiser=published),
        "+ rate 8e-4, encoder trained": learned,
        "+ constant weight": unscaled,
        "+ scaled attention": base,
        "without conditioning": model(base, conditioning=False),
        "nce": loss(base, kind="nce"),
    }


def study(data: Path, runs: Path, steps: int) -> None:
    """Train and measure every variant that has no figures yet."""
    base = load_recipe(RECIPE)
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
        log = [{key: line[key] for key in ("step", "descriptor", "accuracy")} for line in read_log(folder / LOG)]
        entry = {"variant": name, "steps": outcome.step, "seconds": round(outcome.seconds), "log": log}
        pairs = {key: [asdict(pair) for pair in value] for key, value in figures.items()}
        result.write_text(json.dumps({**entry, "pairs": pairs}))
    print(table(runs))


def table(folder: Path) -> str:
    """Share of right matches in training at the start, half-way and at the end; held-out accuracy at 3 px."""
    entries = [json.loads(path.read_text()) for path in sorted(folder.glob("[0-9]*.json"))]
    column = THRESHOLDS.index(3.0)
    lines = [f"{'variant':30s}" + "".join(f"{text:>9s}" for text in ("start", "half", "end", *SETS))]
    for entry in entries:
        log = [line["accuracy"] for line in entry["log"]]
        shown = [log[0], log[len(log) // 2], log[-1]]
        for key in SETS:
            values = [pair["accuracy"][column] for pair in entry["pairs"][key]]
            shown.append(sum(values) / len(values))
        lines.append(f"{entry['variant']:30s}" + "".join(f"{value:9.3f}" for value in shown))
    return "\n".join(lines)


def train_model(data: Path, runs: Path, minutes: float, compiled: bool, kind: str | None) -> None:
    """The model of the recipe, in a given time at most."""
    recipe = load_recipe(RECIPE)
    if kind is not None:
        recipe = replace(recipe, loss=replace(recipe.loss, kind=kind))
    phases: tuple[Phase, ...] = tuple(replace(p, compile=compiled and p.compile) for p in recipe.phases)
    recipe = replace(recipe, phases=phases, log_every=100)
    fabric = make_fabric()
    source, held_out = build_source(recipe, data, fabric.device), build_sets(data, fabric.device)
    folder = runs / RECIPE
    model = build_start(recipe, data).model
    outcome = train(recipe, source, model, folder, fabric, minutes * 60, report=print_line)
    network = outcome.model.to(fabric.device)
    figures = {key: score_source(network, pairs) for key, pairs in held_out.items()}
    pairs = {key: [asdict(pair) for pair in value] for key, value in figures.items()}
    entry = {"variant": RECIPE, "steps": outcome.step, "seconds": round(outcome.seconds), "pairs": pairs}
    (runs / f"{RECIPE}.json").write_text(json.dumps(entry))
    for key, found in figures.items():
        means = torch.tensor([pair.accuracy for pair in found]).mean(dim=0)
        print(key, " ".join(f"{value:.3f}" for value in means.tolist()), flush=True)


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
    commands.choices["train"].add_argument("--minutes", type=float, default=20.0)
    commands.choices["train"].add_argument("--no-compile", action="store_true")
    commands.choices["train"].add_argument("--loss", help="instead of the recipe's: nce")
    commands.add_parser("table").add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "study":
        study(options.data, options.runs, options.steps)
    elif options.command == "train":
        train_model(options.data, options.runs, options.minutes, not options.no_compile, options.loss)
    else:
        sys.stdout.write(table(options.folder) + "\n")


if __name__ == "__main__":
    main()

"""Train CAPSNet, C and C+F on the same data for equally many steps, one after the other.

python tools/train_capsnet.py ROOT OUT --minutes 2

How many steps fit into the time is measured once, on C+F, the slowest; all three take as many. Each leaves
OUT/NAME/model.safetensors (float16), log.jsonl and a checkpoint; a killed run goes on where it was. The
plan is kept in OUT/steps.txt.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from coam.data.mixture import Mixture
from coam.training.config import Phase, Recipe, load_recipe
from coam.training.log import print_line, read_log
from coam.training.loop import LOG, make_fabric
from coam.training.objective import build_source
from coam.training.run import build_start, train

NAMES = ("capsnet", "capsnet-c", "capsnet-cf")
TRIAL = 40  # steps


def changed(name: str, steps: int, options: argparse.Namespace) -> Recipe:
    """The recipe of a variant with so many steps."""
    recipe = load_recipe(name)
    phase = recipe.phases[0]
    size, batch = options.size or phase.size, options.batch or phase.batch
    phases = (Phase(steps, size, batch, options.points or phase.points, options.compile),)
    warmup = max(1, min(recipe.optimiser.warmup, steps // 8))
    return replace(
        recipe,
        phases=phases,
        optimiser=replace(recipe.optimiser, warmup=warmup),
        seed=options.seed,
        max_groups=options.max_groups,
    )


def planned_steps(options: argparse.Namespace, source: Mixture[Any], fabric: Any) -> int:
    """Steps that fit into the time, from a short trial whose result is thrown away."""
    plan = options.out / "steps.txt"
    if plan.exists():
        return int(plan.read_text())
    recipe = replace(changed("capsnet-cf", TRIAL, options), log_every=TRIAL // 4)
    with tempfile.TemporaryDirectory() as folder:
        train(recipe, source, build_start(recipe, options.root).model, Path(folder), fabric)
        rate = read_log(Path(folder) / LOG)[-1]["pairs_per_second"]
    steps = max(1, int(options.minutes * 60 * rate / recipe.phases[0].batch))
    options.out.mkdir(parents=True, exist_ok=True)
    plan.write_text(str(steps))
    print(f"{rate:.0f} pairs/s: {steps} steps each", flush=True)
    return steps


def main() -> None:
    """Plan, then train the variants."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("root", type=Path, help="data root of the recipes")
    parser.add_argument("out", type=Path, help="folder for the runs")
    parser.add_argument("--minutes", type=float, default=2.0, help="of steps, for each variant")
    parser.add_argument("--steps", type=int, help="instead of --minutes")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true")
    for name in ("size", "batch", "points", "max-groups"):
        parser.add_argument(f"--{name}", type=int, help="instead of the recipe's")
    options = parser.parse_args()
    fabric = make_fabric(options.device)
    source = build_source(changed(NAMES[0], 1, options), options.root, fabric.device)  # one for all
    steps = options.steps or planned_steps(options, source, fabric)
    for name in options.only:
        recipe, start = changed(name, steps, options), time.monotonic()
        model = build_start(recipe, options.root).model
        outcome = train(recipe, source, model, options.out / name, fabric, report=print_line)
        print(f"{name}: {outcome.step} steps in {time.monotonic() - start:.0f} s", flush=True)


if __name__ == "__main__":
    main()

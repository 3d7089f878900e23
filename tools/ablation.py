"""Does the idea hold? Models that differ in one thing, trained alike and measured on the same held-out pairs.

    python tools/ablation.py run DATA RUNS [--seeds 2]     # on a GPU; goes on where it was stopped
    python tools/ablation.py table docs/ablation           # `make ablation`: the table from saved figures

`run` leaves RUNS/VARIANT-SEED.json with the figures of every pair; those that docs show are in docs/ablation.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from coam.evaluation.statistics import compare_paired
from coam.training.config import Recipe, load_recipe
from coam.training.held_out import SETS, THRESHOLDS, build_sets, score_source
from coam.training.loop import build_start, make_fabric, train
from coam.training.run import print_line
from coam.training.sources import build_source

SHOWN = 3.0  # pixels


def variants(base: Recipe) -> dict[str, Recipe]:
    """What is compared; each differs from `full` in one thing."""

    def model(**changes: bool) -> Recipe:
        return replace(base, model=replace(base.model, config={**base.model.config, **changes}))

    def loss(kind: str, **changes: str) -> Recipe:
        return replace(base, loss=replace(base.loss, kind=kind, **changes))  # type: ignore[arg-type]

    return {
        "full": base,
        "no-conditioning": model(conditioning=False),
        "no-score": model(distinctiveness=False),
        "nce": loss("nce"),
        "hinge": loss("hinge", score_target="confusions"),
    }


def run(data: Path, runs: Path, seeds: int, names: list[str]) -> None:
    """Train and measure every variant that has no figures yet; all read one set of photos, loaded once."""
    base = load_recipe("ablation")
    fabric = make_fabric()
    source, held_out = build_source(base, data, fabric.device), build_sets(data, fabric.device)
    runs.mkdir(parents=True, exist_ok=True)
    for seed in range(1, seeds + 1):
        for name, recipe in variants(base).items():
            result = runs / f"{name}-{seed}.json"
            if result.exists() or (names and name not in names):
                continue
            recipe = replace(recipe, name=f"ablation-{name}", seed=seed)
            print(f"== {name}, seed {seed}", flush=True)
            start = build_start(recipe, data)
            outcome = train(recipe, source, start.model, runs / f"{name}-{seed}", fabric, report=_sometimes)
            model = outcome.model.to(fabric.device)
            figures = {key: score_source(model, pairs) for key, pairs in held_out.items()}
            entry = {
                "variant": name, "seed": seed, "steps": outcome.step, "seconds": round(outcome.seconds),
                "pairs": {key: [asdict(pair) for pair in value] for key, value in figures.items()},
            }  # fmt: skip
            result.write_text(json.dumps(entry))


def _sometimes(line: dict[str, float]) -> None:
    if int(line["step"]) % 300 == 0:
        print_line(line)


def table(folder: Path) -> str:
    """Mean accuracy at `SHOWN` pixels of every variant and set, and its difference to `full`."""
    entries = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not entries:
        raise SystemExit(
            f"{folder} holds no figures; make them with: python tools/ablation.py run DATA {folder}"
        )
    names = list(dict.fromkeys(entry["variant"] for entry in entries))
    names.sort(key=lambda name: name != "full")
    lines = [
        f"share of the best matches within {SHOWN:g} px; difference to full with its 95 % interval over pairs"
    ]
    lines.append(f"{'':18s}" + "".join(f"{key:>32s}" for key in SETS))
    for name in names:
        cells = []
        for key in SETS:
            mine, full = (_by_seed(entries, which, key) for which in (name, "full"))
            seeds = sorted(set(mine) & set(full))
            a = np.concatenate([full[s] for s in seeds])
            b = np.concatenate([mine[s] for s in seeds])
            text = f"{b.mean():.3f}"
            if name != "full":
                pairs = [i for s in seeds for i in range(len(mine[s]))]  # the same pair in every seed
                d = compare_paired(lambda i, a=a: a[i].mean(), lambda i, b=b: b[i].mean(), pairs).difference
                text += f" {d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]"
            else:
                text += " seeds " + " ".join(f"{mine[s].mean():.3f}" for s in seeds)
            cells.append(f"{text:>32s}")
        lines.append(f"{name:18s}" + "".join(cells))
    return "\n".join(lines)


def _by_seed(entries: list[dict], name: str, key: str) -> dict[int, np.ndarray]:
    column = THRESHOLDS.index(SHOWN)
    return {
        entry["seed"]: np.array([pair["accuracy"][column] for pair in entry["pairs"][key]])
        for entry in entries
        if entry["variant"] == name
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("data", type=Path)
    runner.add_argument("runs", type=Path)
    runner.add_argument("--seeds", type=int, default=2)
    runner.add_argument("--only", nargs="*", default=[])
    shower = commands.add_parser("table")
    shower.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        run(options.data, options.runs, options.seeds, options.only)
    else:
        sys.stdout.write(table(options.folder) + "\n")


if __name__ == "__main__":
    main()

"""Does the idea hold? Models that differ in one thing, trained alike and measured on the same held-out pairs.

    python tools/ablation.py run DATA RUNS [--seeds 2]     # on a GPU; goes on where it was stopped
    python tools/ablation.py table docs/ablation           # `make ablation`: the table from saved figures
    python tools/ablation.py table docs/ablation --result docs/results/ablation.json   # for the page

`run` leaves RUNS/VARIANT-SEED.json with the figures of every pair; those that docs show are in docs/ablation.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from docs_tables import table_text
from torch import Tensor

from coam.data.mixture import Mixture
from coam.data.sample import PairBatch
from coam.evaluation.metrics.bootstrap import compare_paired
from coam.matching.dense import DenseMatching
from coam.matching.settings import MatcherConfig
from coam.models.network import DescriptorNetwork
from coam.models.outputs import DenseDescriptors
from coam.tensors import exact_products
from coam.training.config import Phase, Recipe, SourceSpec, load_recipe
from coam.training.log import print_line
from coam.training.loop import make_fabric
from coam.training.objective import build_source
from coam.training.run import build_start, train
from coam.training.sources import build_mixture

RECIPE = Path(__file__).with_suffix(".yaml")
SHOWN = 3.0  # pixels
THRESHOLDS = (1.0, 3.0, 5.0, 10.0)  # pixels
BEST = 256  # best matches of a pair that count: what a user would take
EVERYTHING = MatcherConfig(
    looks="once", max_matches=4096, min_score=0.0, min_distinctiveness=0.0, crowding=1.0
)

# Change of viewpoint alone and with strong change of light; real change of season and of sensor.
SETS: dict[str, SourceSpec] = {
    "planes": SourceSpec("plane", "photos_val", options={"zoom": 2.5, "tilt": 50.0}),
    "worlds": SourceSpec("world", "photos_val", options={"zoom": 2.5, "yaw": 40.0}),
    "seasons": SourceSpec("world", "aligned_val/season", aligned=True, light=0.3, options={"yaw": 34.0}),
    "thermal": SourceSpec("plane", "aligned_val/thermal", aligned=True, light=0.3),
}


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
    base = load_recipe(RECIPE)
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
            outcome = train(
                recipe, source, start.model, runs / f"{name}-{seed}", fabric, report=print_sometimes
            )
            model = outcome.model.to(fabric.device)
            figures = {key: score_source(model, pairs) for key, pairs in held_out.items()}
            entry = {
                "variant": name, "seed": seed, "steps": outcome.step, "seconds": round(outcome.seconds),
                "pairs": {key: [asdict(pair) for pair in value] for key, value in figures.items()},
            }  # fmt: skip
            result.write_text(json.dumps(entry))


def print_sometimes(line: dict[str, float]) -> None:
    if int(line["step"]) % 300 == 0:
        print_line(line)


# ---- matching accuracy on pairs made from held-out photos: every position's true partner is known


@dataclass(frozen=True)
class PairFigures:
    """Of one pair: shares of its best matches within `THRESHOLDS`, and how many matches were judged."""

    accuracy: tuple[float, ...]
    matches: int


def build_sets(root: Path, device: torch.device) -> dict[str, Mixture[PairBatch]]:
    """The sources of `SETS`, below `root`."""
    return {
        name: build_mixture(Recipe(name, (spec,), (Phase(1),), wrong_pairs=0.0), root, device)
        for name, spec in SETS.items()
    }


@torch.inference_mode()
def score_source(
    model: DescriptorNetwork,
    source: Mixture[PairBatch],
    pairs: int = 64,
    size: int = 256,
    seed: int = 99,
    at_once: int = 16,
    config: MatcherConfig = EVERYTHING,
) -> list[PairFigures]:
    """Figures of `pairs` pairs of one source; which pairs depends on `seed` alone."""
    matching = DenseMatching(config, float(model.logit_scale))
    positions = (size // model.capabilities.stride) ** 2
    device = next(model.parameters()).device
    figures = []
    for start in range(0, pairs, at_once):
        generator = torch.Generator(device=device).manual_seed(seed + start)
        with exact_products():  # training may have left the device with rounded ones
            batch = source.sample(min(at_once, pairs - start), size, positions, generator)
        dense0, dense1 = model(batch.image0, batch.image1)
        for index in range(len(batch.valid)):
            figures.append(_score(matching, _one(dense0, index), _one(dense1, index), batch, index))
    return figures


def _score(
    matching: DenseMatching, dense0: DenseDescriptors, dense1: DenseDescriptors, batch: PairBatch, index: int
) -> PairFigures:
    found = matching.between(dense0, dense1)
    truth, known = _truth_of_cells(batch, index, dense0)
    judged = known[found.index0].nonzero()[:BEST, 0]
    error = (found.points1[judged] - truth[found.index0[judged]]).norm(dim=1)
    if len(judged) == 0:
        return PairFigures((0.0,) * len(THRESHOLDS), 0)
    return PairFigures(tuple(float((error <= t).float().mean()) for t in THRESHOLDS), len(judged))


def _truth_of_cells(batch: PairBatch, index: int, dense: DenseDescriptors) -> tuple[Tensor, Tensor]:
    """Where each cell of image 0 is in image 1 (N, 2), infinitely far if nowhere; for which that is known."""
    rows, columns = dense.descriptors.shape[-2:]
    cell = ((batch.points0[index] + 0.5) / dense.stride - 0.5).round().long()
    position = cell[:, 1] * columns + cell[:, 0]
    truth = torch.full((rows * columns, 2), torch.inf, device=position.device)
    valid, known = batch.valid[index], torch.zeros(rows * columns, dtype=torch.bool, device=position.device)
    truth[position[valid]] = batch.points1[index][valid]
    known[position[valid | batch.unmatched0[index]]] = True
    return truth, known


def _one(dense: DenseDescriptors, index: int) -> DenseDescriptors:
    """One pair of a batch, as a batch of one."""
    fields: dict[str, Any] = {
        name: value[index : index + 1] for name, value in vars(dense).items() if isinstance(value, Tensor)
    }
    return replace(dense, **fields)


# ---- the table


ROWS = {
    "full": "full (seeds 1, 2)",
    "no-conditioning": "without conditioning: the co-attention blocks look at their own photo",
    "no-score": "without score",
    "no-confidence": "without confidence: ranked by the descriptors alone",
    "nce": "InfoNCE instead of the cross entropy over all cells",
    "hinge": "the paper's hinge",
}
COLUMNS = (
    "", "planes: one photo, tilted up to 50 degrees, zoomed up to 2.5",
    "worlds: 3D scenes of planes, cameras up to 40 degrees apart",
    "seasons: August and February of one webcam, in such worlds", "visible and thermal, tilted",
)  # fmt: skip


def short(text: str) -> str:
    """As the page has it: ".592 (.580, .604)" of "0.592 seeds 0.580 0.604", ".564, -.028 [..]" of others."""
    mean, _, rest = re.sub(r"\b0\.", ".", text).partition(" ")
    if rest.startswith("seeds "):
        return f"{mean} ({', '.join(rest.split()[1:])})"
    return f"{mean}, {rest}" if rest else mean


def table(folder: Path) -> str:
    """Mean accuracy at `SHOWN` pixels of every variant and set, and its difference to `full`."""
    found = cells(folder, dict.fromkeys(ROWS, "full"))
    rows = [[ROWS[name], *map(short, row)] for name, row in found.items()]
    return table_text(list(COLUMNS), rows)


def cells(folder: Path, against: Mapping[str, str]) -> dict[str, list[str]]:
    """Variant -> its figure on every set, and its difference to the variant that `against` names for it."""
    entries = [json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))]
    if not entries:
        raise SystemExit(
            f"{folder} holds no figures; make them with: python tools/ablation.py run DATA {folder}"
        )
    present = {entry["variant"] for entry in entries}
    rows: dict[str, list[str]] = {}
    for name in (name for name in against if name in present):
        rows[name] = []
        for key in SETS:
            mine, other = (_by_seed(entries, which, key) for which in (name, against[name]))
            seeds = sorted(set(mine) & set(other))
            a = np.concatenate([other[s] for s in seeds])
            b = np.concatenate([mine[s] for s in seeds])
            text = f"{b.mean():.3f}"
            if name != against[name]:
                pairs = [i for s in seeds for i in range(len(mine[s]))]  # the same pair in every seed
                d = compare_paired(lambda i, a=a: a[i].mean(), lambda i, b=b: b[i].mean(), pairs).difference
                text += f" {d.value:+.3f} [{d.low:+.3f}, {d.high:+.3f}]"
            else:
                text += " seeds " + " ".join(f"{mine[s].mean():.3f}" for s in seeds)
            rows[name].append(text)
    return rows


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

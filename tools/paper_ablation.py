"""The paper's ablations on its own network: conditioning, score, encoder, loss, grid, refinement.

    python tools/paper_ablation.py train MEGADEPTH RUNS         # four models by the published recipe; goes on
    python tools/paper_ablation.py table DATA OUT --runs RUNS   # the table, from whatever data DATA holds
    python tools/paper_ablation.py table DATA OUT --model full=MODEL.safetensors [--model nce=...]
    make paper-ablation DATA=FOLDER RUNS=RUNS                   # the same

DATA: a folder in HPatches layout, in MegaDepth's (scene_info/; held-out scenes are measured by depth), one
that holds *pairs_with_gt.txt (YFCC100M, ScanNet), or a folder of such folders. Rows without a model are
left out, by name. Rows that differ at test time only use the model `full`. OUT gets the matches (a killed run
goes on), and table.json and table.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from coam import __version__
from coam.data.depth import DEFAULT_DEPTH
from coam.data.megadepth import DEFAULT_CHOICE, SPLITS, Scene, read_scenes, read_view
from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.hpatches import HPATCHES, load_hpatches
from coam.evaluation.benchmarks.posed_pairs import POSED_PAIRS, load_posed_pairs
from coam.evaluation.matchers.by_name import find_matcher
from coam.evaluation.metrics.measures import matching_accuracy
from coam.evaluation.metrics.tables import Metric, Row, mean_of
from coam.evaluation.pairs import EvaluationPair, limit_pairs
from coam.evaluation.runner import Benchmark, environment, evaluate
from coam.geometry.coordinates import resize_points
from coam.geometry.depth import relative_pose
from coam.store.atomic import write_json, write_text
from coam.training.config import Phase, Recipe, load_recipe
from coam.training.log import print_line
from coam.training.run import run_recipe
from coam.types import Matches

THRESHOLDS = (1.0, 3.0, 5.0, 10.0)  # pixels
RECIPE = "cdunet-published"


@dataclass(frozen=True)
class Variant:
    """A row of the paper's tables."""

    name: str  # as the paper calls it
    model: str  # which of `TRAINED` it uses
    options: dict[str, Any] = field(default_factory=dict)  # of the matcher, beside the preset "paper"


VARIANTS = (
    Variant("ours", "full"),
    Variant("ours w/o conf", "full", {"ranking": "similarity"}),
    Variant("ours w/o cond", "no-conditioning"),
    Variant("ours (E-B1)", "b1"),
    Variant("ours (nce)", "nce"),
    Variant("ours (G = 256)", "full", {"grid": 256}),
    Variant("ours (ref)", "full", {"refinement": "paper"}),
)


def trained(base: Recipe) -> dict[str, Recipe]:
    """The models that the rows need; each differs from `full` in one thing."""
    bare = replace(base, model=replace(base.model, config={**base.model.config, "conditioning": False}))
    return {
        "full": base,
        "no-conditioning": bare,
        "b1": replace(base, model=load_recipe("cdunet-published-b1").model),
        "nce": replace(base, loss=replace(base.loss, kind="nce")),
    }


def train(data: Path, runs: Path, options: argparse.Namespace) -> None:
    """Train every model, each in RUNS/NAME; a run that is complete is left as it is."""
    base = load_recipe(options.recipe)
    if options.steps is not None:
        phase = Phase(options.steps, options.size, options.batch, base.phases[0].points)
        base = replace(base, phases=(phase,), save_every=max(1, min(base.save_every, options.steps)))
    for name, recipe in trained(base).items():
        if options.only and name not in options.only:
            continue
        if options.from_nothing:
            recipe = replace(recipe, model=replace(recipe.model, encoder_weights=None))
        print(f"== {name}", flush=True)
        run_recipe(
            replace(recipe, name=f"paper-{name}"), data, runs / name, options.minutes, print_line,
            options.device, download=options.download,
        )  # fmt: skip


# ---- held-out scenes of MegaDepth, by depth


@dataclass(frozen=True)
class DepthPair(EvaluationPair):
    """A pair of MegaDepth; depth says where a point of one photo is in the other."""

    root: Path = Path()
    scene: Scene | None = field(default=None, compare=False)
    photos: tuple[int, int] = (0, 0)


def load_depth(root: Path, scenes: str = "valid", count: int = 200) -> list[EvaluationPair]:
    """`count` pairs, drawn at random, of a split (or of scene ids with commas)."""
    wanted = scenes if scenes in SPLITS else scenes.split(",")
    every = [
        (scene, pair) for scene in read_scenes(root / "scene_info", wanted, DEFAULT_CHOICE)
        for pair in scene.pairs.tolist()
    ]  # fmt: skip
    chosen = sorted(np.random.default_rng(0).permutation(len(every))[:count])
    pairs: list[EvaluationPair] = []
    for scene, (first, second) in (every[k] for k in chosen):
        paths = [root / str(scene.photos[k]) for k in (first, second)]
        name = f"{scene.name}/{paths[0].stem} {paths[1].stem}"
        unit = scene.name.split(".")[0]
        pairs.append(DepthPair(name, *paths, sequence=unit, root=root, scene=scene, photos=(first, second)))
    return pairs


def score_depth(pair: EvaluationPair, matches: Matches) -> Row:
    """Share of the matches whose truth is known that are within 1, 3, 5, 10 px; what is hidden is wrong."""
    assert isinstance(pair, DepthPair)
    assert pair.scene is not None
    (_, view0), (_, view1) = (read_view(pair.root, pair.scene, k) for k in pair.photos)

    def on_depth(points: Any, size: Sequence[int], depth: torch.Tensor) -> torch.Tensor:
        scale = (depth.shape[-1] / size[0], depth.shape[-2] / size[1])
        return torch.from_numpy(np.asarray(resize_points(points, scale), np.float32))[None]

    start = on_depth(matches.points0, matches.size0, view0.depth)
    found = on_depth(matches.points1, matches.size1, view1.depth)
    there = view0.project(start, view1, relative_pose(view0.poses, view1.poses), DEFAULT_DEPTH)
    error = (there.points1 - found).norm(dim=-1)
    error[there.occluded | there.outside] = torch.inf
    judged = (there.valid | there.occluded | there.outside)[0]
    accuracy = matching_accuracy(error[0][judged].numpy(), THRESHOLDS)
    row: Row = {f"mma@{t:g}": float(a) for t, a in zip(THRESHOLDS, accuracy, strict=True)}
    return row | {"matches": float(len(matches)), "judged": float(judged.sum())}


DEPTH = Benchmark(
    name="depth",
    load=load_depth,
    score=score_depth,
    metrics=(
        *(Metric(f"MMA@{t:g}", mean_of(f"mma@{t:g}"), headline=True) for t in THRESHOLDS),
        Metric("matches", mean_of("matches"), "count", headline=True),
    ),
    rank_by="mma@3",
)


# ---- the table

Loader = Callable[[], list[EvaluationPair]]


def find_data(data: Path, scenes: str, count: int) -> dict[str, tuple[Benchmark, Loader, tuple[str, ...]]]:
    """Name -> benchmark, its pairs, and the figures that the paper shows of it."""
    found: dict[str, tuple[Benchmark, Loader, tuple[str, ...]]] = {}
    for folder in (data, *sorted(f for f in data.iterdir() if f.is_dir())):
        if any(f.is_dir() and f.name[:2] in ("i_", "v_") for f in folder.iterdir()):
            shown = ("MMA@1", "MMA@3", "MMA@5", "MMA@10", "matches")
            found[f"hpatches {folder.name}"] = (HPATCHES, lambda f=folder: load_hpatches(f), shown)
        elif (folder / "scene_info").is_dir():
            shown = ("MMA@1", "MMA@3", "MMA@5", "MMA@10", "matches")
            found[f"depth {folder.name}"] = (DEPTH, lambda f=folder: load_depth(f, scenes, count), shown)
        for listing in sorted(folder.glob("*pairs_with_gt.txt")):
            shown = ("mAP@5", "mAP@10")
            found[f"poses {folder.name}"] = (
                POSED_PAIRS, lambda f=folder, p=listing: load_posed_pairs(f, p), shown
            )  # fmt: skip
    if not found:
        raise DataError(f"{data} holds no data that this table knows; see --help")
    return found


def table(data: Path, out: Path, models: dict[str, Path], options: argparse.Namespace) -> dict[str, Any]:
    """Measure every row that has a model on everything that DATA holds; write and return the table."""
    missing = sorted({v.model for v in VARIANTS} - set(models))
    rows: dict[str, dict[str, Any]] = {}
    weights: dict[str, str] = {}
    for name, (benchmark, load, shown) in find_data(data, options.scenes, options.count).items():
        pairs = limit_pairs(load(), options.limit)
        for variant in VARIANTS:
            if variant.model not in models or (options.rows and variant.name not in options.rows):
                continue
            file = str(models[variant.model])
            spec = find_matcher(file, device=options.device, preset="paper", **variant.options)
            weights[variant.model] = spec.model_hash
            folder = out / name.replace(" ", "-") / variant.name.replace(" ", "_").replace("/", "")
            report = evaluate(benchmark, pairs, spec, folder)
            figures = {
                subset: {key: entries[key] for key in shown if key in entries}
                for subset, entries in report["tables"].items()
            }
            rows.setdefault(variant.name, {})[name] = figures
            print(f"{name}: {variant.name}", flush=True)
    content = {
        "command": "python tools/paper_ablation.py table DATA OUT", "version": __version__,
        "weights": weights, "rows": rows, "missing_models": missing, "environment": environment(),
    }  # fmt: skip
    write_json(out / "table.json", content, indent=1)
    write_text(out / "table.md", table_text(content))
    return content


def table_text(content: dict[str, Any]) -> str:
    """The table as Markdown: a part for every set and subset."""
    lines: list[str] = []
    sets = {(name, subset) for row in content["rows"].values() for name in row for subset in row[name]}
    for name, subset in sorted(sets):
        here = {v: row[name][subset] for v, row in content["rows"].items() if subset in row.get(name, {})}
        heads = list(dict.fromkeys(key for figures in here.values() for key in figures))
        lines += [f"{name}, {subset}", "", "| | " + " | ".join(heads) + " |", "|---" * (len(heads) + 1) + "|"]
        for variant, figures in here.items():
            cells = [
                f"{figures[key]['value']:.3f}" if key != "matches" else f"{figures[key]['value']:.0f}"
                for key in heads
            ]
            lines.append(f"| {variant} | " + " | ".join(cells) + " |")
        lines.append("")
    if content["missing_models"]:
        lines.append("No model, so no row: " + ", ".join(content["missing_models"]) + ".")
    return "\n".join(lines) + "\n"


def find_models(runs: Path | None, given: list[str]) -> dict[str, Path]:
    """Models by name, of the runs and of --model NAME=FILE."""
    known = {variant.model for variant in VARIANTS}
    models = {}
    if runs is not None:
        models = {name: runs / name / "model.safetensors" for name in known}
        models = {name: path for name, path in models.items() if path.is_file()}
    for assignment in given:
        name, equals, path = assignment.partition("=")
        if not equals or name not in known:
            raise ConfigError(
                f"--model {assignment}: wanted NAME=FILE with one of {', '.join(sorted(known))}"
            )
        models[name] = Path(path)
    if not models:
        raise DataError("there is no model: train with `train`, or give --model full=FILE.safetensors")
    return models


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    trainer = commands.add_parser("train")
    trainer.add_argument("data", type=Path)
    trainer.add_argument("runs", type=Path)
    trainer.add_argument("--recipe", default=RECIPE)
    trainer.add_argument("--only", nargs="*", default=[])
    trainer.add_argument("--steps", type=int)
    trainer.add_argument("--size", type=int, default=256)
    trainer.add_argument("--batch", type=int, default=16)
    trainer.add_argument("--minutes", type=float, default=float("inf"))
    trainer.add_argument("--device", default="auto")
    trainer.add_argument("--download", action="store_true")
    trainer.add_argument("--from-nothing", action="store_true", help="no ImageNet weights: for a dry run")
    shower = commands.add_parser("table")
    shower.add_argument("data", type=Path)
    shower.add_argument("out", type=Path)
    shower.add_argument("--runs", type=Path)
    shower.add_argument("--model", action="append", default=[])
    shower.add_argument("--scenes", default="valid", help="of MegaDepth: a split, or ids with commas")
    shower.add_argument("--count", type=int, default=200, help="pairs of MegaDepth")
    shower.add_argument("--limit", type=int, help="at most so many pairs of each set")
    shower.add_argument("--rows", nargs="*", default=[], help="of these names only; default: all")
    shower.add_argument("--device", default="auto")
    options = parser.parse_args(arguments)
    if options.command == "train":
        train(options.data, options.runs, options)
    else:
        models = find_models(options.runs, options.model)
        print(table_text(table(options.data, options.out, models, options)))


if __name__ == "__main__":
    main()

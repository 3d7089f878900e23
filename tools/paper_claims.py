"""The paper's claims on its own network: conditioning, confidence, loss; two seeds, equal budget.

    python tools/paper_claims.py run DATA RUNS [--seeds 2]    # ten minutes of an H200; goes on
    python tools/paper_claims.py table docs/paper_claims      # the table from saved figures

DATA is that of the recipe `cdunet-paper-lite1` (tools/make_training_data.py), with photos_val/ and
aligned_val/, which are held out. The paper's hinge does not start from a new decoder within minutes
(docs/paper.md), so every model first takes the same steps with InfoNCE and then half as many with its own
loss. "Without confidence" is the full model ranked without r. RUNS gets VARIANT-SEED.json with the figures of
every pair; those that docs show are in docs/paper_claims.
"""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ablation import EVERYTHING, build_sets, cells, print_sometimes, score_source, short
from docs_tables import table_text

from coam.models.network import DescriptorNetwork
from coam.training.config import Phase, Recipe, load_recipe
from coam.training.loop import make_fabric
from coam.training.objective import build_source
from coam.training.run import build_start, train

START_STEPS, STEPS = 700, 350  # with InfoNCE, then with the variant's own loss
RATE = 4e-4  # of the second part, as for cdunet-paper-lite1-hinge but shorter
PAPER = replace(EVERYTHING, ranking="paper")  # eq. 2
ROWS = {
    "full": "the paper's hinge, conditioned (seeds 1, 2)",
    "no-conditioning": "without conditioning",
    "no-confidence": "without confidence: ranked by the descriptors alone",
    "nce": "InfoNCE to the end",
}


@dataclass(frozen=True)
class Variant:
    """A model: which network, and which loss ends its training."""

    name: str
    conditioning: bool = True
    loss: str = "hinge"


VARIANTS = (Variant("full"), Variant("no-conditioning", conditioning=False), Variant("nce", loss="nce"))


def recipes(variant: Variant, seed: int) -> tuple[Recipe, Recipe]:
    """The two parts of a variant's training; the first is the same for all of one network."""
    base, hinge = load_recipe("cdunet-paper-lite1"), load_recipe("cdunet-paper-lite1-hinge")
    model = replace(base.model, config={**base.model.config, "conditioning": variant.conditioning})
    network = "conditioned" if variant.conditioning else "unconditioned"
    first = replace(
        base, name=f"start-{network}-{seed}", model=model, seed=seed, save_every=START_STEPS,
        phases=(Phase(START_STEPS, 256, 16),),
        optimiser=replace(base.optimiser, final_factor=0.5),
    )  # fmt: skip
    second = replace(
        first, name=f"{variant.name}-{seed}", loss=hinge.loss if variant.loss == "hinge" else base.loss,
        phases=(Phase(STEPS, 256, 16),), save_every=STEPS,
        optimiser=replace(base.optimiser, lr=RATE, warmup=50),
    )  # fmt: skip
    return first, second


def run(data: Path, runs: Path, seeds: int) -> None:
    """Train and measure every variant that has no figures yet; all read one set of photos, loaded once."""
    fabric = make_fabric()
    source, held_out = (
        build_source(load_recipe("cdunet-paper-lite1"), data, fabric.device),
        build_sets(data, fabric.device),
    )
    runs.mkdir(parents=True, exist_ok=True)

    def trained(recipe: Recipe, start: Path | None) -> DescriptorNetwork:
        if start is not None:
            recipe = replace(recipe, model=replace(recipe.model, start=str(start)))
        print(f"== {recipe.name}", flush=True)
        network = build_start(recipe, data).model
        outcome = train(recipe, source, network, runs / recipe.name, fabric, report=print_sometimes)
        return outcome.model.to(fabric.device)

    def measure(name: str, seed: int, model: DescriptorNetwork, config: Any) -> None:
        pairs = {
            key: [asdict(pair) for pair in score_source(model, pairs, config=config)]
            for key, pairs in held_out.items()
        }
        entry = {"variant": name, "seed": seed, "steps": START_STEPS + STEPS, "pairs": pairs}
        (runs / f"{name}-{seed}.json").write_text(json.dumps(entry))

    for seed in range(1, seeds + 1):
        for variant in VARIANTS:
            if (runs / f"{variant.name}-{seed}.json").exists():
                continue
            first, second = recipes(variant, seed)
            trained(first, None)  # complete already where another variant has the same start
            model = trained(second, runs / first.name / "model.safetensors")
            if variant.name == "full":
                measure("no-confidence", seed, model, replace(PAPER, ranking="similarity"))
            measure(variant.name, seed, model, PAPER)


def table(folder: Path) -> str:
    """Accuracy at 3 px on every held-out set, and the difference to the full model."""
    rows = [[ROWS[name], *map(short, row)] for name, row in cells(folder).items()]
    return table_text(["", "planes", "worlds", "seasons", "visible and thermal"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runner = commands.add_parser("run")
    runner.add_argument("data", type=Path)
    runner.add_argument("runs", type=Path)
    runner.add_argument("--seeds", type=int, default=2)
    shower = commands.add_parser("table")
    shower.add_argument("folder", type=Path)
    options = parser.parse_args()
    if options.command == "run":
        run(options.data, options.runs, options.seeds)
        return
    sys.stdout.write(table(options.folder) + "\n")


if __name__ == "__main__":
    main()

"""What limits training: the time to make a batch of pairs beside the time of a whole step.

python tools/training_split.py RECIPE DATA [--steps 20] [--device auto]

On CUDA both are CUDA graphs, as in training (the step is what `coam train` replays); elsewhere plain calls.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from coam.tensors import exact_products
from coam.training.checkpoint import TrainState
from coam.training.config import Phase, load_recipe
from coam.training.loop import make_fabric, to_device
from coam.training.objective import build_objective, build_source
from coam.training.optimiser import build_optimiser
from coam.training.run import Step, build_start, set_training_mode

WARM_UPS = 6  # the first steps of a phase are not replayed yet


def milliseconds(action: Callable[[], Any], repeats: int, device: torch.device) -> float:
    """Mean time of `action`, waiting for the device before and after all repeats."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize()

    wait()
    start = time.perf_counter()
    for _ in range(repeats):
        action()
    wait()
    return 1e3 * (time.perf_counter() - start) / repeats


def recorded(action: Callable[[], Any]) -> Callable[[], Any]:
    """`action` as a CUDA graph."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        action()
    return graph.replay


def main() -> None:
    """Time both and print the split."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("recipe", help="name of a recipe or a .yaml file")
    parser.add_argument("data", type=Path, help="folder that the recipe's paths start from")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()
    recipe = load_recipe(options.recipe)
    fabric = make_fabric(options.device)
    phase: Phase = recipe.phases[0]
    source = build_source(recipe, options.data, fabric.device)
    model = to_device(build_start(recipe, options.data).model, fabric.device)
    state = TrainState(model, build_optimiser(model, recipe.optimiser))
    step = Step(recipe, source, build_objective(model, recipe), state, fabric)
    set_training_mode(model, recipe.optimiser)
    for state.step in range(WARM_UPS):
        step()
    whole = milliseconds(step, options.steps, fabric.device)

    def make_pairs() -> None:
        with exact_products():
            source.sample(phase.batch, phase.size, phase.points, step.generator)

    on_graph = fabric.device.type == "cuda" and source.recordable
    pairs = milliseconds(recorded(make_pairs) if on_graph else make_pairs, options.steps, fabric.device)
    rate, share = 1e3 * phase.batch / whole, pairs / whole
    print(
        f"{recipe.name}, {phase.batch} pairs of {phase.size} px: {whole:.1f} ms a step ({rate:.0f} pairs/s),"
    )
    print(f"of which {pairs:.1f} ms ({share:.0%}) make the pairs")


if __name__ == "__main__":
    main()

"""Learning rate, phases and the moving average, in numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from coam.training.config import OptimiserSpec, Phase
from coam.training.loop import seed_step
from coam.training.optimiser import (
    build_optimiser,
    learning_rate_factor,
    set_learning_rate,
    start_average,
    update_average,
)
from coam.training.run import phase_of, set_training_mode
from support import tiny


def test_learning_rate_warms_up_and_falls_like_a_cosine() -> None:
    factors = [learning_rate_factor(step, 110, 10, 0.1) for step in (0, 4, 9, 10, 35, 60, 110, 500)]
    quarter = 0.1 + 0.9 * 0.5 * (1 + 2**-0.5)
    assert factors == pytest.approx([0.1, 0.5, 1.0, 1.0, quarter, 0.55, 0.1, 0.1])


def test_learning_rate_is_halved_again_and_again() -> None:
    steps = (0, 1, 2, 79, 80, 239, 240)
    factors = [learning_rate_factor(step, 1000, 2, 0.1, halve_every=80) for step in steps]
    assert factors == [0.5, 1.0, 1.0, 1.0, 0.5, 0.25, 0.125]


def test_phase_of_a_step() -> None:
    phases = Phase(3, 64), Phase(2, 96)
    recipe = replace(tiny.RECIPE, phases=phases)
    assert [phase_of(recipe, step) for step in (0, 2, 3, 4, 9)] == [
        phases[0], phases[0], phases[1], phases[1], phases[1],
    ]  # fmt: skip


def test_moving_average_by_hand() -> None:
    model = nn.BatchNorm1d(1)
    average = start_average(model)
    with torch.no_grad():
        model.weight.fill_(3.0)
        model.num_batches_tracked.fill_(7)
    update_average(average, model, torch.tensor(0.75))
    assert float(average["weight"]) == pytest.approx(0.75 * 1 + 0.25 * 3)
    assert int(average["num_batches_tracked"]) == 7  # counts are copied
    assert model.weight.tolist() == [3.0]


def test_the_encoder_learns_slower_and_vectors_do_not_decay() -> None:
    model = nn.ModuleDict({"encoder": nn.Linear(2, 2), "head": nn.Linear(2, 2)})
    optimiser = build_optimiser(model, OptimiserSpec(lr=0.4, encoder_factor=0.25, weight_decay=0.1))
    table = {
        id(p): (group["lr"], group["weight_decay"])
        for group in optimiser.param_groups
        for p in group["params"]
    }
    assert table[id(model["encoder"].weight)] == (0.1, 0.1)
    assert table[id(model["encoder"].bias)] == (0.1, 0.0)
    assert table[id(model["head"].weight)] == (0.4, 0.1)
    assert table[id(model["head"].bias)] == (0.4, 0.0)
    set_learning_rate(optimiser, 0.5)
    set_learning_rate(optimiser, 0.5)  # of the base, not of the last
    assert sorted({group["lr"] for group in optimiser.param_groups}) == [0.05, 0.2]


def test_each_step_and_process_has_its_own_randomness() -> None:
    generator = torch.Generator()
    draws = {}
    for key in [(1, 0, 0), (1, 1, 0), (1, 0, 1), (2, 0, 0)]:
        seed_step(generator, *key)
        draws[key] = (float(torch.rand((), generator=generator)), float(torch.rand(())))
        seed_step(generator, *key)
        assert draws[key][0] == float(torch.rand((), generator=generator))
    assert len({first for first, _ in draws.values()}) == 4
    assert len({second for _, second in draws.values()}) == 4


@pytest.mark.parametrize(
    ("spec", "encoder_frozen", "rest_frozen"),
    [
        (OptimiserSpec(), True, False),
        (OptimiserSpec(freeze_norm=True), True, True),
        (OptimiserSpec(freeze_encoder_norm=False), False, False),
    ],
)
def test_which_batch_statistics_are_kept(
    spec: OptimiserSpec, encoder_frozen: bool, rest_frozen: bool
) -> None:
    model = nn.ModuleDict({"encoder": nn.Sequential(nn.BatchNorm2d(1)), "head": nn.BatchNorm2d(1)})
    set_training_mode(model, spec)
    assert model["encoder"][0].training is not encoder_frozen
    assert model["head"].training is not rest_frozen

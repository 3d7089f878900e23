"""How the learning rate runs, which phase a step belongs to, and the moving average of the weights."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from coam.training.config import Phase, Recipe


def learning_rate_factor(step: int, total: int, warmup: int, final: float, halve_every: int = 0) -> float:
    """Linear warm-up, then a cosine from 1 down to `final`, or a half after every `halve_every` steps."""
    if step < warmup:
        return (step + 1) / warmup
    if halve_every:
        return float(0.5 ** (step // halve_every))
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def phase_of(recipe: Recipe, step: int) -> Phase:
    """The phase in which `step` lies."""
    for phase in recipe.phases:
        if step < phase.steps:
            return phase
        step -= phase.steps
    return recipe.phases[-1]


def start_average(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and statistics, the start of their moving average."""
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


@torch.no_grad()
def update_average(average: dict[str, Tensor], model: nn.Module, keep: Tensor) -> None:
    """Keep the share `keep` (a scalar tensor) of the average and take the rest from the model."""
    state = model.state_dict()
    floats = [key for key in average if average[key].is_floating_point()]
    means, values = [average[key] for key in floats], [state[key] for key in floats]
    change = torch._foreach_sub(values, means)
    torch._foreach_mul_(change, 1.0 - keep)
    torch._foreach_add_(means, change)
    for key in average.keys() - set(floats):
        average[key].copy_(state[key])

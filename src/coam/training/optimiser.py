"""AdamW, the learning-rate schedule, and the moving average (EMA) of the weights."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coam.errors import ConfigError
from coam.training.config import OptimiserSpec

Network = TypeVar("Network", bound=nn.Module)


def parameter_group(parameters: Iterable[nn.Parameter], rate: float, **settings: Any) -> dict[str, Any]:
    """Parameters that learn at one rate; `set_learning_rate` scales it."""
    return {"params": list(parameters), "lr": rate, "base_lr": rate, **settings}


def adamw(groups: list[dict[str, Any]], recorded: bool = False) -> torch.optim.AdamW:
    """AdamW of parameter groups; `recorded`: its steps may become part of a CUDA graph."""
    if recorded:  # a CUDA graph reads the rate from the device
        groups = [{**group, "lr": torch.tensor(group["lr"], device="cuda")} for group in groups]
    return torch.optim.AdamW(groups, fused=recorded or None, capturable=recorded)


def build_optimiser(model: nn.Module, spec: OptimiserSpec) -> torch.optim.AdamW:
    """AdamW; the pretrained encoder learns slower, and vectors (norms, biases) do not decay."""
    table: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            table.setdefault((name.startswith("encoder."), parameter.ndim > 1), []).append(parameter)
    if not table:
        raise ConfigError(f"{type(model).__name__} has no weights that could be trained")
    groups = [
        parameter_group(
            parameters,
            spec.lr * (spec.encoder_factor if in_encoder else 1.0),
            weight_decay=spec.weight_decay if is_matrix else 0.0,
        )
        for (in_encoder, is_matrix), parameters in table.items()
    ]
    return adamw(groups, recorded=next(model.parameters()).is_cuda)


def set_learning_rate(optimiser: torch.optim.Optimizer, factor: float) -> None:
    """Give every group `factor` times its own rate."""
    for group in optimiser.param_groups:
        rate = group["base_lr"] * factor
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def learning_rate_factor(step: int, total: int, warmup: int, final: float, halve_every: int = 0) -> float:
    """Linear warm-up, then a cosine from 1 down to `final`, or a half after every `halve_every` steps."""
    if step < warmup:
        return (step + 1) / warmup
    if halve_every:
        return float(0.5 ** (step // halve_every))
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return final + (1.0 - final) * 0.5 * (1.0 + math.cos(math.pi * progress))


def start_average(model: nn.Module) -> dict[str, Tensor]:
    """A copy of all weights and statistics, the start of their moving average."""
    return {key: value.detach().clone() for key, value in model.state_dict().items()}


def average_decay(decay: float, step: int) -> float:
    """The decay of the moving average at a step: smaller at first, so that the start is soon forgotten."""
    return min(decay, (1 + step) / (10 + step))


@torch.no_grad()
def update_average(average: dict[str, Tensor], model: nn.Module, decay: Tensor) -> None:
    """Keep the share `decay` (a scalar tensor) of the average and take the rest from the model."""
    state = model.state_dict()
    floats = [key for key in average if average[key].is_floating_point()]
    means, values = [average[key] for key in floats], [state[key] for key in floats]
    change = torch._foreach_sub(values, means)
    torch._foreach_mul_(change, 1.0 - decay)
    torch._foreach_add_(means, change)
    for key in average.keys() - set(floats):
        average[key].copy_(state[key])


def averaged_copy(network: Network, average: dict[str, Tensor]) -> Network:
    """The network with its averaged weights, in evaluation mode, on the CPU."""
    averaged = copy.deepcopy(network).cpu().to(memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    averaged.load_state_dict(average)
    return averaged.eval()  # type: ignore[no-any-return]

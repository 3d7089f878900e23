"""One file that holds all a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from coam.errors import ConfigError, WeightsError
from coam.storage import write_safetensors
from coam.training.config import Recipe, from_mapping

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(
    path: Path,
    step: int,
    recipe: Recipe,
    model: nn.Module,
    average: dict[str, Tensor],
    optimiser: torch.optim.Optimizer,
) -> None:
    """Weights, their moving average and the optimiser's moments, written atomically."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"average.{k}": v for k, v in average.items()}
    for name, parameter in model.named_parameters():
        state = optimiser.state.get(parameter, {})
        tensors |= {f"moment.{name}.{key}": state[key] for key in MOMENTS if key in state}
    tensors = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
    metadata = {"step": str(step), "recipe": json.dumps(dataclasses.asdict(recipe))}
    write_safetensors(path, tensors, metadata)


def load_checkpoint(
    path: Path,
    recipe: Recipe,
    model: nn.Module,
    average: dict[str, Tensor],
    optimiser: torch.optim.Optimizer,
) -> int:
    """Restore everything in place; returns the step to go on with. One of another recipe is refused."""
    tensors, metadata = _read(path)
    try:
        step, stored = int(metadata["step"]), from_mapping(Recipe, json.loads(metadata["recipe"]), "recipe")
    except (KeyError, ValueError, ConfigError) as error:
        raise WeightsError(f"{path}: not a checkpoint of coam train; remove it to start anew") from error
    if _plain(stored) != _plain(recipe):
        raise WeightsError(
            f"{path}: was made by another recipe; choose another output folder or restore the recipe"
        )
    try:
        model.load_state_dict(_below("model.", tensors))
        for key, value in average.items():
            value.copy_(tensors[f"average.{key}"])
    except (KeyError, RuntimeError) as error:
        line = str(error).splitlines()[0]
        raise WeightsError(f"{path}: does not fit the model ({line}); remove it to start anew") from error
    for name, parameter in model.named_parameters():
        state = {key: tensors[f"moment.{name}.{key}"] for key in MOMENTS if f"moment.{name}.{key}" in tensors}
        if state:
            optimiser.state[parameter] = {key: _as_stored(value, parameter) for key, value in state.items()}
    return step


def _read(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise WeightsError(f"{path}: is damaged ({reason}); remove it to start anew") from error


def _plain(recipe: Recipe) -> object:
    """As JSON gives it back, so that tuples equal lists."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _as_stored(value: Tensor, parameter: Tensor) -> Tensor:
    """On the parameter's device and, where shapes agree, in its memory layout (fused optimisers insist)."""
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter).copy_(value)

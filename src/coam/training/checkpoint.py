"""One file that holds all a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor, nn

from coam.errors import WeightsError
from coam.training.config import Recipe

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


def save_checkpoint(
    path: Path, step: int, recipe: Recipe, model: nn.Module, average: dict[str, Tensor], optimiser: torch.optim.Optimizer
) -> None:
    """Weights, their moving average and the optimiser's moments, written atomically."""
    tensors = {f"model.{k}": v for k, v in model.state_dict().items()}
    tensors |= {f"average.{k}": v for k, v in average.items()}
    for name, parameter in model.named_parameters():
        state = optimiser.state.get(parameter, {})
        tensors |= {f"moment.{name}.{key}": state[key] for key in MOMENTS if key in state}
    tensors = {key: value.detach().cpu().clone().contiguous() for key, value in tensors.items()}
    metadata = {"step": str(step), "recipe": json.dumps(dataclasses.asdict(recipe))}
    temporary = path.with_name(path.name + ".tmp")
    save_file(tensors, temporary, metadata=metadata)
    temporary.replace(path)


def load_checkpoint(
    path: Path, recipe: Recipe, model: nn.Module, average: dict[str, Tensor], optimiser: torch.optim.Optimizer
) -> int:
    """Restore everything in place; returns the step to go on with. A checkpoint of another recipe is refused."""
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError) as error:
        raise WeightsError(f"{path}: the checkpoint cannot be read ({error}); remove it to start anew") from error
    if json.loads(metadata["recipe"]) != json.loads(json.dumps(dataclasses.asdict(recipe))):
        raise WeightsError(f"{path}: was made by another recipe; choose another output folder or restore the recipe")
    model.load_state_dict({k.removeprefix("model."): v for k, v in tensors.items() if k.startswith("model.")})
    for key, value in average.items():
        value.copy_(tensors[f"average.{key}"])
    for name, parameter in model.named_parameters():
        state = {key: tensors[f"moment.{name}.{key}"] for key in MOMENTS if f"moment.{name}.{key}" in tensors}
        if state:
            optimiser.state[parameter] = {key: _as_stored(value, parameter) for key, value in state.items()}
    return int(metadata["step"])


def _as_stored(value: Tensor, parameter: Tensor) -> Tensor:
    """On the parameter's device and, where shapes agree, in its memory layout (fused optimisers insist)."""
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter).copy_(value)

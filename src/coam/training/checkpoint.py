"""Checkpoints: one .safetensors file with all that a killed run needs to go on as if nothing had happened."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from coam.errors import ConfigError, WeightsError
from coam.store.documents import parse_json
from coam.store.tensor_files import read_safetensors, write_safetensors
from coam.training.config import RunSpec, from_mapping
from coam.training.optimiser import start_average

MOMENTS = ("step", "exp_avg", "exp_avg_sq")


class TrainState:
    """All that a run changes: networks, the moving average of the first, the optimiser, step and progress."""

    def __init__(
        self,
        network: nn.Module,
        optimiser: torch.optim.Optimizer,
        prefix: str = "model",
        others: Mapping[str, nn.Module] | None = None,
        progress: float | None = None,
    ) -> None:
        """`prefix`: what the network's tensors are called in the file; `others` are called by their names.

        `progress` (0 to 1) is given where time, too, may bring a run to its end.
        """
        self.network, self.optimiser, self.others = network, optimiser, dict(others or {})
        self.modules = {prefix: network, **self.others}
        self.average = start_average(network)
        self.step, self.progress = 0, progress

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Parameters of all networks; those of `others` begin with their names."""
        yield from self.network.named_parameters()
        for name, module in self.others.items():
            yield from module.named_parameters(prefix=name)


def save_checkpoint(path: Path, recipe: RunSpec, state: TrainState) -> None:
    """Weights, their moving average and the optimiser's moments, written atomically."""
    tensors = {
        f"{name}.{k}": v for name, module in state.modules.items() for k, v in module.state_dict().items()
    }
    tensors |= {f"average.{k}": v for k, v in state.average.items()}
    for name, parameter in state.named_parameters():
        moments = state.optimiser.state.get(parameter, {})
        tensors |= {f"moment.{name}.{key}": moments[key] for key in MOMENTS if key in moments}
    metadata = {"step": str(state.step), "recipe": json.dumps(dataclasses.asdict(recipe))}
    if state.progress is not None:
        metadata["progress"] = str(state.progress)
    write_safetensors(path, tensors, metadata)


def load_checkpoint(path: Path, recipe: RunSpec, state: TrainState) -> None:
    """Restore everything in place. A checkpoint of another recipe is refused."""
    tensors, metadata = read_safetensors(path, "remove it to start anew")
    try:
        stored = from_mapping(type(recipe), parse_json(metadata["recipe"]), "recipe")
        step = int(metadata["step"])
        progress = None if state.progress is None else float(metadata["progress"])
    except (KeyError, ValueError, ConfigError) as error:
        raise WeightsError(f"{path}: not a checkpoint of coam train; remove it to start anew") from error
    if _plain(stored) != _plain(recipe):
        raise WeightsError(
            f"{path}: was made by another recipe; choose another output folder or restore the recipe"
        )
    try:
        for name, module in state.modules.items():
            module.load_state_dict(_below(f"{name}.", tensors))
        for key, value in state.average.items():
            value.copy_(tensors[f"average.{key}"])
    except (KeyError, RuntimeError) as error:
        line = str(error).splitlines()[0]
        raise WeightsError(f"{path}: does not fit the model ({line}); remove it to start anew") from error
    groups = {p: group for group in state.optimiser.param_groups for p in group["params"]}
    for name, parameter in state.named_parameters():
        moments = {
            key: tensors[f"moment.{name}.{key}"] for key in MOMENTS if f"moment.{name}.{key}" in tensors
        }
        if moments:
            on_device = groups[parameter]["capturable"]
            state.optimiser.state[parameter] = {
                key: value if key == "step" and not on_device else _as_stored(value, parameter)
                for key, value in moments.items()
            }
    state.step, state.progress = step, progress


def _plain(recipe: RunSpec) -> object:
    """As JSON gives it back, so that tuples equal lists."""
    return json.loads(json.dumps(dataclasses.asdict(recipe)))


def _below(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _as_stored(value: Tensor, parameter: Tensor) -> Tensor:
    """On the parameter's device and, where shapes agree, in its memory layout (fused optimisers insist)."""
    if value.shape != parameter.shape:
        return value.to(parameter.device)
    return torch.empty_like(parameter).copy_(value)

"""The file in which a stylizer travels: weights in float16, configuration and card in its metadata."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from coam.errors import CoamError, WeightsError
from coam.models.registry import config_from_dict, packaged_weights
from coam.storage import atomic_write
from coam.stylization.network import StylizerConfig, StylizerNetwork

FORMAT = "coam-stylizer-1"
DEFAULT_STYLIZER = "stylizer"


@dataclass(frozen=True)
class StylizerFile:
    """A network with what its file says about it."""

    network: StylizerNetwork
    trained: bool
    card: dict[str, Any] = field(default_factory=dict)  # licence, recipe, steps: JSON values


def save_network(network: StylizerNetwork, path: Path, card: dict[str, Any]) -> Path:
    """Write weights (float16), configuration and card (atomically)."""
    tensors = {
        key: (value.half() if value.is_floating_point() else value).detach().cpu().contiguous()
        for key, value in network.state_dict().items()
    }
    metadata = {
        "format": FORMAT,
        "config": json.dumps(dataclasses.asdict(network.config)),
        "card": json.dumps(card),
    }
    with atomic_write(path) as temporary:
        save_file(tensors, temporary, metadata=metadata)
    return path


def load_network(path: str | Path | None = None) -> StylizerFile:
    """The stylizer of a .safetensors file; None: the packaged one, or an untrained one."""
    if path is None:
        path = packaged_weights(DEFAULT_STYLIZER)
        if path is None:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                return StylizerFile(StylizerNetwork().eval(), trained=False)
    if not Path(path).is_file():
        raise WeightsError(f"{path}: no such weights file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a readable .safetensors file ({error}); get it again") from error
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{path}: not a stylizer (its metadata lacks format={FORMAT!r})")
    try:
        network = StylizerNetwork(config_from_dict(StylizerConfig, json.loads(metadata["config"])))
        network.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in tensors.items()})
        card = json.loads(metadata["card"])
    except (KeyError, ValueError, RuntimeError, TypeError, CoamError) as error:
        line = " ".join(str(error).split())[:200]
        raise WeightsError(f"{path}: weights and configuration do not fit ({line}); get it again") from error
    return StylizerFile(network.eval(), trained=True, card=card)

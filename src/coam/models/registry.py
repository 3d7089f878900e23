"""Names of models, and the one file format in which a model travels.

A model is one .safetensors file. Its metadata holds, as JSON, the architecture, its configuration, the
preprocessing, and a card: licence, how it was trained, the calibration of its pair score. Loading needs
nothing else and runs no code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from coam.errors import ConfigError, WeightsError
from coam.models.capsnet import CAPSNet, CAPSNetConfig
from coam.models.cdunet import CDUNet, CDUNetConfig
from coam.models.stacked import StackedCDUNet, StackedConfig
from coam.storage import write_safetensors

DescriptorModel = CDUNet | StackedCDUNet | CAPSNet
FORMAT = "coam-1"

ARCHITECTURES: dict[str, tuple[type[Any], type[Any]]] = {
    "cdunet": (CDUNet, CDUNetConfig),
    "stacked": (StackedCDUNet, StackedConfig),
    "capsnet": (CAPSNet, CAPSNetConfig),
}

# Every name a user may type, with the configuration it starts from when no trained weights are at hand.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cdunet-lite1": ("stacked", {}),
    "cdunet-paper": ("cdunet", {}),
    "cdunet-paper-b1": ("cdunet", {"encoder": "efficientnet_b1"}),
    "capsnet": ("capsnet", {}),
    "capsnet-c": ("capsnet", {"coattention": (16,)}),
    "capsnet-cf": ("capsnet", {"coattention": (16, 8)}),
}
DEFAULT_MODEL = "cdunet-lite1"

Config = TypeVar("Config")


@dataclass(frozen=True)
class ModelFile:
    """A network with all that its file says about it."""

    model: DescriptorModel
    name: str
    architecture: str
    trained: bool
    sha256: str = ""
    card: dict[str, Any] = field(default_factory=dict)  # licence, provenance, calibration: JSON values


def config_from_dict(kind: type[Config], values: dict[str, Any]) -> Config:
    """Build a frozen config dataclass; an unknown key is an error that names the known ones."""
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    for key in values:
        if key not in known:
            raise ConfigError(f"{kind.__name__} has no field {key!r}; it has {', '.join(known)}")
    return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})


def build_model(architecture: str, config: dict[str, Any]) -> DescriptorModel:
    """A network with random weights."""
    if architecture not in ARCHITECTURES:
        raise ConfigError(
            f"there is no architecture {architecture!r}; choose one of {', '.join(ARCHITECTURES)}"
        )
    network, kind = ARCHITECTURES[architecture]
    model: DescriptorModel = network(config_from_dict(kind, config))
    return model


def architecture_of(model: nn.Module) -> str:
    """The name under which `build_model` builds this network."""
    for name, (network, _) in ARCHITECTURES.items():
        if type(model) is network:
            return name
    raise ConfigError(f"{type(model).__name__} is not a registered architecture")


def save_model(
    model: DescriptorModel,
    path: str | Path,
    name: str,
    card: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float16,
) -> Path:
    """Write weights, configuration and card as one .safetensors file (atomically)."""
    path = Path(path)
    tensors = {
        key: (value.to(dtype) if value.is_floating_point() else value).detach().cpu().contiguous()
        for key, value in model.state_dict().items()
    }
    metadata = {
        "format": FORMAT,
        "name": name,
        "architecture": architecture_of(model),
        "config": json.dumps(dataclasses.asdict(model.config)),
        "preprocessing": json.dumps(_preprocessing(model)),
        "card": json.dumps(card or {}),
    }
    write_safetensors(path, tensors, metadata)
    return path


def load_model(name_or_path: str | Path = DEFAULT_MODEL) -> ModelFile:
    """The model of a registered name (weights inside the package) or of a .safetensors file."""
    if Path(str(name_or_path)).suffix == ".safetensors":
        return _read(Path(name_or_path))
    if str(name_or_path) not in MODELS:
        raise ConfigError(
            f"there is no model {str(name_or_path)!r}; choose one of {', '.join(MODELS)}"
            " or give a .safetensors file"
        )
    packaged = packaged_weights(str(name_or_path))
    if packaged is not None:
        return _read(packaged)
    architecture, config = MODELS[str(name_or_path)]
    # A fixed seed, so that an untrained model at least gives the same answer every time; the caller's own
    # random numbers go on undisturbed.
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = build_model(architecture, config)
    return ModelFile(model.eval(), str(name_or_path), architecture, trained=False)


def packaged_weights(name: str) -> Path | None:
    """Where the package keeps the weights of `name`; None if it has none."""
    path = Path(str(resources.files("coam"))) / "weights" / f"{name}.safetensors"
    return path if path.is_file() else None


def _preprocessing(model: DescriptorModel) -> dict[str, list[float]]:
    """What the network subtracts from, and divides, RGB values in [0, 1] by."""
    return {key: getattr(model.encoder, key).detach().cpu().flatten().tolist() for key in ("mean", "std")}


def _set_preprocessing(model: DescriptorModel, values: dict[str, Any]) -> None:
    for key in ("mean", "std"):
        buffer: Tensor = getattr(model.encoder, key)
        buffer.copy_(torch.tensor(values[key], dtype=buffer.dtype).view(1, 3, 1, 1))


def _json_object(metadata: dict[str, str], key: str) -> dict[str, Any]:
    value = json.loads(metadata[key])
    if not isinstance(value, dict):
        raise ValueError(f"{key} is no JSON object")
    return value


def _read(path: Path) -> ModelFile:
    if not path.is_file():
        raise WeightsError(f"{path}: no such weights file")
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            state: dict[str, Tensor] = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise WeightsError(f"{path}: not a readable .safetensors file ({error}); get it again") from error
    if metadata.get("format") != FORMAT:
        raise WeightsError(f"{path}: not a coam model (its metadata lacks format={FORMAT!r})")
    try:
        config, card = _json_object(metadata, "config"), _json_object(metadata, "card")
        model = build_model(metadata["architecture"], config)
        model.load_state_dict({k: v.float() if v.is_floating_point() else v for k, v in state.items()})
        if "preprocessing" in metadata:
            _set_preprocessing(model, _json_object(metadata, "preprocessing"))
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError, ConfigError) as error:
        line = " ".join(str(error).split())[:200]
        raise WeightsError(f"{path}: weights and architecture do not fit ({line}); get it again") from error
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return ModelFile(
        model.eval(), metadata.get("name", path.stem), metadata["architecture"], True, digest, card
    )

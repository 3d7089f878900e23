"""Names of models, and the one file format in which a model travels.

A model is one .safetensors file. Its metadata holds, as JSON, the architecture, its configuration, the
preprocessing, and a card: licence, how it was trained, the calibration of its pair score. Loading needs
nothing else and runs no code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from pkgutil import resolve_name
from types import UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

import torch
from torch import Tensor, nn

from coam.errors import ConfigError, WeightsError
from coam.models.hub import metadata_in, weights_in
from coam.models.network import DescriptorNetwork
from coam.models.quantised import quantise, restore
from coam.models.retrieval import RetrievalConfig, RetrievalHead
from coam.store.documents import check_shape, parse_json
from coam.store.tensor_files import read_safetensors, write_safetensors

FORMAT = "coam-1"
RETRIEVAL_FORMAT = "coam-retrieval-1"  # of `NAME.retrieval.safetensors`, beside `NAME.safetensors`

# Architectures by the name that their files carry; imported when one is asked for.
NETWORKS: dict[str, str] = {
    "cdunet": "coam.models.cdunet:CDUNet",
    "stacked": "coam.models.stacked:StackedCDUNet",
    "capsnet": "coam.capsnet.network:CAPSNet",
}

# Every name a user may type, with the configuration it starts from when no trained weights are at hand.
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "cdunet-lite1": ("stacked", {}),
    "cdunet-paper": ("cdunet", {}),
    "cdunet-paper-lite1": ("cdunet", {"encoder": "efficientnet_lite1"}),
    "cdunet-paper-b1": ("cdunet", {"encoder": "efficientnet_b1"}),
    "capsnet": ("capsnet", {}),
    "capsnet-c": ("capsnet", {"coattention": (16,)}),
    "capsnet-cf": ("capsnet", {"coattention": (16, 8)}),
    # As published (ResNet34); the three above are trained with a smaller encoder.
    "capsnet-paper": ("capsnet", {"coattention": (16, 8)}),
    "capsnet-paper-c": ("capsnet", {"coattention": (16,)}),
    "capsnet-paper-base": ("capsnet", {}),
}
# The recipe that trains a name of `MODELS`, where it has another name.
RECIPE_OF = {"cdunet-paper": "cdunet-published", "cdunet-paper-b1": "cdunet-published-b1"}
MOST_CHANNELS, MOST_LAYERS = 4096, 64  # of a network's configuration
MOST_PARAMETERS = 1_000_000_000  # 4 GB
_LAYERS = ("rounds", "refiner_blocks")  # fields that say how many layers there are
DEFAULT_MODEL = "cdunet-lite1"

Config = TypeVar("Config")
AnyNetwork = TypeVar("AnyNetwork", bound=nn.Module)


@dataclass(frozen=True)
class ModelFile:
    """A network with all that its file says about it."""

    model: DescriptorNetwork
    name: str
    architecture: str
    trained: bool
    sha256: str = ""
    card: dict[str, Any] = field(default_factory=dict)  # licence, provenance, calibration: JSON values
    retrieval: RetrievalHead | None = None  # of global descriptors, trained on this encoder
    retrieval_sha256: str = ""


def config_from_dict(kind: type[Config], values: dict[str, Any]) -> Config:
    """Build a frozen config dataclass; an unknown key is an error that names the known ones."""
    known = {f.name: f for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = get_type_hints(kind)
    for key, value in values.items():
        if key not in known:
            raise ConfigError(f"{kind.__name__} has no field {key!r}; it has {', '.join(known)}")
        most = MOST_LAYERS if key in _LAYERS else MOST_CHANNELS
        _check_field(f"{kind.__name__}.{key}", value, hints[key], most)
    return kind(**{key: tuple(v) if isinstance(v, list) else v for key, v in values.items()})


def _check_field(where: str, value: Any, hint: Any, most: int) -> None:
    """Refuse a value of another type than `hint`, and whole numbers that no network could have."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is tuple:
        lengths = range(MOST_LAYERS) if inner[-1] is Ellipsis else (len(inner),)
        if not isinstance(value, list | tuple) or len(value) not in lengths:
            raise ConfigError(f"{where}: {value!r} is no list of {len(inner)} numbers"[:200])
        for number in value:
            _check_field(where, number, inner[0], most)
    elif origin in (UnionType, Union):
        if value is not None:
            _check_field(where, value, inner[0], most)
    elif origin is Literal:
        if value not in inner:
            raise ConfigError(f"{where}: {value!r} is none of {', '.join(map(str, inner))}"[:200])
    elif hint is int:
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= most:
            raise ConfigError(f"{where}: {value!r} is no whole number from 1 to {most}"[:200])
    else:
        wanted = (int, float) if hint is float else origin or hint
        if not isinstance(value, wanted) or (isinstance(value, bool) and hint is not bool):
            raise ConfigError(f"{where}: {value!r} is no {getattr(origin or hint, '__name__', hint)}"[:200])


def build_model(architecture: str, config: dict[str, Any]) -> DescriptorNetwork:
    """A network with random weights."""
    if architecture not in NETWORKS:
        raise ConfigError(f"there is no architecture {architecture!r}; choose one of {', '.join(NETWORKS)}")
    network: Callable[[Any], DescriptorNetwork] = resolve_name(NETWORKS[architecture])
    settings = config_from_dict(network.Config, config)  # type: ignore[attr-defined]
    with torch.device("meta"):  # counts without memory
        size = sum(value.numel() for value in network(settings).parameters())
    if size > MOST_PARAMETERS:
        raise ConfigError(f"{architecture}: {size:,} parameters are over the limit of {MOST_PARAMETERS:,}")
    return network(settings)


def architecture_of(model: nn.Module) -> str:
    """The name under which `build_model` builds this network."""
    place = f"{type(model).__module__}:{type(model).__name__}"
    for name, network in NETWORKS.items():
        if network == place:
            return name
    raise ConfigError(f"{type(model).__name__} is not a registered architecture")


def save_model(
    model: DescriptorNetwork,
    path: str | Path,
    name: str,
    card: dict[str, Any] | None = None,
    dtype: torch.dtype = torch.float16,
) -> Path:
    """Write weights, configuration and card as one .safetensors file (atomically)."""
    preprocessing = {key: getattr(model.encoder, key).flatten().tolist() for key in ("mean", "std")}
    metadata = {
        "format": FORMAT,
        "name": name,
        "architecture": architecture_of(model),
        "preprocessing": json.dumps(preprocessing),
    }
    return write_network(path, model, model.config, metadata, card or {}, dtype)


def load_model(name_or_path: str | Path = DEFAULT_MODEL) -> ModelFile:
    """The model of a registered name (weights inside the package), a .safetensors file, or a hub's folder."""
    path = Path(name_or_path)
    if path.suffix == ".safetensors":
        return _read(path)
    if str(name_or_path) not in MODELS:
        if str(name_or_path) and path.is_dir():
            return _read(weights_in(path), metadata_in(path))
        raise ConfigError(
            f"there is no model {str(name_or_path)!r}; choose one of {', '.join(MODELS)}"
            " or give a .safetensors file or a folder that holds one"
        )
    packaged = packaged_weights(str(name_or_path))
    if packaged is not None:
        return _read(packaged)
    architecture, config = MODELS[str(name_or_path)]
    model = untrained(lambda: build_model(architecture, config))
    return ModelFile(model, str(name_or_path), architecture, trained=False)


def packaged_weights(name: str) -> Path | None:
    """Where the package keeps the weights of `name`; None if it has none."""
    path = Path(str(resources.files("coam"))) / "weights" / f"{name}.safetensors"
    return path if path.is_file() else None


def _read(path: Path, described: dict[str, str] | None = None) -> ModelFile:
    def build(metadata: dict[str, str], config: dict[str, Any]) -> DescriptorNetwork:
        model = build_model(metadata["architecture"], config)
        if "preprocessing" in metadata:
            values = _json_object(metadata, "preprocessing")
            for key in ("mean", "std"):
                buffer: Tensor = getattr(model.encoder, key)
                buffer.copy_(torch.tensor(values[key], dtype=buffer.dtype).view(1, 3, 1, 1))
        return model

    model, metadata, card = read_network(path, FORMAT, "coam model", build, described)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    name, head = metadata.get("name", path.stem), retrieval_path(path)
    file = ModelFile(model, name, metadata["architecture"], True, digest, card)
    if not head.is_file():
        return file
    retrieval_digest = hashlib.sha256(head.read_bytes()).hexdigest()
    return dataclasses.replace(
        file, retrieval=load_retrieval_head(head, digest), retrieval_sha256=retrieval_digest
    )


# ---- the head for retrieval, a file beside that of its model


def retrieval_path(weights: str | Path) -> Path:
    """Where the retrieval head of a model's weights lies, if there is one."""
    return Path(weights).with_suffix(".retrieval.safetensors")


def save_retrieval_head(head: RetrievalHead, weights: str | Path, card: dict[str, Any]) -> Path:
    """Write a head that was trained on the encoder in `weights`, and its card, beside them."""
    digest = hashlib.sha256(Path(weights).read_bytes()).hexdigest()
    metadata = {"format": RETRIEVAL_FORMAT, "weights": digest}
    return write_network(retrieval_path(weights), head, head.config, metadata, card)


def load_retrieval_head(path: Path, weights_sha256: str) -> RetrievalHead:
    """Read what `save_retrieval_head` wrote; a head of other weights than these is refused."""

    def build(_: dict[str, str], config: dict[str, Any]) -> RetrievalHead:
        return RetrievalHead(config_from_dict(RetrievalConfig, config))

    head, metadata, _ = read_network(path, RETRIEVAL_FORMAT, "coam retrieval head", build)
    if metadata.get("weights") != weights_sha256:
        raise WeightsError(f"{path}: was trained on other weights; remove it, or get that of these weights")
    return head


# ---- the file of any network


def write_network(
    path: str | Path,
    network: nn.Module,
    config: Any,
    metadata: dict[str, str],
    card: dict[str, Any],
    dtype: torch.dtype = torch.float16,
) -> Path:
    """Write weights in `dtype` and, as JSON in the metadata, configuration (a dataclass) and card.

    float16 halves a file, int8 quarters it (`coam.models.quantised`).
    """
    state = network.state_dict()
    if dtype == torch.int8:
        tensors = quantise(state)
    else:
        tensors = {k: v.to(dtype) if v.is_floating_point() else v for k, v in state.items()}
    described = {"config": json.dumps(dataclasses.asdict(config)), "card": json.dumps(card)}
    return write_safetensors(path, tensors, metadata | described)


def read_network(
    path: Path,
    form: str,
    kind: str,
    build: Callable[[dict[str, str], dict[str, Any]], AnyNetwork],
    described: dict[str, str] | None = None,
) -> tuple[AnyNetwork, dict[str, str], dict[str, Any]]:
    """What `write_network` wrote: the network in evaluation mode, the metadata and the card.

    `build` makes the network from metadata and configuration; a file whose format is not `form` is no `kind`.
    `described` stands for the metadata of a file that has none of ours (`coam.models.hub`).
    """
    if not path.is_file():
        raise WeightsError(f"{path}: no such weights file")
    state, metadata = read_safetensors(path)
    if metadata.get("format") != form and described:
        metadata = described
    if metadata.get("format") != form:
        raise WeightsError(f"{path}: not a {kind} (its metadata lacks format={form!r})")
    try:
        network = build(metadata, _json_object(metadata, "config"))
        network.load_state_dict(restore(state))
        card = _json_object(metadata, "card")
    except (KeyError, ValueError, RuntimeError, TypeError, AttributeError, ConfigError) as error:
        line = " ".join(str(error).split())[:200]
        raise WeightsError(f"{path}: weights and architecture do not fit ({line}); get it again") from error
    return network.eval(), metadata, card


def untrained(build: Callable[[], AnyNetwork]) -> AnyNetwork:
    """A network with fixed random weights, so that it at least gives the same answer every time."""
    with torch.random.fork_rng(devices=[]):  # the caller's own random numbers go on undisturbed
        torch.manual_seed(0)
        return build().eval()


def _json_object(metadata: dict[str, str], key: str) -> dict[str, Any]:
    value: dict[str, Any] = parse_json(metadata[key])
    check_shape(value, dict, key)
    return value

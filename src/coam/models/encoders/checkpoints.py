"""Pretrained encoder weights: read a local file, or fetch the public one. Only tensors are ever unpickled."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor

from coam.errors import WeightsError
from coam.models.encoders.base import Encoder
from coam.store.tensor_files import read_safetensors


def read_tensors(path: str | Path) -> dict[str, Tensor]:
    """Tensors by name from a local .safetensors, .pth or .pt file; a pickle may hold tensors only."""
    path = Path(path)
    if not path.is_file():
        raise WeightsError(f"{path} does not exist; give a .safetensors or .pth file")
    if path.suffix == ".safetensors":
        return read_safetensors(path, "fetch it again")[0]
    if path.suffix in (".pth", ".pt"):
        return read_pickled_tensors(path)
    raise WeightsError(f"{path} is neither .safetensors nor .pth; give a weights file of one of these kinds")


def read_pickled_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors by name from a file of torch.save, also where they lie one level down; nothing in it is run."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, OSError, ValueError, KeyError) as error:
        reason = _first_line(error)
        raise WeightsError(f"{path} is damaged or holds more than tensors ({reason}); give another") from None
    for key in ("state_dict", "extractor"):  # checkpoints of trainers; DISK's
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(value, Tensor) for value in content.values()):
        raise WeightsError(f"{path} holds no tensors by name; give a file made by torch.save(state_dict)")
    return dict(content)


def load_pretrained(encoder: Encoder, source: str | Path | None = None, *, download: bool = False) -> None:
    """Fill `encoder` from the file `source`, or with `download` from the weights that torchvision publishes.

    Names and shapes must fit; the classifier is left out.
    """
    if source is not None:
        load_tensors(encoder, read_tensors(source), str(source))
        return
    if not download:
        raise WeightsError("no weights named; give a .safetensors or .pth file, or ask for a download")
    url = encoder.public_url
    if url is None:
        raise WeightsError(f"no public weights are known for {type(encoder).__name__}; give a local file")
    try:
        tensors = torch.hub.load_state_dict_from_url(
            url, map_location="cpu", check_hash=True, weights_only=True
        )
    except (OSError, RuntimeError, pickle.UnpicklingError) as error:
        # No network, a wrong hash, or more than tensors in the file.
        raise WeightsError(f"cannot fetch {url} ({_first_line(error)}); give a local file instead") from None
    load_tensors(encoder, tensors, url)


def public_weights(encoder: Encoder) -> Path | None:
    """Where torch keeps the weights that torchvision publishes for this encoder; None if none are known.

    The file may not be there: `load_pretrained(encoder, download=True)` puts it there.
    """
    if encoder.public_url is None:
        return None
    return Path(torch.hub.get_dir()) / "checkpoints" / encoder.public_url.rsplit("/", 1)[-1]


def load_tensors(encoder: Encoder, tensors: Mapping[str, Tensor], origin: str) -> None:
    """Fill `encoder` from named tensors; `origin` is what errors call them."""
    given = encoder.with_own_names(tensors)
    wanted = encoder.state_dict()
    # Counters of batch norm do nothing at inference, and many files leave them out.
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    unknown = [name for name in given if name not in wanted]
    misfits = [name for name, value in given.items() if name in wanted and value.shape != wanted[name].shape]
    for problem, names in (("lacks", missing), ("has unknown", unknown), ("has a wrong shape of", misfits)):
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            kind = type(encoder).__name__
            raise WeightsError(f"{origin} {problem} {names[0]}{more}; give a file made for {kind}")
    encoder.load_state_dict(given, strict=False)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__

""".safetensors files: written whole or not at all, read with their metadata; damage is one line."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt

from coam.errors import CoamError, WeightsError
from coam.store.atomic import StrPath, atomic_write
from coam.store.checksums import rows_checksum

if TYPE_CHECKING:
    from torch import Tensor

_CHECKSUM = "checksum"


def _checksum(tensors: Mapping[str, Any], metadata: Mapping[str, str]) -> str:
    """Of all bytes, names and shapes, the same for torch tensors and numpy arrays."""
    as_bytes = {}
    for name, value in tensors.items():
        flat = value.reshape(-1)
        plain = np.asarray(flat if isinstance(flat, np.ndarray) else flat.view(_byte_type()).numpy())
        as_bytes[f"{name} {tuple(value.shape)}"] = plain.view(np.uint8)
    return f"{rows_checksum(json.dumps(metadata, sort_keys=True), as_bytes):08x}"


def _byte_type() -> Any:
    import torch

    return torch.uint8


def write_safetensors(
    path: StrPath, tensors: Mapping[str, Tensor | npt.NDArray[Any]], metadata: dict[str, str]
) -> Path:
    """Write tensors (of any device) or arrays, and metadata; equal content is an equal file to the byte."""
    from safetensors.numpy import save_file

    arrays = {
        name: np.asarray(value if isinstance(value, np.ndarray) else value.detach().cpu().numpy(), order="C")
        for name, value in tensors.items()
    }
    metadata = metadata | {_CHECKSUM: _checksum(arrays, metadata)}
    with atomic_write(path) as temporary:
        save_file(arrays, temporary, metadata=metadata)
        _sort_metadata(temporary)
    return Path(path)


def _sort_metadata(path: Path) -> None:
    """Put the metadata in the order of its keys: safetensors writes another one each time.

    So a model that is saved again has the checksum by which its matches are known.
    """
    with open(path, "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        header = json.loads(file.read(length))
        header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        file.seek(8)
        file.write(text.ljust(length))


def read_safetensors(
    path: StrPath,
    advice: str = "get it again",
    kind: type[CoamError] = WeightsError,
    framework: Literal["pt", "numpy"] = "pt",
) -> tuple[dict[str, Any], dict[str, str]]:
    """Tensors (or numpy arrays) by name, and the metadata; `kind` is raised for what is no such file."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework=framework) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
            metadata = dict(file.metadata() or {})
        checksum = metadata.pop(_CHECKSUM, None)  # files from before have none
        if checksum is not None and checksum != _checksum(tensors, metadata):
            raise ValueError("its checksum is another")
        return tensors, metadata
    except (SafetensorError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise kind(
            f"{os.fspath(path)}: is damaged, not a readable .safetensors file ({reason}); {advice}"
        ) from error

""".safetensors files: written whole or not at all, read with their metadata; damage is one line."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from coam.errors import CoamError, WeightsError
from coam.store.atomic import StrPath, atomic_write

if TYPE_CHECKING:
    from torch import Tensor


def write_safetensors(path: StrPath, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> Path:
    """Write tensors (of any device) and metadata, as readable as any other file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    on_host = {name: value.detach().cpu().contiguous() for name, value in tensors.items()}
    with atomic_write(path) as temporary:
        try:
            save_file(on_host, temporary, metadata=metadata)
        except SafetensorError as error:  # what the system said is only in its text
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise OSError(str(error)) from error
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
    return Path(path)


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
            return tensors, dict(file.metadata() or {})
    except (SafetensorError, OSError, ValueError) as error:
        reason = (str(error).splitlines() or [""])[0]
        raise kind(
            f"{os.fspath(path)}: is damaged, not a readable .safetensors file ({reason}); {advice}"
        ) from error

"""Reading D2-Net's scene_info .npz files without letting them run code.

These files hold object arrays, which numpy stores as pickles; `numpy.load(allow_pickle=True)` would call
whatever a pickle names. Here only the few functions that rebuild numpy arrays may be called; anything else is
refused.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError

_ALLOWED = {
    (module, name)
    for core in ("numpy.core", "numpy._core")
    for module, name in (
        (f"{core}.multiarray", "_reconstruct"),
        (f"{core}.multiarray", "scalar"),
        (f"{core}.numeric", "_frombuffer"),
        ("numpy", "ndarray"),
        ("numpy", "dtype"),
    )
}


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds numpy arrays and plain values (numbers, text, lists, dicts, None); refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it wants to call {module}.{name}")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_npz(path: str | Path, names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    """The arrays `names` of an .npz file, object arrays included; nothing else in the file is read."""
    path = Path(path)
    try:
        with zipfile.ZipFile(path) as archive:
            missing = [name for name in names if f"{name}.npy" not in archive.namelist()]
            if missing:
                raise DataError(
                    f"{path} lacks {missing[0]!r}; give scene_info files as D2-Net publishes them"
                )
            return {name: _read_npy(archive.read(f"{name}.npy")) for name in names}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; give the folder with D2-Net's scene_info files") from error
    except pickle.UnpicklingError as error:
        raise DataError(f"{path} is refused: {error}; take the file from its publisher again") from error
    except (zipfile.BadZipFile, ValueError, EOFError, TypeError, AttributeError, IndexError) as error:
        raise DataError(f"{path} is damaged ({error}); take the file from its publisher again") from error


def _read_npy(data: bytes) -> npt.NDArray[Any]:
    stream = io.BytesIO(data)
    version = np.lib.format.read_magic(stream)
    read_header = np.lib.format.read_array_header_1_0
    if version >= (2, 0):
        read_header = np.lib.format.read_array_header_2_0
    shape, _, kind = read_header(stream)
    if not kind.hasobject:
        plain: npt.NDArray[Any] = np.load(io.BytesIO(data), allow_pickle=False)
        return plain
    array = _ArrayUnpickler(stream).load()
    if not isinstance(array, np.ndarray):
        raise ValueError("an object array holds something else")
    return array.reshape(shape)

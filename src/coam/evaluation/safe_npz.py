"""Published .npz index files hold pickled object arrays, and unpickling can run any code. Here it cannot.

`load_npz` reads plain arrays as usual and object arrays through an unpickler that knows arrays, dtypes,
scalars and the builtin containers, and refuses every other name, so that no function of a foreign file is
ever called.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy

from coam.errors import DataError

_MULTIARRAY = {"_reconstruct", "scalar"}
_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # how Python 2 and protocol 2 write bytes
    *(
        (module, name)
        for module in ("numpy.core.multiarray", "numpy._core.multiarray")
        for name in _MULTIARRAY
    ),
    *((module, "_frombuffer") for module in ("numpy.core.numeric", "numpy._core.numeric")),
}


class _ArrayUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED and not (module == "numpy.dtypes" and name.endswith("DType")):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


def load_npz(path: Path) -> dict[str, Any]:
    """Arrays of an .npz by name, object arrays included, without running code from the file."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name for name in archive.namelist() if name.endswith(".npy")]
            return {name[:-4]: _read_array(archive.read(name)) for name in names}
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path.name} is refused: {error}, which no index file needs; get it from its authors"
        ) from error
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, KeyError, IndexError) as error:
        raise DataError(f"{path.name} is not a readable .npz file ({error}); get it again") from error


def _read_array(content: bytes) -> Any:
    stream = io.BytesIO(content)
    version = npy.read_magic(stream)
    read_header = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if not dtype.hasobject:
        return np.load(io.BytesIO(content), allow_pickle=False)
    array = _ArrayUnpickler(stream, encoding="latin1").load()
    return np.asarray(array, dtype=object).reshape(shape, order="F" if fortran else "C")

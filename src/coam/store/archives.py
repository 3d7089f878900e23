""".npz files, read without running code and within bounds: ours, and published ones with object arrays.

Unpickling can call anything that the file names. Here only the few functions that rebuild numpy arrays may be
called; anything else is refused. An archive of some kilobytes can expand to gigabytes: what its entries say
they hold is added up before any is read, and no more is read than that.
"""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from coam.errors import DataError
from coam.store.atomic import StrPath

_ALLOWED = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("_codecs", "encode"),  # how Python 2 and protocol 2 write bytes
    *(
        (f"{core}.multiarray", name)
        for core in ("numpy.core", "numpy._core")
        for name in ("_reconstruct", "scalar")
    ),
    *((f"{core}.numeric", "_frombuffer") for core in ("numpy.core", "numpy._core")),
}


class _ArrayUnpickler(pickle.Unpickler):
    """Rebuilds numpy arrays and plain values (numbers, text, lists, dicts, None); refuses all else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED and not (module == "numpy.dtypes" and name.endswith("DType")):
            raise pickle.UnpicklingError(f"it asks for {module}.{name}")
        return super().find_class(module, name)


MOST_BYTES = 4 << 30  # of all arrays of an archive; larger ones are not made by us or known to us


def open_archive(path: StrPath, most_bytes: int = MOST_BYTES) -> zipfile.ZipFile:
    """The archive, none of whose entries is encrypted and which expands to no more than `most_bytes`."""
    archive = zipfile.ZipFile(path)
    entries = archive.infolist()
    if any(entry.flag_bits & 1 for entry in entries):
        archive.close()
        raise ValueError("it is encrypted")
    if sum(entry.file_size for entry in entries) > most_bytes:
        archive.close()
        raise ValueError(f"it expands to more than {most_bytes / 1e9:.1f} GB")
    return archive


def read_plain_npz(path: StrPath, most_bytes: int = MOST_BYTES) -> dict[str, npt.NDArray[Any]]:
    """Arrays by name of an .npz without object arrays; what is none raises any error."""
    with open_archive(path, most_bytes) as archive:
        names = [name for name in archive.namelist() if name.endswith(".npy")]
        return {name[:-4]: _plain(archive.read(name)) for name in names}


def _plain(content: bytes) -> npt.NDArray[Any]:
    array: npt.NDArray[Any] = np.load(io.BytesIO(content), allow_pickle=False)
    return array


def read_npz(path: str | Path, names: Sequence[str] | None = None) -> dict[str, npt.NDArray[Any]]:
    """Arrays of an .npz by name, object arrays included; only `names` are read, if given."""
    path = Path(path)
    try:
        with open_archive(path) as archive:
            there = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            missing = [name for name in names or () if name not in there]
            if missing:
                raise DataError(f"{path} lacks {missing[0]!r}; get the file from its publisher again")
            wanted = there if names is None else names
            return {name: _read_array(archive.read(f"{name}.npy")) for name in wanted}
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; check the folder of the published index files") from error
    except pickle.UnpicklingError as error:
        raise DataError(
            f"{path} is refused: {error}, which no index file needs; get it from its publisher again"
        ) from error
    except DataError:
        raise
    except Exception as error:  # a damaged or hostile archive can make its readers raise anything at all
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(f"{path} is damaged ({reason}); get it from its publisher again") from error


def _read_array(content: bytes) -> npt.NDArray[Any]:
    stream = io.BytesIO(content)
    read_header = npy.read_array_header_1_0 if npy.read_magic(stream) == (1, 0) else npy.read_array_header_2_0
    shape, fortran, dtype = read_header(stream)
    if not dtype.hasobject:
        return _plain(content)
    array = _ArrayUnpickler(stream, encoding="latin1").load()
    return np.asarray(array, dtype=object).reshape(shape, order="F" if fortran else "C")

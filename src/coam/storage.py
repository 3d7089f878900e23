"""Matches on disk: .npz, .h5 and .json exactly there and back, and files that are whole or not there at all.

A file holds the five arrays of `Matches` and one JSON header with everything else. Nothing is ever pickled.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import secrets
import stat
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coam.errors import CoamError, ConfigError, DataError
from coam.types import Grid, Matches, Size

if TYPE_CHECKING:
    from torch import Tensor

FORMAT = "coam-matches"
VERSION = 1
_ARRAYS: dict[str, tuple[type, int]] = {  # name: (type, dimensions)
    "points0": (np.float32, 2),
    "points1": (np.float32, 2),
    "scores": (np.float32, 1),
    "ids0": (np.int64, 1),
    "ids1": (np.int64, 1),
}
Arrays = dict[str, npt.NDArray[Any]]
Header = dict[str, Any]


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary path beside `path`, with its ending; rename it to `path` when the block succeeds.

    A block that fails, or a machine that stops, leaves what was at `path` before untouched. Missing folders
    are made. Links are followed, so that a linked file is replaced and not the link.
    """
    target = Path(os.path.realpath(path))
    if os.path.isdir(target):
        raise DataError(f"{path}: is a folder; give the name of a file to write")
    temporary = target.parent / f".coam-{secrets.token_hex(6)}{target.suffix}"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # Made here, so that a folder that cannot be written is found out before the block does its work.
        os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        mode = stat.S_IMODE(temporary.stat().st_mode)
    except OSError as error:
        raise _cannot_write(path, error) from error
    try:
        yield temporary
        temporary.chmod(mode)  # some libraries replace the file by one that only its owner may read
        _commit(temporary, target)
    except OSError as error:
        raise _cannot_write(path, error) from error
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def _commit(temporary: Path, target: Path) -> None:
    _sync(temporary)
    os.replace(temporary, target)
    with suppress(OSError):  # not every file system can sync a folder; the file itself is safe
        _sync(target.parent)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _cannot_write(path: str | os.PathLike[str], error: OSError) -> DataError:
    reason = error.strerror or " ".join(str(error).split())
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DataError(f"{os.fspath(path)}: the disk is full ({reason}); free some space and try again")
    return DataError(f"{os.fspath(path)}: cannot be written ({reason}); check the folder and its permissions")


def check_folder(folder: Path) -> None:
    """Refuse an output folder that could not be made or written into; it is not made here.

    Tried and not asked: to root everything looks allowed, also where the file system takes no files.
    """
    existing = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not existing.is_dir():
        raise DataError(f"{existing}: is a file; give a folder")
    trial = existing / f".coam-{secrets.token_hex(6)}"
    try:
        trial.mkdir()
        trial.rmdir()
    except OSError as error:
        raise _cannot_write(folder, error) from error


def write_safetensors(
    path: str | os.PathLike[str], tensors: Mapping[str, Tensor], metadata: dict[str, str]
) -> None:
    """Write a .safetensors file, whole or not at all, as readable as any other file."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    with atomic_write(path) as temporary:
        try:
            save_file(dict(tensors), temporary, metadata=metadata)
        except SafetensorError as error:  # what the system said is only in its text
            number = re.search(r"os error (\d+)", str(error))
            if number is None:
                raise OSError(str(error)) from error
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error


def save_matches(matches: Matches, path: str | os.PathLike[str]) -> Path:
    """Write every field but the photos to `path` (.npz, .h5 or .json), whole or not at all."""
    path = Path(path)
    write, _ = _codec(path)
    header = _header(matches)
    arrays: Arrays = {
        name: np.asarray(getattr(matches, name), dtype=kind) for name, (kind, _) in _ARRAYS.items()
    }
    with atomic_write(path) as temporary:
        write(temporary, header, arrays)
    return path


def load_matches(path: str | os.PathLike[str]) -> Matches:
    """Read what `save_matches` wrote."""
    path = Path(path)
    _, read = _codec(path)
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "no such file"
        raise DataError(f"{path}: {what}; give a .npz, .h5 or .json file of matches")
    # A damaged or foreign file can make its reader raise anything at all.
    try:
        header, arrays = read(path)
        if header["format"] == FORMAT and header["version"] > VERSION:
            raise DataError(f"{path}: was written by a newer coam; upgrade coam to read it")
        return _build(header, arrays)
    except CoamError:
        raise
    except PermissionError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); check its permissions") from error
    except Exception as error:
        raise DataError(
            f"{path}: is damaged or not a file of matches; write it again with coam match"
        ) from error


# ---- header


def _header(matches: Matches) -> Header:
    header = {
        "format": FORMAT,
        "version": VERSION,
        "size0": list(matches.size0),
        "size1": list(matches.size1),
        "grid0": _grid_to_json(matches.grid0),
        "grid1": _grid_to_json(matches.grid1),
        "overlap": None if math.isnan(matches.overlap) else float(matches.overlap),
        "meta": matches.meta,
    }
    try:
        json.dumps(header, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ConfigError(
            f"matches.meta holds a value that JSON cannot ({error}); use plain values only"
        ) from error
    return header


def _grid_to_json(grid: Grid | None) -> Header | None:
    if grid is None:
        return None
    origin, step = [float(v) for v in grid.origin], [float(v) for v in grid.step]
    return {"columns": int(grid.columns), "rows": int(grid.rows), "origin": origin, "step": step}


def _grid_from_json(value: Header | None) -> Grid | None:
    if value is None:
        return None
    origin, step = value["origin"], value["step"]
    return Grid(int(value["columns"]), int(value["rows"]), (origin[0], origin[1]), (step[0], step[1]))


def _build(header: Header, arrays: Arrays) -> Matches:
    if header["format"] != FORMAT:
        raise ValueError("another format")
    checked = {name: _checked(name, arrays[name]) for name in _ARRAYS}
    if len({len(array) for array in checked.values()}) != 1:
        raise ValueError("arrays of different lengths")
    overlap = header["overlap"]
    return Matches(
        **checked,
        size0=_size(header["size0"]),
        size1=_size(header["size1"]),
        grid0=_grid_from_json(header["grid0"]),
        grid1=_grid_from_json(header["grid1"]),
        overlap=float("nan") if overlap is None else float(overlap),
        meta=dict(header["meta"]),
    )


def _checked(name: str, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    kind, dimensions = _ARRAYS[name]
    if array.dtype != kind or array.ndim != dimensions or (dimensions == 2 and array.shape[1] != 2):
        raise ValueError(f"{name} has type {array.dtype} and shape {array.shape}")
    return array


def _size(value: list[int]) -> Size:
    width, height = value
    return int(width), int(height)


# ---- one writer and one reader for each ending


def _write_npz(path: Path, header: Header, arrays: Arrays) -> None:
    content: dict[str, Any] = {"header": np.array(json.dumps(header)), **arrays}
    with path.open("wb") as file:  # given a name, numpy would add its own ending to AB.NPZ
        np.savez_compressed(file, **content)


def _read_npz(path: Path) -> tuple[Header, Arrays]:
    if not zipfile.is_zipfile(path):  # np.load would also take .npy, and name pickles in its message
        raise ValueError("not a zip file")
    with np.load(path, allow_pickle=False) as file:
        return json.loads(str(file["header"])), {name: file[name] for name in _ARRAYS}


def _write_h5(path: Path, header: Header, arrays: Arrays) -> None:
    import h5py

    with h5py.File(path, "w") as file:
        file.create_dataset("header", data=json.dumps(header))  # a data set: an attribute ends at 64 KiB
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def _read_h5(path: Path) -> tuple[Header, Arrays]:
    import h5py

    with h5py.File(path, "r") as file:
        return json.loads(file["header"].asstr()[()]), {name: file[name][()] for name in _ARRAYS}


def _write_json(path: Path, header: Header, arrays: Arrays) -> None:
    # Every float32 is a double, and Python prints doubles exactly, so nothing is lost in the text.
    content = header | {name: array.tolist() for name, array in arrays.items()}
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError as error:
        raise ConfigError(
            "JSON cannot hold NaN or infinite points and scores; save as .npz or .h5"
        ) from error
    path.write_text(text + "\n", encoding="utf-8")


def _read_json(path: Path) -> tuple[Header, Arrays]:
    content = json.loads(path.read_text(encoding="utf-8"))
    arrays: Arrays = {name: np.array(content[name], dtype=kind) for name, (kind, _) in _ARRAYS.items()}
    for name in ("points0", "points1"):
        if arrays[name].size == 0:
            arrays[name] = arrays[name].reshape(0, 2)  # an empty list does not say its shape
    return content, arrays


_CODECS: dict[str, tuple[Callable[[Path, Header, Arrays], None], Callable[[Path], tuple[Header, Arrays]]]] = {
    ".npz": (_write_npz, _read_npz),
    ".h5": (_write_h5, _read_h5),
    ".json": (_write_json, _read_json),
}
ENDINGS = tuple(_CODECS)


def _codec(
    path: Path,
) -> tuple[Callable[[Path, Header, Arrays], None], Callable[[Path], tuple[Header, Arrays]]]:
    ending = path.suffix.lower()
    if ending not in _CODECS:
        known = ", ".join(ENDINGS)
        raise ConfigError(f"{path}: unknown ending {ending!r} for a file of matches; use one of {known}")
    return _CODECS[ending]

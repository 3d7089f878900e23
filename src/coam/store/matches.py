"""`Matches` on disk: .npz, .h5 and .json, exactly there and back.

A file holds the five arrays of `Matches` and one JSON header with everything else, also their checksum: a
file that was damaged is refused. Nothing is ever pickled.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import CoamError, ConfigError, DataError
from coam.store.archives import read_plain_npz
from coam.store.atomic import atomic_write
from coam.store.checksums import CHECKSUMMED, content_digest
from coam.store.documents import parse_json, read_text
from coam.types import Grid, Matches, Size

FORMAT = "coam-matches"
VERSION = 1
MOST_BYTES = 1 << 30  # of a file, expanded: some ten million matches
_ARRAYS: dict[str, tuple[type, int]] = {  # name: (type, dimensions)
    "points0": (np.float32, 2),
    "points1": (np.float32, 2),
    "scores": (np.float32, 1),
    "ids0": (np.int64, 1),
    "ids1": (np.int64, 1),
}
Arrays = dict[str, npt.NDArray[Any]]
Header = dict[str, Any]


def save_matches(matches: Matches, path: str | os.PathLike[str]) -> Path:
    """Write every field but the photos to `path` (.npz, .h5 or .json), whole or not at all."""
    path = Path(path)
    write, _ = _codec(path)
    header = _header(matches)
    arrays: Arrays = {
        name: np.asarray(getattr(matches, name), dtype=kind) for name, (kind, _) in _ARRAYS.items()
    }
    header["sha256"] = content_digest(header, arrays)
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
        matches = _build(header, arrays)
        if "sha256" in header and header["sha256"] != content_digest(_header(matches), arrays):
            raise ValueError("another checksum")
        return matches
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
    file = read_plain_npz(path, MOST_BYTES)
    return parse_json(str(file["header"])), {name: file[name] for name in _ARRAYS}


def _write_h5(path: Path, header: Header, arrays: Arrays) -> None:
    import h5py

    with h5py.File(path, "w", libver=CHECKSUMMED) as file:
        text = json.dumps(header).encode()
        # A data set: an attribute ends at 64 KiB.
        file.create_dataset("header", data=text, dtype=h5py.string_dtype("utf-8", len(text)))
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def _read_h5(path: Path) -> tuple[Header, Arrays]:
    import h5py

    with h5py.File(path, "r") as file:
        return parse_json(file["header"].asstr()[()]), {name: file[name][()] for name in _ARRAYS}


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
    content = parse_json(read_text(path, "write it again", most_bytes=MOST_BYTES))
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

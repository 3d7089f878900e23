"""`Matches` on disk, in any of the formats of `match_formats`, exactly there and back.

A file holds the five arrays of `Matches` and one JSON header with everything else, also their checksum: a
file that was damaged is refused. Nothing is ever pickled.
"""

from __future__ import annotations

import math
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.store.atomic import StrPath, atomic_write
from coam.store.checksums import content_digest
from coam.store.documents import one_line_for_damage, require_json
from coam.store.match_formats import ARRAYS, ENDINGS, FORMATS, Arrays, Header
from coam.types import Grid, Matches, Size

FORMAT = "coam-matches"
VERSION = 1


def save_matches(matches: Matches, path: StrPath) -> Path:
    """Write every field but the photos to `path`, in the format of its ending, whole or not at all."""
    path = Path(path)
    codec = _codec(path)
    header = _header(matches)
    arrays: Arrays = {
        name: np.asarray(getattr(matches, name), dtype=kind) for name, (kind, _) in ARRAYS.items()
    }
    header["sha256"] = content_digest(header, arrays)
    with atomic_write(path) as temporary:
        codec.write(temporary, header, arrays)
    return path


def load_matches(path: StrPath) -> Matches:
    """Read what `save_matches` wrote."""
    path = Path(path)
    codec = _codec(path)
    with one_line_for_damage(path, "a file of matches", f"a file of matches ({', '.join(ENDINGS)})"):
        header, arrays = codec.read(path)
        if header["format"] == FORMAT and header["version"] > VERSION:
            raise DataError(f"{path}: was written by a newer coam; upgrade coam to read it")
        matches = _build(header, arrays)
        if "sha256" in header and header["sha256"] != content_digest(_header(matches), arrays):
            raise ValueError("another checksum")
        return matches


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
    require_json(header, "matches.meta")
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
    checked = {name: _checked(name, arrays[name]) for name in ARRAYS}
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
    kind, dimensions = ARRAYS[name]
    if array.dtype != kind or array.ndim != dimensions or (dimensions == 2 and array.shape[1] != 2):
        raise ValueError(f"{name} has type {array.dtype} and shape {array.shape}")
    return array


def _size(value: list[int]) -> Size:
    width, height = value
    return int(width), int(height)


def _codec(path: Path) -> ModuleType:
    """The module that reads and writes files with this ending."""
    ending = path.suffix.lower()
    if ending not in FORMATS:
        known = ", ".join(ENDINGS)
        raise ConfigError(f"{path}: unknown ending {ending!r} for a file of matches; use one of {known}")
    return import_module(FORMATS[ending])

"""`Warp` on disk: .npz there and back, and Middlebury's .flo for others to read.

A .npz holds four arrays and one JSON header with everything else; nothing is ever pickled. A .flo holds the
displacements of photo 0 at the map's size: "PIEH", width and height (int32), then u, v (float32) row by row,
all little-endian.
"""

from __future__ import annotations

import json
import math
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.store.archives import read_plain_npz
from coam.store.atomic import StrPath, atomic_write
from coam.store.documents import one_line_for_damage, parse_json, require_json
from coam.types import FloatArray
from coam.warp.field import Warp, WarpField

FORMAT = "coam-warp"
VERSION = 1
ENDINGS = (".npz", ".flo")
MOST_BYTES = 1 << 30  # of a file, expanded: maps of more than 30 million positions
FLO_TAG = b"PIEH"
FLO_UNKNOWN = 1e10  # Middlebury: a displacement above 1e9 is not known
_FIELDS = ("forward", "backward")


def save_warp(warp: Warp, path: StrPath) -> Path:
    """Write `path` (.npz or .flo), whole or not at all."""
    path = Path(path)
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ConfigError(f"{path}: unknown ending {ending!r} for a warp; use one of {', '.join(ENDINGS)}")
    content = flo_bytes(warp.forward.displacement) if ending == ".flo" else None
    header = _header(warp)
    with atomic_write(path) as temporary:
        if content is not None:
            temporary.write_bytes(content)
        else:
            with temporary.open("wb") as file:  # given a name, numpy would add its own ending
                arrays: dict[str, Any] = {"header": np.array(json.dumps(header)), **_arrays(warp)}
                np.savez_compressed(file, **arrays)
    return path


def load_warp(path: StrPath) -> Warp:
    """Read the .npz that `save_warp` wrote."""
    path = Path(path)
    with one_line_for_damage(path, "a warp", "a .npz file of a warp"):
        if not zipfile.is_zipfile(path):
            raise ValueError("not a zip file")
        file = read_plain_npz(path, MOST_BYTES)
        return _build(parse_json(str(file["header"])), file, path)


def flo_bytes(displacement: FloatArray) -> bytes:
    """Displacements (h, w, 2) as the content of a .flo file; nan becomes "unknown"."""
    height, width = displacement.shape[:2]
    values = np.where(np.isfinite(displacement), displacement, FLO_UNKNOWN).astype("<f4")
    return FLO_TAG + np.asarray([width, height], dtype="<i4").tobytes() + values.tobytes()


def _header(warp: Warp) -> dict[str, Any]:
    header = {
        "format": FORMAT,
        "version": VERSION,
        "size0": list(warp.forward.size),
        "size1": list(warp.backward.size),
        "overlap": None if math.isnan(warp.overlap) else float(warp.overlap),
        "meta": warp.meta,
    }
    require_json(header, "warp.meta")
    return header


def _arrays(warp: Warp) -> dict[str, npt.NDArray[np.float32]]:
    parts = {name: getattr(warp, name) for name in _FIELDS}
    return {
        f"{name}_{what}": np.asarray(getattr(part, what), dtype=np.float32)
        for name, part in parts.items()
        for what in ("points", "certainty")
    }


def _build(header: dict[str, Any], arrays: Any, path: Path) -> Warp:
    if header["format"] != FORMAT:
        raise DataError(f"{path}: holds no warp but {header['format']}; give a .npz file of a warp")
    if header["version"] > VERSION:
        raise DataError(f"{path}: was written by a newer coam; upgrade coam to read it")
    sizes = [(int(width), int(height)) for width, height in (header["size0"], header["size1"])]
    fields = []
    for name, size, other in zip(_FIELDS, sizes, sizes[::-1], strict=True):
        points, certainty = arrays[f"{name}_points"], arrays[f"{name}_certainty"]
        if points.dtype != np.float32 or certainty.dtype != np.float32:
            raise ValueError("another type")
        if certainty.ndim != 2 or points.shape != (*certainty.shape, 2):
            raise ValueError("another shape")
        fields.append(WarpField(points, certainty, size, other))
    overlap = header["overlap"]
    return Warp(
        fields[0], fields[1], float("nan") if overlap is None else float(overlap), dict(header["meta"])
    )

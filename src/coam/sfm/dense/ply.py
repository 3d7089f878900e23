"""Coloured points with normals as a binary PLY, which MeshLab, CloudCompare and Blender read."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.sfm.dense.fusion import DensePoints
from coam.store.atomic import atomic_write, require_space

_ROW = np.dtype(
    [(name, "<f4") for name in ("x", "y", "z", "nx", "ny", "nz")]
    + [(name, "u1") for name in ("red", "green", "blue")]
)
_NAMES = {"<f4": "float", "|u1": "uchar"}


def write_points(path: Path, parts: Iterable[DensePoints]) -> int:
    """Write points as they come, so that memory does not grow with their number; gives that number."""
    count = 0
    with atomic_write(path) as temporary:
        body = temporary.with_name(temporary.name + ".body")
        try:
            with open(body, "wb") as out:
                for part in parts:
                    require_space(body, len(part) * _ROW.itemsize + (1 << 20))
                    _rows(part).tofile(out)
                    count += len(part)
            with open(temporary, "wb") as whole, open(body, "rb") as rows:
                whole.write(_header(count).encode())
                shutil.copyfileobj(rows, whole)
        finally:
            body.unlink(missing_ok=True)
    return count


def _rows(points: DensePoints) -> npt.NDArray[np.void]:
    rows = np.empty(len(points), _ROW)
    for index, name in enumerate("xyz"):
        rows[name], rows[f"n{name}"] = points.points[:, index], points.normals[:, index]
    for index, name in enumerate(("red", "green", "blue")):
        rows[name] = points.colours[:, index]
    return rows


def _header(count: int) -> str:
    fields = "".join(f"property {_NAMES[_ROW[name].str]} {name}\n" for name in _ROW.names or ())
    return f"ply\nformat binary_little_endian 1.0\nelement vertex {count}\n{fields}end_header\n"


def read_points(path: str | Path) -> DensePoints:
    """Read what `write_points` wrote; of how many photos agree nothing is known any more (0)."""
    with open(path, "rb") as file:
        head = file.read(4096)
        count, end = _vertices(head), head.find(b"end_header\n")
        if end < 0 or count is None or head[: end + 11] != _header(count).encode():
            raise DataError(f"{path}: is no PLY of ours; make it with: coam sfm PHOTOS -o MODEL --dense")
        file.seek(end + 11)
        rows = np.fromfile(file, _ROW, count)
    if len(rows) != count:
        raise DataError(f"{path}: is cut off; make it again with: coam sfm PHOTOS -o MODEL --dense")
    points, normals = (
        np.stack([rows[name] for name in names], axis=1) for names in (("x", "y", "z"), ("nx", "ny", "nz"))
    )
    colours = np.stack([rows[name] for name in ("red", "green", "blue")], axis=1)
    return DensePoints(points, normals, colours, np.zeros(count, np.uint8))


def _vertices(head: bytes) -> int | None:
    for line in head.split(b"\n"):
        if line.startswith(b"element vertex "):
            return int(line.split()[2])
    return None

"""The size of COLMAP's binary files against what they say they hold.

COLMAP believes the counts that it reads: of a damaged file it reads on past the end, for hours or into all
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import cache
from pathlib import Path


@cache
def _parameter_counts() -> dict[int, int]:
    """Numbers of parameters of COLMAP's camera models, by id."""
    import pycolmap

    models = {name: int(i) for name, i in pycolmap.CameraModelId.__members__.items() if name != "INVALID"}
    make = pycolmap.Camera.create_from_model_name
    return {number: len(make(0, name, 1.0, 4, 4).params) for name, number in models.items()}


class _Content:
    """Bytes and a place in them; beyond their end is a `ValueError`."""

    def __init__(self, content: bytes) -> None:
        self.content, self.place = content, 0

    def skip(self, size: int) -> None:
        self.place += size
        if self.place > len(self.content):
            raise ValueError("it ends too early")

    def read(self, form: str) -> int:
        before, size = self.place, struct.calcsize(form)
        self.skip(size)
        return int(struct.unpack_from(form, self.content, before)[0])

    def skip_text(self) -> None:
        end = self.content.find(b"\0", self.place)
        if end < 0:
            raise ValueError("a name does not end")
        self.place = end + 1


def _camera(content: _Content) -> None:
    content.skip(4)
    model = content.read("<i")
    if model not in _parameter_counts():
        raise ValueError(f"there is no camera model {model}")
    content.skip(16 + 8 * _parameter_counts()[model])


def _image(content: _Content) -> None:
    content.skip(4 + 7 * 8 + 4)  # id, pose, camera
    content.skip_text()
    content.skip(24 * content.read("<Q"))  # points: x, y, id


def _point(content: _Content) -> None:
    content.skip(8 + 24 + 3 + 8)  # id, position, colour, error
    content.skip(8 * content.read("<Q"))  # track: image, point


def _rig(content: _Content) -> None:
    content.skip(4)
    sensors = content.read("<I")
    content.skip(8 if sensors else 0)  # the reference: kind, id
    for _ in range(sensors - 1):
        content.skip(8)
        content.skip(7 * 8 if content.read("<B") else 0)  # its pose in the rig


def _frame(content: _Content) -> None:
    content.skip(4 + 4 + 7 * 8)  # id, rig, pose
    content.skip(16 * content.read("<I"))  # data: sensor kind, sensor, id


_KINDS: dict[str, Callable[[_Content], None]] = {
    "cameras.bin": _camera,
    "images.bin": _image,
    "points3D.bin": _point,
    "rigs.bin": _rig,
    "frames.bin": _frame,
}


def check_binaries(folder: Path) -> None:
    """A `ValueError` where a binary file of a model is shorter or longer than its counts say."""
    for name, skip_one in _KINDS.items():
        path = folder / name
        if not path.is_file():
            continue
        content = _Content(path.read_bytes())
        try:
            for _ in range(content.read("<Q")):
                skip_one(content)
            if content.place != len(content.content):
                raise ValueError("it goes on after its end")
        except ValueError as error:
            raise ValueError(f"{name} is damaged: {error}") from error

"""COLMAP's binary files: their size against what they say they hold, and parts of them without the rest.

COLMAP believes the counts that it reads: of a damaged file it reads on past the end, for hours or into all
memory.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


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

    def read_text(self) -> str:
        end = self.content.find(b"\0", self.place)
        if end < 0:
            raise ValueError("a name does not end")
        text = self.content[self.place : end].decode(errors="surrogateescape")
        self.place = end + 1
        return text


def _camera(content: _Content) -> None:
    content.skip(4)
    model = content.read("<i")
    if model not in _parameter_counts():
        raise ValueError(f"there is no camera model {model}")
    content.skip(16 + 8 * _parameter_counts()[model])


def _image(content: _Content) -> None:
    content.skip(4 + 7 * 8 + 4)  # id, pose, camera
    content.read_text()
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


@dataclass(frozen=True)
class StoredImage:
    """Where images.bin holds the points of one image."""

    name: str
    camera: int  # id
    begin: int  # byte of its first point
    count: int


def image_places(path: Path) -> list[StoredImage]:
    """The images of images.bin, without their points; a `ValueError` where it is damaged."""
    content = _Content(path.read_bytes())
    found = []
    for _ in range(content.read("<Q")):
        content.skip(4 + 7 * 8)  # id, pose
        camera, name = content.read("<I"), content.read_text()
        count = content.read("<Q")
        found.append(StoredImage(name, camera, content.place, count))
        content.skip(24 * count)
    return found


def point_ids(content: bytes) -> npt.NDArray[np.uint64]:
    """Ids (n,) of the 3D points of an image's points, as images.bin has them: x, y, id; the largest: none."""
    return np.frombuffer(content, [("place", "<f8", 2), ("id", "<u8")])["id"]


def point_positions(path: Path) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.float64]]:
    """Ids (n,), ascending, and positions (n, 3) of points3D.bin; a `ValueError` where it is damaged."""
    content = path.read_bytes()
    count, place = _Content(content).read("<Q"), 8
    places = np.zeros(min(count, len(content) // 51), np.int64)
    length = struct.Struct("<Q").unpack_from
    try:
        for index in range(count):
            places[index] = place
            place += 51 + 8 * length(content, place + 43)[0]  # id, position, colour, error; track
    except (IndexError, struct.error) as error:
        raise ValueError("it ends too early") from error
    if place != len(content):
        raise ValueError("it ends too early or goes on after its end")
    head = np.frombuffer(content, np.uint8)[places[:, None] + np.arange(32)]
    records: npt.NDArray[Any] = head.view([("id", "<u8"), ("position", "<f8", 3)])[:, 0]
    order = np.argsort(records["id"])
    return records["id"][order], records["position"][order]


def stored_cameras(path: Path) -> dict[int, tuple[str, int, int, list[float]]]:
    """Cameras of cameras.bin by id: model, width, height, parameters; a `ValueError` where it is damaged."""
    import pycolmap

    names = {int(number): name for name, number in pycolmap.CameraModelId.__members__.items()}
    content = _Content(path.read_bytes())
    found = {}
    for _ in range(content.read("<Q")):
        begin = content.place
        _camera(content)
        number, model, width, height = struct.unpack_from("<IiQQ", content.content, begin)
        count = _parameter_counts()[model]
        parameters = struct.unpack_from(f"<{count}d", content.content, begin + 24)
        found[number] = names[model], width, height, list(parameters)
    return found

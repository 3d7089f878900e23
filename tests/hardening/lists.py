"""Lists that a user gives (pairs, cameras): any bytes, any numbers, any length."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from hardening.attempts import Attack, command_line
from support.odd_files import photo

RANDOM = np.random.default_rng(0).bytes(3000)
CONTENTS = {
    "empty": b"",
    "not-utf-8": b"a.png \xff\xfe.png\n",
    "utf-16": "a.png b.png\n".encode("utf-16"),
    "nul": b"a.png \0.png\n",
    "zeros": bytes(5000),
    "random": RANDOM,
    "one-word": b"a.png\n",
    "three-words": b"a.png b.png c.png\n",
    "unknown": b"x.png y.png\n",
    "itself": b"a.png a.png\n",
    "quote": b'"a.png b.png\n',
    "escape": b"a.png \x1b[2J.png\n",
    "long-line": b"a" * 1_000_000,
    "many-lines": b"x y\n" * 300_000,
    "parent": b"../../a.png b.png\n",
    "comment": b"# only\n",
    "folder": None,
    "pipe": None,
    "gone": None,
    "too-large": b" " * (65 << 20),
}
CAMERAS = (
    "a.png",
    "a.png PINHOLE",
    "a.png PINHOLE 40 32",
    "PINHOLE 40 32 1 1 1",
    "PINHOLE x 32 50 50 20 16",
    "INVALID 40 32 5",
    "PINHOLE 40 32 nan 50 20 16",
    "PINHOLE 40 32 inf 50 20 16",
    "PINHOLE 40 32 1e400 50 20 16",
    "PINHOLE 40 32 0 0 20 16",
    "PINHOLE 40 32 -50 -50 20 16",
    f"PINHOLE {10**30} 32 50 50 20 16",
    "PINHOLE 1" + "0" * 5000 + " 32 50 50 20 16",
    "PINHOLE -40 -32 50 50 20 16",
    "PINHOLE 0 0 50 50 20 16",
    "PINHOLE 41 32 50 50 20 16",
    "PINHOLE 40 32 50 50 20 16 1 1",
    "OPENCV 40 32 50 50 20 16 1e300 1e300 0 0",
    "SIMPLE_RADIAL 40 32 1e-300 20 16 0",
    "* PINHOLE 40 32 50 50 20",
)


def attacks(folder: Path) -> Iterator[Attack]:
    """Every list for every option that takes one."""
    del folder
    for kind, content in CONTENTS.items():
        yield Attack("lists", f"sfm-pairs-{kind}", partial(_sfm, "--pairs", content, kind))
        yield Attack("lists", f"match-pairs-{kind}", partial(_match, content, kind))
        yield Attack("lists", f"sfm-cameras-{kind}", partial(_sfm, "--cameras", content, kind))
    for number, line in enumerate(CAMERAS):
        yield Attack("lists", f"sfm-cameras-line-{number}", partial(_sfm, "--cameras", line.encode(), "line"))


def _place(content: bytes | None, kind: str, folder: Path) -> Path:
    import os

    path = folder / "list.txt"
    if content is not None:
        path.write_bytes(content)
    elif kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    return path


def _photos(folder: Path) -> Path:
    photos = folder / "photos"
    photos.mkdir()
    for name in ("a.png", "b.png", "c.png"):
        photo(40, 32).rotate(ord(name[0])).save(photos / name)
    return photos


def _sfm(option: str, content: bytes | None, kind: str, folder: Path) -> str:
    place = _place(content, kind, folder)
    arguments = ["sfm", _photos(folder), "-o", folder / "model", option, place, "--resolution", 64]
    return command_line(*arguments, "--device", "cpu")


def _match(content: bytes | None, kind: str, folder: Path) -> str:
    place = _place(content, kind, folder)
    _photos(folder)
    return command_line(
        "match", "--pairs", place, "-o", folder / "out", "--resolution", 64, "--device", "cpu"
    )

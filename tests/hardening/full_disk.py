"""A disk that is full, or a file that may not grow: one line, the old file is whole, nothing is left.

Every saver of ours writes over a file that is there already. RLIMIT_FSIZE lets no file grow beyond some bytes
(EFBIG); a small tmpfs, where it may be mounted, is really full (ENOSPC).
"""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch

from coam.errors import CoamError
from coam.models.registry import ModelFile, save_model
from coam.sfm.dense.depth_map import DepthMap, save_depth_map
from coam.sfm.dense.fusion import DensePoints
from coam.sfm.dense.ply import write_points
from coam.sfm.tracks.match_graph import Keypoints, save_keypoints
from coam.store.atomic import atomic_write, write_json, write_text
from coam.store.documents import write_sealed_json
from coam.store.journal import PairJournal, Record
from coam.store.matches import save_matches
from coam.store.tensor_files import write_safetensors
from coam.warp.field import Warp, WarpField
from coam.warp.files import save_warp
from hardening.attempts import Attack
from support.small_networks import small_stacked
from support.some_matches import some_matches

SMALL, LARGE = 1 << 12, 1 << 20  # bytes that a file may have; that the tmpfs has
Saver = Callable[[Path], object]


def _journal(path: Path) -> None:
    journal = PairJournal(path)
    try:
        rng = np.random.default_rng(0)
        for number in range(40):
            xy = rng.normal(size=(4000, 2))
            journal.append({(f"a{number}", "b"): Record({"xy": xy}, {"n": np.array(number)}, "stamp")})
        journal.finish()
    finally:
        journal.close()


def _warp(path: Path) -> None:
    rng = np.random.default_rng(0)
    points, certainty = (rng.uniform(0, 1, (400, 500, *last)).astype(np.float32) for last in ((2,), ()))
    field = WarpField(points, certainty, (500, 400), (500, 400))
    save_warp(Warp(field, field), path)


def _picture(path: Path) -> None:
    matches = some_matches(2000)
    rng = np.random.default_rng(0)
    from dataclasses import replace

    photo = rng.integers(0, 255, (1600, 1600, 3)).astype(np.uint8)
    with atomic_write(path) as temporary:  # as `coam match -o` does
        replace(matches, image0=photo, image1=photo).draw().save(temporary)


def _keypoints(path: Path) -> None:
    count = 200_000
    numbers = np.arange(count)
    save_keypoints(
        Keypoints(("a",), (None,), np.array([0, count]), numbers, np.zeros((count, 2)), numbers), path
    )


def _graphs(path: Path) -> None:
    from coam.export.onnx import export_onnx

    network = small_stacked(width=96).eval()
    export_onnx(ModelFile(network, "graph", "stacked", trained=False), path.parent)


def _depth_map(path: Path) -> None:
    rng = np.random.default_rng(0)
    save_depth_map(DepthMap(*(rng.random((600, 800, *last), np.float32) for last in ((), (3,)))), path)


def _dense_points(path: Path) -> None:
    ones, colours = np.ones((200_000, 3), np.float32), np.zeros((200_000, 3), np.uint8)
    write_points(path, iter([DensePoints(ones, ones, colours, colours[:, 0])]))


SAVERS: dict[str, Saver] = {
    "a.npz": lambda path: save_matches(some_matches(100_000), path),
    "a.h5": lambda path: save_matches(some_matches(100_000), path),
    "a.json": lambda path: save_matches(some_matches(50_000), path),
    "a.warp.npz": _warp,
    "a.flo": _warp,
    "weights.safetensors": lambda path: save_model(small_stacked(width=64), path, "x", {}, torch.float32),
    "tensors.safetensors": lambda path: write_safetensors(path, {"a": torch.zeros(1_000_000)}, {}),
    "text.txt": lambda path: write_text(path, "x" * 3_000_000),
    "plain.json": lambda path: write_json(path, ["x" * 100] * 30_000),
    "sealed.json": lambda path: write_sealed_json(path, {"a": ["x" * 100] * 30_000}),
    "matches.png": _picture,
    "keypoints.h5": _keypoints,
    "journal.h5": _journal,
    "depth.npz": _depth_map,
    "dense.ply": _dense_points,
}
if find_spec("onnx"):
    SAVERS["graph.encode.onnx"] = _graphs


def attacks(folder: Path, tmpfs: bool = True) -> Iterator[Attack]:
    """Every saver under a limit of file sizes, and on a full disk where one can be mounted."""
    del folder
    for name, saver in SAVERS.items():
        yield Attack("full disk", f"no file may grow: {name}", partial(_small_files, saver, name))
        if tmpfs and os.geteuid() == 0:
            yield Attack("full disk", f"full: {name}", partial(_small_disk, saver, name))


def _small_files(saver: Saver, name: str, folder: Path) -> str:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = folder / name
    old = _old(path)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SMALL, before[1]))
    try:
        saver(path)
    except CoamError:
        assert _is_whole(path, old), "what was there before is no longer there"
        raise
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    raise AssertionError("it says that it was written")


def _small_disk(saver: Saver, name: str, folder: Path) -> str:
    with small_disk(folder / "disk") as disk:
        if disk is None:
            return "read"  # nothing may be mounted here
        path = disk / name
        old = _old(path)
        try:
            saver(path)
        except CoamError:
            assert _is_whole(path, old), "what was there before is no longer there"
            left = [entry.name for entry in disk.iterdir() if entry.name != name]
            assert [entry for entry in left if not entry.endswith(".parts")] == [], left
            raise
        raise AssertionError("it says that it was written")


def _old(path: Path) -> bytes:
    """What lies there before; a journal is none, as it grows."""
    if path.name == "journal.h5":
        return b""
    path.write_bytes(b"what was there before")
    return path.read_bytes()


def _is_whole(path: Path, old: bytes) -> bool:
    return not old or path.read_bytes() == old


@contextmanager
def small_disk(place: Path) -> Iterator[Path | None]:
    """A file system of a megabyte; None where this process may not mount one."""
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={LARGE}", "none", str(place)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)

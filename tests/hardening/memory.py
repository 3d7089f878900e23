"""Too little memory: one line, exit code 2, and nothing half-written; for every library that takes much."""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from hardening.attempts import Attack, command_line
from support.odd_files import photo


def _torch() -> None:
    import torch

    torch.zeros(10**11)


def _numpy() -> None:
    np.zeros(10**12)


def _opencv() -> None:
    import cv2

    cv2.resize(np.zeros((10, 10, 3), np.uint8), (60_000, 60_000))


def _pillow() -> None:
    photo(16, 16).resize((60_000, 60_000))


def _scipy() -> None:
    from scipy.spatial.distance import cdist

    cdist(np.zeros((300_000, 3)), np.zeros((300_000, 3)))


LIBRARIES: dict[str, Callable[[], None]] = {
    "torch": _torch,
    "numpy": _numpy,
    "opencv": _opencv,
    "pillow": _pillow,
    "scipy": _scipy,
}


def attacks(folder: Path) -> Iterator[Attack]:
    """A command in which a library finds no memory; and whole matches with less and less."""
    del folder
    for name, take in LIBRARIES.items():
        yield Attack("memory", name, partial(_inside_a_command, take))
    for megabytes in (40, 150, 400):
        yield Attack("memory", f"match-{megabytes}-mb", partial(_match, megabytes))


def _bounded(megabytes: int) -> None:
    """This process may take so much more from now on."""
    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(
        resource.RLIMIT_AS, (now + (megabytes << 20), resource.getrlimit(resource.RLIMIT_AS)[1])
    )


def _inside_a_command(take: Callable[[], None], folder: Path) -> str:
    """The real command line, whose samples are read by something that takes too much."""
    import coam.samples

    def instead() -> None:
        take()
        raise AssertionError("there was memory")

    _bounded(2000)
    before = coam.samples.motorcycle
    coam.samples.motorcycle = instead  # type: ignore[assignment]
    try:
        return command_line("demo", "-o", folder / "a.png")
    finally:
        coam.samples.motorcycle = before


def _match(megabytes: int, folder: Path) -> str:
    for name in ("a.png", "b.png"):
        photo(3000, 2500).save(folder / name)
    from coam.matcher import load_matcher

    load_matcher(device="cpu")  # as a matcher that has run before, which then gets a larger photo
    _bounded(megabytes)
    try:
        return command_line(
            "match", folder / "a.png", folder / "b.png", "--resolution", 3000, "-o", folder / "o.npz"
        )
    finally:
        assert sorted(os.listdir(folder)) in (["a.png", "b.png"], ["a.png", "b.png", "o.npz"]), os.listdir(
            folder
        )

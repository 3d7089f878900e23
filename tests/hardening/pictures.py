"""Pictures with damaged bytes: a picture or an ImageError, for every format and every reader."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np

from coam.images import load_image
from hardening.attempts import Attack
from support.odd_files import KINDS, encode, make_odd_files, photo


def attacks(folder: Path, flips: int = 4, odd: bool = True) -> Iterator[Attack]:
    """`flips` damaged copies of every format, and the odd files."""
    folder.mkdir(parents=True, exist_ok=True)
    if odd:
        for file in make_odd_files(folder):
            yield Attack("pictures", f"odd-{file.path.name!r}", partial(_read_file, file.path, file.readable))
    for kind in KINDS:
        try:
            whole = encode(photo(), kind)
        except (KeyError, OSError):  # this Pillow cannot write it
            continue
        for seed in range(flips):
            yield Attack("pictures", f"{kind}-{seed}", partial(_read_damaged, whole, seed))


def _read_file(path: Path, readable: bool | None, folder: Path) -> str:
    load_image(path)
    if readable is False:
        raise AssertionError("was read")
    return "read"


def _read_damaged(whole: bytes, seed: int, folder: Path) -> str:
    rng = np.random.default_rng(seed)
    content = bytearray(whole[: int(len(whole) * rng.uniform(0.3, 1)) if seed % 3 == 0 else None])
    span = len(content) if seed % 2 else min(len(content), 80)  # headers break more
    for place in rng.integers(0, span, 1 + seed % 5):
        content[place] ^= 1 << int(rng.integers(8))
    image = load_image(bytes(content), max_pixels=10_000_000)
    assert image.rgb.dtype == np.uint8
    assert image.rgb.ndim == 3
    return "read"

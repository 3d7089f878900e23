"""Damage of files, the same every time."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np


def flipped(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """`content` with one flipped bit each time, `count` times."""
    rng = np.random.default_rng(seed)
    for position, bit in zip(rng.integers(0, len(content), count), rng.integers(0, 8, count), strict=True):
        damaged = bytearray(content)
        damaged[position] ^= 1 << int(bit)
        yield bytes(damaged)

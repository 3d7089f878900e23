"""Matches with a value in every field, and whether two are the same."""

from __future__ import annotations

import numpy as np

from coam.types import Grid, Matches


def some_matches(count: int = 57, seed: int = 0) -> Matches:
    rng = np.random.default_rng(seed)
    return Matches(
        points0=rng.uniform(0, 4000, (count, 2)).astype(np.float32),
        points1=rng.uniform(0, 4000, (count, 2)).astype(np.float32),
        scores=np.sort(rng.uniform(0, 1, count).astype(np.float32))[::-1].copy(),
        ids0=rng.integers(-1, 2**40, count),
        ids1=rng.integers(-1, 65536, count),
        size0=(4032, 3024),
        size1=(3024, 4032),
        grid0=Grid(128, 96, (15.25, 1 / 3), (31.5, 0.1 + 0.2)),
        grid1=None,
        overlap=0.1 + 0.2,
        meta={
            "model": "cdunet-lite1",
            "seconds": 0.1,
            "rotation": 1,
            "names": ["ä.jpg", "b\n.jpg"],
            "none": None,
        },
        image0=np.zeros((2, 2, 3), np.uint8),
    )


def assert_same_matches(first: Matches, second: Matches) -> None:
    for name in ("points0", "points1", "scores", "ids0", "ids1"):
        a, b = getattr(first, name), getattr(second, name)
        assert a.dtype == b.dtype, name
        assert a.shape == b.shape, name
        assert a.tobytes() == b.tobytes(), name
    for name in ("size0", "size1", "grid0", "grid1", "meta"):
        assert getattr(first, name) == getattr(second, name), name
    assert first.overlap == second.overlap or (np.isnan(first.overlap) and np.isnan(second.overlap))

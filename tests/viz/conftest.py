from __future__ import annotations

import numpy as np
import pytest

from coam.types import Matches


def matches_of(points0, points1, scores, image0, image1) -> Matches:
    count = len(scores)
    sizes = [(image.shape[1], image.shape[0]) for image in (image0, image1)]
    return Matches(
        np.float32(points0).reshape(-1, 2), np.float32(points1).reshape(-1, 2), np.float32(scores),
        np.arange(count), np.arange(count), *sizes, image0=image0, image1=image1,
    )  # fmt: skip


@pytest.fixture
def shifted_pair() -> Matches:
    """Photo 1 shows photo 0 moved by (+12, +5) pixels; 400 exact matches and 50 wild ones, in score order."""
    rng = np.random.default_rng(1)
    coarse = rng.integers(0, 255, (20, 28, 3)).astype(np.uint8)
    world = coarse.repeat(8, axis=0).repeat(8, axis=1)  # (160, 224, 3)
    image0, image1 = world[10:130, 20:200], world[5:125, 8:188]
    points0 = rng.uniform((0, 0), (165, 110), (450, 2))
    points1 = points0 + np.array([12, 5])
    points1[400:] = rng.uniform((0, 0), (179, 119), (50, 2))
    scores = np.linspace(0.95, 0.05, 450)
    return matches_of(points0, points1, scores, np.ascontiguousarray(image0), np.ascontiguousarray(image1))

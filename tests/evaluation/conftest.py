"""Tiny data sets in the exact published layouts, made from one picture full of texture."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coam.evaluation.pairs import EvaluationPair
from coam.types import Matches


def textured(seed: int = 0, size: tuple[int, int] = (160, 120)) -> np.ndarray:
    """Blobs of several sizes (H, W, 3): something for SIFT to hold on to."""
    generator = np.random.default_rng(seed)
    picture = np.zeros((size[1], size[0]))
    for cells in (6, 12, 24, 48):
        coarse = Image.fromarray(generator.integers(0, 256, (cells, cells), dtype=np.uint8))
        picture += np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), dtype=np.float64) / 4
    return np.repeat(picture.astype(np.uint8)[..., None], 3, axis=2)


def save(path: Path, picture: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(picture).save(path)


@pytest.fixture
def hpatches_root(tmp_path: Path) -> Path:
    """i_one with six .ppm and identity homographies (darker and darker), v_two: .png shifted by k px."""
    root = tmp_path / "hpatches"
    base = textured(0)
    save(root / "i_one" / "1.ppm", base)
    for k in range(2, 7):
        save(root / "i_one" / f"{k}.ppm", (base * (1 - 0.1 * (k - 1))).astype(np.uint8))
        (root / "i_one" / f"H_1_{k}").write_text("1 0 0\n0 1 0\n0 0 1\n")
    large = textured(1, (200, 150))
    save(root / "v_two" / "1.png", large[10:130, 10:170])
    for k in (2, 3):
        save(root / "v_two" / f"{k}.png", large[10:130, 10 + k : 170 + k])
        (root / "v_two" / f"H_1_{k}").write_text(f"1.0 0.0 {-k}\n0.0 1.0 0.0\n0.0 0.0 1.0\n")
    return root


class CountingMatcher:
    """Gives identity matches and writes down what it read, like a matcher that encodes photos once."""

    def __init__(self, cache_size: int = 8) -> None:
        self.encoded: list[Path] = []
        self.matched: list[tuple[Path, Path]] = []
        self.cache: list[Path] = []
        self.cache_size = cache_size

    def match_many(self, pairs):
        for pair in pairs:
            for path in pair:
                if path not in self.cache:
                    self.encoded.append(path)
                    self.cache = [*self.cache, path][-self.cache_size :]
            self.matched.append(pair)
            yield identity_matches(*pair)


def identity_matches(path0: Path, path1: Path) -> Matches:
    """Fifty points matched to themselves."""
    points = np.random.default_rng(0).uniform(5, 100, (50, 2)).astype(np.float32)
    with Image.open(path0) as first, Image.open(path1) as second:
        sizes = first.size, second.size
    none = np.full(50, -1, dtype=np.int64)
    return Matches(points, points.copy(), np.linspace(1, 0, 50, dtype=np.float32), none, none, *sizes)


def plugged_in(path0: Path, path1: Path) -> Matches:
    """What a user would write for --matcher conftest:plugged_in."""
    return identity_matches(path0, path1)


@pytest.fixture
def make_pairs(tmp_path: Path) -> Callable[[int, int], list[EvaluationPair]]:
    """`sequences` sequences of `count` pairs (1, k), as HPatches has 108 of 5."""

    def make(sequences: int, count: int) -> list[EvaluationPair]:
        pairs = []
        for s in range(sequences):
            for k in range(1, count + 2):
                path = tmp_path / "photos" / f"s{s}" / f"{k}.png"
                if not path.exists():
                    save(path, np.full((8, 8, 3), (s * 7 + k) % 255, np.uint8))
            for k in range(2, count + 2):
                folder = tmp_path / "photos" / f"s{s}"
                pairs.append(
                    EvaluationPair(
                        f"s{s}/1-{k}", folder / "1.png", folder / f"{k}.png", f"s{s}", homography=np.eye(3)
                    )
                )
        return pairs

    return make

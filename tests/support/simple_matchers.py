"""Pictures full of texture, matches by hand, and matchers as a user might plug them in."""

from pathlib import Path

import numpy as np
from PIL import Image

from coam.evaluation.matchers.by_name import keypoint_matches
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


def matches_of(
    points0: np.ndarray,
    points1: np.ndarray,
    size: tuple[int, int] = (640, 480),
    overlap: float = float("nan"),
) -> Matches:
    """Matches between the given points, (N, 2) each, all equally good, of two photos of one size."""
    first, second = (np.asarray(points, np.float32).reshape(-1, 2) for points in (points0, points1))
    return keypoint_matches(first, second, np.ones(len(first), np.float32), size, size, overlap=overlap)


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
    return keypoint_matches(points, points.copy(), np.linspace(1, 0, 50, dtype=np.float32), *sizes)


def plugged_in(path0: Path, path1: Path) -> Matches:
    """What a user would write for --matcher support.simple_matchers:plugged_in."""
    return identity_matches(path0, path1)

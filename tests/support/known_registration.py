"""Pairs of images whose transform is known, and a matcher that knows it too."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import cv2
import numpy as np

from coam.geometry.homography import apply_homography
from coam.matcher import Matcher
from coam.types import Matches
from support.simple_matchers import matches_of

Points = Callable[[np.ndarray], np.ndarray]  # (N, 2) -> (N, 2)
TURN = np.array([[1.06, -0.11, 14.0], [0.11, 1.06, -9.0], [0, 0, 1]])  # about 6 degrees and 6.6 % larger


def elastic(amplitude: float, wave: float) -> Points:
    """A deformation of waves: each coordinate moves by up to `amplitude` pixels over `wave` pixels."""

    def move(points: np.ndarray) -> np.ndarray:
        x, y = points.T
        turn = 2 * np.pi / wave
        return points + amplitude * np.stack([np.sin(turn * y + 0.4), np.sin(turn * x + 1.1)], axis=1)

    return move


def noisy_matches(
    move: Points,
    size: tuple[int, int] = (640, 480),
    count: int = 1500,
    noise: float = 0.5,
    wrong: float = 0.1,
    seed: int = 0,
    overlap: float = 0.99,
) -> Matches:
    """Matches under `move` with normal noise in pixels, some of them anywhere."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, np.array(size) - 1, (count, 2))
    moved = move(points) + rng.normal(0, noise, points.shape)
    wild = rng.random(count) < wrong
    moved[wild] = rng.uniform(0, np.array(size) - 1, (int(wild.sum()), 2))
    return matches_of(points, moved, size, overlap=overlap)


def seen_through(picture: np.ndarray, matrix: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """`picture` whose pixel x lies at matrix (3, 3) x, in a frame of `size`; black elsewhere."""
    return cv2.warpPerspective(picture, matrix, size, flags=cv2.INTER_CUBIC)


@dataclass
class KnowingMatcher:
    """Finds `matrix` between any two images, with noise: everything but the network of a matcher.

    It looks at the images' sizes only. `unknown`: names nothing; `calls` counts.
    """

    matrix: np.ndarray = field(default_factory=lambda: np.eye(3))
    noise: float = 0.3
    overlap: float = 0.99
    count: int = 1200
    calls: int = 0
    resolution: int = 800

    @property
    def config(self) -> Any:
        return SimpleNamespace(resolution=self.resolution)

    @property
    def file(self) -> Any:
        return SimpleNamespace(name="knowing", sha256="0" * 8)

    def variant(self, **_: Any) -> KnowingMatcher:
        return self

    def match(self, image0: np.ndarray, image1: np.ndarray, mask0: Any = None, mask1: Any = None) -> Matches:
        self.calls += 1
        rng = np.random.default_rng(self.calls)
        size0, size1 = image0.shape[1::-1], image1.shape[1::-1]
        points = rng.uniform(0, np.array(size0) - 1, (self.count, 2))
        moved = apply_homography(self.matrix, points) + rng.normal(0, self.noise, points.shape)
        inside = ((moved >= 0) & (moved <= np.array(size1) - 1)).all(axis=1)
        found = matches_of(points[inside], moved[inside], size0, overlap=self.overlap)
        return Matches(**{**vars(found), "size1": size1})


def as_matcher(knowing: KnowingMatcher) -> Matcher:
    """The same, for what is typed."""
    return knowing  # type: ignore[return-value]

"""The sixteen cameras of the courtyard: where they stand, where they look, their intrinsics."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

WIDTH, HEIGHT, FOCAL = 640, 480, 520.0  # pixels


@dataclass(frozen=True)
class View:
    """A camera on the arc around the fountain."""

    name: str
    eye: tuple[float, float, float]
    target: tuple[float, float, float]
    night: bool

    def rotation(self) -> np.ndarray:
        """Camera-from-world rotation (3, 3) with COLMAP's axes: x right, y down, z forward."""
        forward = np.subtract(self.target, self.eye)
        forward /= np.linalg.norm(forward)
        right = np.cross(forward, (0, 0, 1.0))
        right /= np.linalg.norm(right)
        return np.stack([right, np.cross(forward, right), forward])


def walk() -> list[View]:
    """Twelve day views over 122 degrees and four night views between; height and aim wander a little."""
    views = []
    angles = [("day", i, -61 + 122 * i / 11) for i in range(12)] + [
        ("night", i, a) for i, a in enumerate((-42, -13, 14, 44))
    ]
    for kind, i, angle in angles:
        wander = np.random.default_rng(100 * (kind == "night") + i).normal(size=6)
        radius = 7.3 + 0.35 * wander[0]
        eye = (
            0.2 + radius * math.sin(math.radians(angle)),
            2.0 - radius * math.cos(math.radians(angle)),
            1.65 + 0.13 * wander[1],
        )
        target = (0.2 + 0.35 * wander[2], 2.2 + 0.3 * wander[3], 1.85 + 0.15 * wander[4])
        views.append(View(f"{kind}_{i + 1:02d}", eye, target, kind == "night"))
    return views

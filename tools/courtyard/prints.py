"""Posters, graffiti and a sign, drawn by numbers so that nothing comes from elsewhere."""

from __future__ import annotations

from typing import Any

import numpy as np
from mathutils import Matrix

from courtyard import materials
from courtyard.shapes import box, place, sheet


def poster(at: Matrix, width: float, height: float, seed: int) -> None:
    """A made-up bill: coloured ground, shapes, and lines of strokes that read as print from afar."""
    rng = np.random.default_rng(seed)
    rows, columns = 320, 230
    page = np.ones((rows, columns, 4), np.float32)
    page[..., :3] = rng.uniform(0.45, 0.95, 3)
    y, x = np.mgrid[0:rows, 0:columns]
    for _ in range(4):
        color, cx, cy = rng.uniform(0.05, 0.9, 3), rng.uniform(30, 200), rng.uniform(60, 230)
        r, kind = rng.uniform(25, 75), rng.integers(3)
        inside = [
            np.hypot(x - cx, y - cy) < r,
            np.abs(x - cx) + np.abs(y - cy) < r,
            np.abs((x - cx) * 0.7 + (y - cy) * 0.6) < r / 4,
        ][kind]
        page[inside, :3] = color
    ink = rng.uniform(0.0, 0.25, 3)
    for top, size in ((16, 34), (240, 18), (266, 9), (280, 9), (294, 9)):
        left = 16
        while left < columns - 20:
            stroke = int(rng.uniform(0.12, 0.35) * size) + 2
            tall = int(size * rng.choice([0.6, 1.0]))
            page[top + size - tall : top + size, left : left + stroke, :3] = ink
            if rng.random() < 0.5:
                middle = top + size - tall // 2
                page[middle : middle + max(2, size // 6), left : left + stroke * 2, :3] = ink
            left += stroke * 2 + int(rng.uniform(2, size * 0.3))
    sheet(width, height, materials.picture(page, f"poster{seed}"), at)


def graffiti(at: Matrix, width: float, height: float, seed: int) -> None:
    """Sprayed loops with soft edges, on a cut-out sheet just off the wall."""
    rng = np.random.default_rng(seed)
    rows, columns = 200, int(200 * width / height)
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
    page = np.zeros((rows, columns, 4), np.float32)
    for color in rng.uniform(0.05, 0.85, (3, 3)):
        t = np.linspace(0, 1, 260)
        sway = [
            rng.uniform(0.05, 0.3) * rows * np.sin(2 * np.pi * (rng.uniform(0.5, 4) * t + rng.random()))
            for _ in range(4)
        ]
        px = columns * (0.1 + 0.8 * t) + sway[0] + sway[1] * 0.5
        py = rows * 0.5 + sway[2] + 0.6 * sway[3]
        distance = np.full((rows, columns), 1e9, np.float32)
        for a, b in zip(px, py, strict=True):
            distance = np.minimum(distance, (x - a) ** 2 + (y - b) ** 2)
        cover = np.clip((rng.uniform(6, 10) - np.sqrt(distance)) / 3, 0, 1)
        page[..., :3] = page[..., :3] * (1 - cover[..., None]) + color * cover[..., None]
        page[..., 3] = np.maximum(page[..., 3], cover * 0.9)
    sheet(width, height, materials.picture(page, f"graffiti{seed}", 0.3), at)


def sign(at: Matrix, iron: Any) -> None:
    rng = np.random.default_rng(77)
    page = np.ones((90, 420, 4), np.float32)
    page[..., :3] = (0.16, 0.22, 0.16)
    page[5:85, 5:415, :3] = (0.80, 0.74, 0.56)
    page[9:81, 9:411, :3] = (0.16, 0.24, 0.18)
    left = 30
    while left < 385:
        wide = int(rng.uniform(14, 26))
        page[22:68, left : left + 7, :3] = (0.85, 0.75, 0.45)
        bar = int(rng.choice([22, 42, 61]))
        page[bar : bar + 7, left : left + wide, :3] = (0.85, 0.75, 0.45)
        if rng.random() < 0.5:
            page[22:68, left + wide - 7 : left + wide, :3] = (0.85, 0.75, 0.45)
        left += wide + 9
    box((2.3, 0.05, 0.5), iron, at @ place(0, 0.03, -0.5))
    sheet(2.26, 0.46, materials.picture(page, "sign", 0.4), at @ place(0, -0.004, -0.02))

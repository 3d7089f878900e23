"""The courtyard itself: three old houses around a square with a fountain, and the things people left in it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

import bpy
import courtyard_materials as materials
import numpy as np
from courtyard_shapes import (
    Hole,
    box,
    leaf_cloud,
    mesh,
    pierced_wall,
    place,
    rod,
    sheet,
    tiled_roof,
    turned,
)
from mathutils import Matrix, Vector


@dataclass
class Courtyard:
    """What the night changes: sockets of glowing panes and the places of the lamps."""

    rng: random.Random = field(default_factory=lambda: random.Random(11))
    panes: list[Any] = field(default_factory=list)  # emission sockets of the lit windows
    lamp_glass: list[Any] = field(default_factory=list)  # emission sockets of the lanterns
    lamps: list[tuple[float, float, float]] = field(default_factory=list)


def build() -> Courtyard:
    """Fill the empty scene."""
    yard = Courtyard()
    bpy.ops.wm.read_factory_settings(use_empty=True)
    _ground(yard)
    _back_house(yard, place(-8.5, 6))
    _left_house(yard, place(-8.5, -7, turn=90))
    _right_house(yard, place(8.5, 6, turn=-90))
    _skyline(yard)
    _fountain(place(0.3, 1.6))
    _sculpture(place(-2.9, 2.6))
    _statue(yard, place(3.1, 4.9, turn=185), 1.0)
    _things(yard)
    _plants(yard)
    return yard


# Houses -------------------------------------------------------------------------------------------------------------


def _window(yard: Courtyard, house: Matrix, hole: Hole, frame: Any, sill: Any, shutters: Any = None,
            swing: tuple[float, float] = (12, 12), lit: tuple[float, float, float] | None = None) -> None:  # fmt: skip
    """Frame, bars, pane, sill, and shutters opened by `swing` degrees from the wall."""
    left, right, low, high = hole
    width, height, centre = right - left, high - low, (left + right) / 2
    pane, glow = materials.glass(lit)
    if lit:
        yard.panes.append(glow)
    sheet(width, height, pane, house @ place(centre, 0.19, high))
    for x in (left + 0.035, centre, right - 0.035):
        box((0.07, 0.07, height), frame, house @ place(x, 0.16, low))
    for z in (low, low + 0.36 * height, low + 0.68 * height, high - 0.07):
        box((width, 0.05, 0.05), frame, house @ place(centre, 0.165, z))
    box((width + 0.3, 0.34, 0.09), sill, house @ place(centre, 0.05, low - 0.09), 0.01)
    box((width + 0.36, 0.12, 0.2), sill, house @ place(centre, -0.03, high), 0.012)
    if shutters is None:
        return
    for side, angle in ((-1, swing[0]), (1, swing[1])):
        hinge = left - 0.01 if side < 0 else right + 0.01
        leaf = house @ place(hinge, -0.03, low, side * angle) @ place(side * width / 4, 0)
        half = width / 2 - 0.02
        for x in (-half / 2 + 0.04, half / 2 - 0.04):
            box((0.08, 0.05, height), shutters, leaf @ place(x, 0))
        slats = int(height / 0.085)
        for k in range(slats):
            box((half - 0.1, 0.02, 0.075), shutters, leaf @ place(0, 0, (k + 0.15) * height / slats, tilt=(28, 0)))


def _door(house: Matrix, hole: Hole, boards: Any, surround: Any, iron: Any) -> None:
    """Upright boards, iron bands, a ring, stone jambs and two steps."""
    left, right, low, high = hole
    width, centre = right - left, (left + right) / 2
    count = max(4, int(width / 0.17))
    for k in range(count):
        x = left + (k + 0.5) * width / count
        box((width / count - 0.008, 0.06, high - low), boards, house @ place(x, 0.17 + 0.008 * (k % 2), low))
    for z in (low + 0.35, high - 0.4):
        box((width, 0.03, 0.07), iron, house @ place(centre, 0.125, z))
    turned([(0.02, 0), (0.05, 0.01), (0.05, 0.04), (0.02, 0.05)], iron,
           house @ place(right - 0.2, 0.13, low + 1.05, tilt=(90, 0)), 12)  # fmt: skip
    for x in (left - 0.11, right + 0.11):
        box((0.24, 0.14, high - low + 0.05), surround, house @ place(x, -0.03, low), 0.015)
    box((width + 0.62, 0.2, 0.3), surround, house @ place(centre, -0.04, high + 0.02), 0.02)
    box((width + 0.7, 0.75, 0.13), surround, house @ place(centre, -0.3, 0), 0.02)


def _lantern(yard: Courtyard, at: Matrix, iron: Any) -> None:
    """A wall lantern on a bracket, hanging 0.45 m out at the height of `at`."""
    rod((0, 0, 0.25), (0, -0.5, 0.32), 0.018, iron, at)
    rod((0, 0, -0.1), (0, -0.3, 0.28), 0.012, iron, at)
    _lamp_head(yard, at @ place(0, -0.45, -0.12), iron)


def _lamp_head(yard: Courtyard, at: Matrix, iron: Any) -> None:
    milky, glow = materials.glowing((1.0, 0.62, 0.26))
    yard.lamp_glass.append(glow)
    turned([(0.07, 0), (0.11, 0.3)], milky, at, 6, False)
    turned([(0.15, 0.3), (0.13, 0.34), (0.03, 0.46), (0.015, 0.54)], iron, at, 6, False)
    turned([(0.04, -0.05), (0.085, -0.02), (0.085, 0)], iron, at, 6, False)
    for k in range(6):
        a = math.radians(60 * k)
        rod((0.075 * math.cos(a), 0.075 * math.sin(a), 0), (0.115 * math.cos(a), 0.115 * math.sin(a), 0.3), 0.008, iron, at)
    spot = at @ Vector((0, 0, 0.12))
    yard.lamps.append((spot.x, spot.y, spot.z))


def _back_house(yard: Courtyard, house: Matrix) -> None:
    """Ochre plaster over a plinth of cut stone; an arched-in gateway; a brick annexe at the right."""
    ochre = materials.plaster_wall(3.0, (0.50, 0.29, 0.10), (0.58, 0.41, 0.20), 0.10)
    rust = materials.brick_wall(21.0, (0.34, 0.11, 0.065), (0.50, 0.24, 0.14), 0.04)
    trim = materials.stone(4.0, (0.42, 0.37, 0.29))
    frame = materials.wood((0.5, 0.46, 0.4), 2, (0.72, 0.70, 0.64), 0.58)
    green = materials.wood((0.33, 0.26, 0.18), 2, (0.08, 0.20, 0.13), 0.56)
    teal = materials.wood((0.33, 0.26, 0.18), 2, (0.10, 0.22, 0.27), 0.50)
    oak = materials.wood((0.27, 0.16, 0.08), 2)
    red = materials.wood((0.30, 0.2, 0.12), 2, (0.34, 0.06, 0.04), 0.54)
    iron = materials.metal((0.06, 0.06, 0.065), 0.1)

    upper: list[Hole] = [(0.9, 1.85, 3.55, 5.0), (3.1, 4.05, 3.55, 5.0), (5.5, 6.45, 3.55, 5.0), (8.7, 9.65, 3.55, 5.0)]
    lower: list[Hole] = [(1.0, 1.9, 1.15, 2.45), (6.2, 7.0, 1.2, 2.3)]
    gate: Hole = (3.3, 5.2, 0.0, 2.75)
    door: Hole = (8.6, 9.7, 0.13, 2.4)
    pierced_wall(11.2, 6.3, [*upper, *lower, gate, door], ochre, house)
    for hole, shutters, swing, lit in zip(
        upper, (green, green, None, green), ((9, 30), (14, 8), (0, 0), (165, 10)),
        ((1.0, 0.55, 0.2), None, (1.0, 0.7, 0.36), None), strict=True,
    ):  # fmt: skip
        _window(yard, house, hole, frame, trim, shutters, swing, lit)
    _window(yard, house, lower[0], frame, trim, green, (20, 11), None)
    _window(yard, house, lower[1], frame, trim, None, (0, 0), (1.0, 0.58, 0.22))
    for k in range(9):
        rod((6.26 + k * 0.085, 0.04, 1.2), (6.26 + k * 0.085, 0.04, 2.3), 0.009, iron, house)
    _door(house, gate, oak, trim, iron)
    _door(house, door, red, trim, iron)

    base = materials.ashlar(9.0, (0.43, 0.38, 0.30), (0.30, 0.27, 0.23))
    for left, right in ((0, 3.04), (5.46, 8.34), (9.96, 11.2)):
        box((right - left, 0.12, 0.8), base, house @ place((left + right) / 2, 0.0), 0.01)
    box((11.3, 0.2, 0.16), trim, house @ place(5.6, -0.04, 3.0), 0.015)
    box((11.4, 0.3, 0.22), trim, house @ place(5.6, -0.06, 6.1), 0.02)
    box((0.3, 0.1, 3.0), base, house @ place(0.15, -0.02, 0.0), 0.01)
    tiled_roof(11.8, 3.4, 42, materials.roof_tiles(2.0), house @ place(-0.2, -0.45, 6.25), yard.rng)
    for x, h in ((2.3, 1.5), (7.6, 1.1)):
        box((0.75, 0.55, h), rust, house @ place(x, 1.5, 7.6))
        box((0.9, 0.7, 0.1), trim, house @ place(x, 1.5, 7.6 + h))
    annexe = house @ place(11.2, -0.55)
    holes: list[Hole] = [(0.8, 1.9, 1.0, 2.4), (3.2, 4.3, 1.05, 2.4), (1.9, 3.1, 3.3, 4.4)]
    pierced_wall(5.8, 4.9, holes, rust, annexe)
    mesh([(0, 0, 0), (0, 0.55, 0), (0, 0.55, 4.9), (0, 0, 4.9)], [(0, 3, 2, 1)], rust, annexe)
    _window(yard, annexe, holes[0], teal, trim, None)
    _window(yard, annexe, holes[1], teal, trim, teal, (10, 24))
    _window(yard, annexe, holes[2], teal, trim, teal, (22, 9), (1.0, 0.5, 0.18))
    tiled_roof(6.2, 2.6, 38, materials.roof_tiles(8.0), annexe @ place(-0.25, -0.4, 4.85), yard.rng)
    rod((11.1, -0.08, 0), (11.1, -0.08, 6.1), 0.05, materials.metal((0.2, 0.26, 0.22), 0.16), house)
    for x, z in ((2.55, 2.7), (5.75, 2.55), (8.2, 2.6)):
        _lantern(yard, house @ place(x, 0, z), iron)
    _lantern(yard, annexe @ place(2.55, 0, 2.6), iron)
    _poster(house @ place(7.6, -0.012, 2.15), 0.62, 0.85, 5)
    _poster(house @ place(2.5, -0.012, 1.9, tilt=(0, 3)), 0.55, 0.78, 9)
    _graffiti(house @ place(7.5, -0.068, 1.25), 1.9, 0.9, 3)
    _sign(annexe @ place(2.55, -0.03, 3.05), iron)


def _left_house(yard: Courtyard, house: Matrix) -> None:
    """Long brick house, local x runs from the street (y = -7) to the back wall (x = 13)."""
    brick = materials.brick_wall(50.0, (0.38, 0.16, 0.09), (0.24, 0.085, 0.06), 0.085)
    trim = materials.stone(14.0, (0.44, 0.42, 0.37))
    white = materials.wood((0.45, 0.4, 0.33), 2, (0.68, 0.66, 0.60), 0.55)
    blue = materials.wood((0.36, 0.28, 0.2), 2, (0.12, 0.20, 0.36), 0.55)
    grey = materials.wood((0.32, 0.28, 0.23), 2)
    iron = materials.metal((0.07, 0.07, 0.07), 0.2)
    upper: list[Hole] = [(x, x + 1.0, 3.5, 4.8) for x in (2.0, 4.6, 7.3, 10.6)]
    lower: list[Hole] = [(2.2, 3.1, 1.1, 2.3), (6.0, 6.9, 1.1, 2.35)]
    doors: list[Hole] = [(8.4, 10.3, 0.0, 2.6), (4.1, 5.1, 0.13, 2.3)]
    pierced_wall(13.0, 5.6, [*upper, *lower, *doors], brick, house)
    for i, hole in enumerate(upper):
        _window(yard, house, hole, white, trim, (blue, None, blue, white)[i], ((8, 15), (0, 0), (30, 12), (10, 150))[i],
                ((1.0, 0.6, 0.25), None, (0.85, 0.75, 0.5), None)[i])  # fmt: skip
    for hole in lower:
        _window(yard, house, hole, white, trim, None, lit=(1.0, 0.6, 0.3) if hole[0] > 4 else None)
    _door(house, doors[0], grey, trim, iron)
    _door(house, doors[1], blue, trim, iron)
    box((13.0, 0.14, 0.5), materials.rubble_wall(61.0, [(0.3, 0.28, 0.25), (0.42, 0.38, 0.3)], 0.3), house @ place(6.5, 0))
    box((13.1, 0.26, 0.2), trim, house @ place(6.5, -0.05, 5.4), 0.02)
    for k in range(44):
        box((0.13, 0.14, 0.12), trim, house @ place(0.2 + 0.295 * k, -0.06, 5.27))
    tiled_roof(13.4, 3.0, 42, materials.roof_tiles(31.0), house @ place(-0.2, -0.4, 5.55), yard.rng)
    box((0.9, 0.6, 1.6), brick, house @ place(5.2, 1.7, 6.2))
    for x in (3.6, 7.65, 11.0):
        _lantern(yard, house @ place(x, 0, 2.75), iron)
    for i, x in enumerate((7.25, 7.95, 11.35)):
        _poster(house @ place(x, -0.012, 1.95 + 0.1 * i, tilt=(0, 2 * i - 2)), 0.6, 0.84, 20 + i)
    _graffiti(house @ place(11.6, -0.008, 1.2), 1.7, 0.8, 8)


def _right_house(yard: Courtyard, house: Matrix) -> None:
    """Rubble below, pale plaster above; local x runs from the back wall (0) to the street (13)."""
    stones = [(0.44, 0.38, 0.29), (0.30, 0.28, 0.26), (0.52, 0.45, 0.34), (0.36, 0.28, 0.21), (0.27, 0.29, 0.30)]
    rubble = materials.rubble_wall(77.0, stones)
    pale = materials.plaster_wall(90.0, (0.54, 0.44, 0.35), (0.48, 0.27, 0.19), 0.10)
    trim = materials.stone(24.0, (0.40, 0.35, 0.28))
    brown = materials.wood((0.30, 0.19, 0.10), 2)
    wine = materials.wood((0.3, 0.22, 0.15), 2, (0.25, 0.07, 0.09), 0.55)
    iron = materials.metal((0.06, 0.06, 0.06), 0.15)
    lower: list[Hole] = [(1.6, 2.5, 1.15, 2.3), (5.9, 7.6, 0.9, 2.3), (9.9, 10.8, 1.1, 2.3)]
    doors: list[Hole] = [(3.5, 4.6, 0.13, 2.35), (8.3, 9.3, 0.13, 2.3)]
    upper: list[Hole] = [(x, x + 0.95, 3.55, 4.9) for x in (1.3, 3.6, 6.2, 8.4, 10.7)]
    pierced_wall(13.0, 2.95, [*lower, *doors], rubble, house)
    shifted = [(a, b, c - 2.95, d - 2.95) for a, b, c, d in upper]
    pierced_wall(13.0, 2.75, shifted, pale, house @ place(0, 0, 2.95))
    for i, hole in enumerate(upper):
        _window(yard, house, hole, brown, trim, (wine, wine, None, wine, wine)[i], ((10, 20), (35, 9), (0, 0), (12, 12), (8, 40))[i],
                (None, (1.0, 0.62, 0.28), None, (1.0, 0.5, 0.2), None)[i])  # fmt: skip
    for i, hole in enumerate(lower):
        _window(yard, house, hole, brown, trim, None, lit=(1.0, 0.66, 0.3) if i == 1 else None)
    _door(house, doors[0], wine, trim, iron)
    _door(house, doors[1], brown, trim, iron)
    box((13.1, 0.18, 0.16), trim, house @ place(6.5, -0.04, 2.88), 0.015)
    box((13.1, 0.28, 0.2), trim, house @ place(6.5, -0.06, 5.55), 0.02)
    tiled_roof(13.4, 3.0, 42, materials.roof_tiles(55.0), house @ place(-0.2, -0.42, 5.7), yard.rng)
    awning = sheet(2.5, 1.25, materials.cloth((0.52, 0.10, 0.07), (0.66, 0.61, 0.50), 9), house @ place(6.75, -0.02, 2.8, tilt=(-58, 0)))
    awning.data.materials[0].use_backface_culling = False
    sheet(2.5, 0.2, materials.cloth((0.52, 0.10, 0.07), (0.66, 0.61, 0.50), 9), house @ place(6.75, -1.08, 2.14), 0.01)
    for x in (5.55, 7.95):
        rod((x, -0.02, 2.2), (x, -1.05, 2.14), 0.015, iron, house)
    for x in (2.95, 5.2, 9.6):
        _lantern(yard, house @ place(x, 0, 2.5), iron)
    for i, x in enumerate((0.7, 2.95, 5.1)):
        _poster(house @ place(x, -0.012, 1.95 - 0.12 * (i % 2), tilt=(0, 3 * i - 3)), 0.62, 0.86, 40 + i)


def _skyline(yard: Courtyard) -> None:
    """A church tower and a gable behind the roofs."""
    stones = materials.ashlar(120.0, (0.46, 0.42, 0.35), (0.36, 0.33, 0.28), 0.9, 0.45)
    slate = materials.stone(130.0, (0.16, 0.17, 0.19))
    box((3.4, 3.4, 12.5), stones, place(4.2, 17, 0, 12))
    box((3.7, 3.7, 0.4), materials.stone(9.0, (0.5, 0.46, 0.4)), place(4.2, 17, 12.5, 12))
    turned([(2.6, 0), (0.05, 4.2)], slate, place(4.2, 17, 12.9, 57), 4, False)
    dark = materials.plain((0.02, 0.02, 0.022))
    for x in (-0.6, 0.6):
        box((0.7, 0.1, 1.7), dark, place(4.2, 17, 9.6, 12) @ place(x, -1.71))
    pale = materials.plaster_wall(200.0, (0.55, 0.50, 0.42), (0.48, 0.36, 0.28), 0.05)
    box((6, 5, 8.3), pale, place(-7.2, 15, 0, -8))
    tiled_roof(6.6, 3.6, 35, materials.roof_tiles(70.0), place(-10.5, 12.0, 8.2, -8), yard.rng)


def _ground(yard: Courtyard) -> None:
    mesh([(-30, -30, 0), (30, -30, 0), (30, 30, 0), (-30, 30, 0)], [(0, 1, 2, 3)], materials.paving())
    slab = materials.stone(33.0, (0.30, 0.27, 0.23))
    for ring, count in ((2.15, 22), (2.62, 28)):
        for k in range(count):
            angle = 360 * (k + yard.rng.uniform(-0.1, 0.1)) / count
            at = place(0.3, 1.6, -0.1, angle) @ place(ring, 0, yard.rng.gauss(0, 0.006), yard.rng.gauss(0, 1.5))
            box((0.43, 2 * math.pi * ring / count - 0.03, 0.125), slab, at, 0.012)
    gutter = materials.stone(35.0, (0.30, 0.29, 0.27))
    for k in range(26):
        box((0.58, 0.34, 0.12), gutter, place(-7.4 + 0.6 * k, 5.15 + yard.rng.gauss(0, 0.01), -0.095, yard.rng.gauss(0, 0.8)), 0.012)


# Printed and painted things -----------------------------------------------------------------------------------------


def _poster(at: Matrix, width: float, height: float, seed: int) -> None:
    """A made-up bill: coloured ground, shapes, and lines of strokes that read as print from afar."""
    rng = np.random.default_rng(seed)
    rows, columns = 320, 230
    page = np.ones((rows, columns, 4), np.float32)
    page[..., :3] = rng.uniform(0.45, 0.95, 3)
    y, x = np.mgrid[0:rows, 0:columns]
    for _ in range(4):
        color, cx, cy = rng.uniform(0.05, 0.9, 3), rng.uniform(30, 200), rng.uniform(60, 230)
        r, kind = rng.uniform(25, 75), rng.integers(3)
        inside = [np.hypot(x - cx, y - cy) < r, np.abs(x - cx) + np.abs(y - cy) < r,
                  np.abs((x - cx) * 0.7 + (y - cy) * 0.6) < r / 4][kind]  # fmt: skip
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


def _graffiti(at: Matrix, width: float, height: float, seed: int) -> None:
    """Sprayed loops with soft edges, on a cut-out sheet just off the wall."""
    rng = np.random.default_rng(seed)
    rows, columns = 200, int(200 * width / height)
    y, x = np.mgrid[0:rows, 0:columns].astype(np.float32)
    page = np.zeros((rows, columns, 4), np.float32)
    for color in rng.uniform(0.05, 0.85, (3, 3)):
        t = np.linspace(0, 1, 260)
        sway = [rng.uniform(0.05, 0.3) * rows * np.sin(2 * np.pi * (rng.uniform(0.5, 4) * t + rng.random())) for _ in range(4)]
        px = columns * (0.1 + 0.8 * t) + sway[0] + sway[1] * 0.5
        py = rows * 0.5 + sway[2] + 0.6 * sway[3]
        distance = np.full((rows, columns), 1e9, np.float32)
        for a, b in zip(px, py, strict=True):
            distance = np.minimum(distance, (x - a) ** 2 + (y - b) ** 2)
        cover = np.clip((rng.uniform(6, 10) - np.sqrt(distance)) / 3, 0, 1)
        page[..., :3] = page[..., :3] * (1 - cover[..., None]) + color * cover[..., None]
        page[..., 3] = np.maximum(page[..., 3], cover * 0.9)
    sheet(width, height, materials.picture(page, f"graffiti{seed}", 0.3), at)


def _sign(at: Matrix, iron: Any) -> None:
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


# Stone and bronze ---------------------------------------------------------------------------------------------------


def _fountain(at: Matrix) -> None:
    lime = materials.stone(44.0, (0.40, 0.36, 0.29), 0.75)
    turned([(1.95, 0), (1.95, 0.16), (1.72, 0.17)], lime, at, 8, False)
    basin = [(1.62, 0.16), (1.55, 0.30), (1.50, 0.55), (1.64, 0.62), (1.66, 0.72), (1.42, 0.73), (1.36, 0.60), (1.34, 0.30)]
    turned(basin, lime, at, 8, False)
    turned([(1.38, 0.58), (0.01, 0.581)], materials.water(), at, 48)
    dark = materials.stone(47.0, (0.27, 0.25, 0.21), 0.8)
    for k in range(8):
        panel = at @ place(0, 0, 0.2, 45 * k + 22.5) @ place(1.42, 0, 0, 90)
        box((0.72, 0.06, 0.30), dark, panel @ place(0, 0.0, 0.0, tilt=(-5, 0)), 0.01)
        shape = [(0.10, 0), (0.12, 0.02), (0.05, 0.03), (0.045, 0.05), (0.01, 0.06)]
        petals = 4 + k % 4
        turned(shape, lime, panel @ place(0, -0.03, 0.155, tilt=(90, 0)), 40, True,
               lambda a, _, n=petals: 1 + 0.25 * math.cos(n * a))  # fmt: skip
        if k % 2:
            spout = materials.metal((0.16, 0.12, 0.05), 0.2)
            rod((0, -0.03, 0.36), (0, -0.2, 0.34), 0.022, spout, panel)
    stem = [(0.42, 0.2), (0.40, 0.62), (0.30, 0.72), (0.18, 0.9), (0.16, 1.15), (0.24, 1.3), (0.2, 1.4), (0.5, 1.52), (0.78, 1.68),
            (0.82, 1.74), (0.76, 1.76), (0.5, 1.66), (0.16, 1.64), (0.13, 1.9), (0.22, 2.02), (0.12, 2.12), (0.2, 2.25), (0.17, 2.38),
            (0.05, 2.5), (0.0, 2.56)]  # fmt: skip
    turned(stem, lime, at, 40, True, lambda a, z: 1 + (0.05 * math.cos(12 * a) if 1.45 < z < 1.72 else 0.0))


def _sculpture(at: Matrix) -> None:
    """The smooth one: a polished closed form with a hole, on a block."""
    block = materials.ashlar(150.0, (0.40, 0.37, 0.33), (0.33, 0.31, 0.28), 0.9, 0.5)
    box((1.0, 1.0, 0.95), block, at @ place(0, 0, 0, 20), 0.02)
    box((1.12, 1.12, 0.1), materials.stone(51.0, (0.46, 0.43, 0.38)), at @ place(0, 0, 0.95, 20), 0.015)
    marble = materials.polished((0.74, 0.72, 0.68), (0.45, 0.43, 0.42), 0.28)
    rings, sides = 96, 48
    points = []
    for i in range(rings):
        u = 2 * math.pi * i / rings
        thick = 0.23 + 0.10 * math.cos(u + 0.6) + 0.04 * math.sin(2 * u)
        centre = Vector((0.50 * math.cos(u), 0.14 * math.sin(2 * u + 0.5), 0.62 * math.sin(u)))
        tangent = Vector((-0.50 * math.sin(u), 0.28 * math.cos(2 * u + 0.5), 0.62 * math.cos(u))).normalized()
        outward = (Vector((math.cos(u), 0, math.sin(u))) - tangent * tangent.dot(Vector((math.cos(u), 0, math.sin(u))))).normalized()
        across = tangent.cross(outward)
        for j in range(sides):
            v = 2 * math.pi * j / sides
            points.append(centre + outward * (thick * 0.8 * math.cos(v)) + across * (thick * 1.1 * math.sin(v)))
    faces = [(i * sides + j, ((i + 1) % rings) * sides + j, ((i + 1) % rings) * sides + (j + 1) % sides, i * sides + (j + 1) % sides)
             for i in range(rings) for j in range(sides)]  # fmt: skip
    mesh(points, [f[::-1] for f in faces], marble, at @ place(0, 0, 1.86, 35), True)


def _statue(yard: Courtyard, at: Matrix, size: float) -> None:
    """A robed figure of weathered stone on a pedestal."""
    lime = materials.stone(66.0, (0.38, 0.36, 0.31), 0.8)
    box((0.95, 0.95, 0.22), lime, at, 0.02)
    box((0.75, 0.75, 0.85), lime, at @ place(0, 0, 0.22), 0.02)
    box((0.9, 0.9, 0.12), lime, at @ place(0, 0, 1.07), 0.02)
    body = at @ place(0, 0, 1.19)
    robe = [(0.36, 0), (0.34, 0.25), (0.28, 0.6), (0.22, 0.95), (0.24, 1.15), (0.27, 1.3), (0.23, 1.42), (0.09, 1.5), (0.075, 1.58)]

    def folds(angle: float, z: float) -> float:
        depth = max(0.0, 0.17 * (1 - z / 1.2))
        flat = 1 - 0.22 * math.sin(angle) ** 2
        return flat * (1 + depth * math.sin(9 * angle + 1.6 * math.sin(2 * angle + z)) + 0.4 * depth * math.sin(17 * angle + 4 * z))

    turned(robe, lime, body, 96, True, folds)
    turned([(0.01, 0), (0.085, 0.03), (0.115, 0.12), (0.12, 0.2), (0.09, 0.29), (0.01, 0.33)], lime, body @ place(0, -0.01, 1.55), 24)
    for side in (-1, 1):
        elbow = (side * 0.33, -0.06, 1.02)
        rod((side * 0.22, 0, 1.36), elbow, 0.085, lime, body, 0.075)
        rod(elbow, (side * 0.09, -0.28, 1.12), 0.075, lime, body, 0.05)
        turned([(0.01, -0.09), (0.09, 0), (0.01, 0.09)], lime, body @ place(*elbow), 12)


# Things people left -------------------------------------------------------------------------------------------------


def _barrel(at: Matrix, staves: Any, iron: Any) -> None:
    outline = [(0.26, 0), (0.30, 0.15), (0.335, 0.32), (0.345, 0.45), (0.335, 0.58), (0.30, 0.75), (0.26, 0.9), (0.235, 0.9), (0.235, 0.87)]
    turned(outline, staves, at, 44, True, lambda a, _: 1 - 0.018 * (abs(math.sin(11 * a)) < 0.25))
    for low, r in ((0.03, 0.272), (0.24, 0.324), (0.6, 0.34), (0.82, 0.285)):
        turned([(r, low), (r + 0.008, low), (r + 0.008, low + 0.045), (r, low + 0.045)], iron, at, 44)


def _crate(at: Matrix, size: float, boards: tuple[Any, Any]) -> None:
    lying, standing = boards
    gap = size / 5
    inner = size - 0.04
    for turn in (0, 90, 180, 270):
        face = at @ place(0, 0, 0, turn)
        for k in range(5):
            box((inner, 0.02, gap - 0.014), lying, face @ place(0, -size / 2 + 0.02, k * gap + 0.007))
        for x in (-size / 2 + 0.04, size / 2 - 0.04):
            box((0.08, 0.022, size), standing, face @ place(x, -size / 2))
    for k in range(5):
        box((size, gap - 0.012, 0.02), lying, at @ place(0, (k - 2) * gap, size))


def _wheel(at: Matrix, radius: float, timber: Any, iron: Any) -> None:
    """In the x-z plane of `at`, centred on it."""
    tipped = at @ place(0, 0.04, 0, tilt=(90, 0))
    turned([(radius - 0.07, 0), (radius, 0), (radius, 0.07), (radius - 0.07, 0.07), (radius - 0.07, 0)], timber, tipped, 40)
    turned([(radius, 0.005), (radius + 0.015, 0.005), (radius + 0.015, 0.065), (radius, 0.065)], iron, tipped, 40)
    turned([(0.09, -0.06), (0.1, 0.03), (0.07, 0.13)], timber, tipped, 16)
    for k in range(10):
        a = math.radians(36 * k)
        rod((0.05 * math.cos(a), 0, 0.05 * math.sin(a)), ((radius - 0.04) * math.cos(a), 0, (radius - 0.04) * math.sin(a)), 0.024, timber, at)


def _cart(yard: Courtyard, at: Matrix) -> None:
    lying = materials.wood((0.34, 0.22, 0.12), 0)
    blue = materials.wood((0.34, 0.24, 0.15), 0, (0.12, 0.24, 0.30), 0.52)
    iron = materials.metal((0.08, 0.07, 0.07), 0.3)
    bed = at @ place(0, 0, 0.62, tilt=(0, 5))
    for k in range(6):
        box((1.9, 0.165, 0.035), lying, bed @ place(0, -0.43 + 0.172 * k))
    for y in (-0.52, 0.52):
        for z in (0.05, 0.22):
            box((1.9, 0.03, 0.14), blue, bed @ place(0, y, z))
        for x in (-0.85, 0, 0.85):
            box((0.06, 0.05, 0.45), blue, bed @ place(x, y * 1.05, -0.03))
        rod((0.6, y * 0.8, -0.05), (2.3, y * 0.7, -0.12), 0.035, lying, bed)
        _wheel(at @ place(-0.1, y * 1.32, 0.52), 0.5, lying, iron)
    rod((-0.1, -0.7, 0.52), (-0.1, 0.7, 0.52), 0.035, iron, at)
    sack = materials.cloth((0.48, 0.39, 0.25), None)
    for x, y, r in ((-0.6, -0.15, 0.30), (-0.1, 0.15, 0.33), (-0.35, 0.05, 0.27), (0.35, -0.12, 0.28)):
        lump = yard.rng.uniform(0, 6)
        lifted = 0.04 if r != 0.27 else 0.38
        turned([(0.02, 0), (r * 0.9, 0.04), (r, 0.2), (r * 0.85, 0.38), (r * 0.3, 0.5), (r * 0.35, 0.58)], sack, bed @ place(x, y, lifted),
               40, True, lambda a, z, k=lump: 1 + 0.07 * math.sin(3 * a + k) + 0.03 * math.sin(8 * a + 9 * z))  # fmt: skip


def _things(yard: Courtyard) -> None:
    rng = yard.rng
    staves = materials.wood((0.34, 0.20, 0.10), 2)
    iron = materials.metal((0.07, 0.07, 0.07), 0.3)
    boards = (materials.wood((0.50, 0.36, 0.20), 0), materials.wood((0.44, 0.31, 0.17), 2))
    old = (materials.wood((0.36, 0.31, 0.25), 0), materials.wood((0.30, 0.26, 0.21), 2))
    for x, y, turn in ((-5.7, 5.0, 0), (-5.0, 5.2, 40), (-5.35, 4.4, 15), (5.0, 4.7, 70), (6.9, 0.6, 20), (-6.9, -1.2, 60)):
        _barrel(place(x, y, 0, turn), staves, iron)
    _barrel(place(4.2, 3.55, 0.33, 25, tilt=(90, 0)), staves, iron)
    for x, y, z, turn, size, kind in (
        (5.9, 4.65, 0, 12, 0.72, boards), (6.65, 4.75, 0, -5, 0.66, old), (6.2, 4.7, 0.74, 31, 0.5, boards), (5.95, 3.85, 0, 50, 0.5, old),
        (-7.6, 0.1, 0, 8, 0.7, old), (-7.5, 0.9, 0, -14, 0.6, boards), (-7.6, 0.15, 0.72, 27, 0.48, boards), (2.1, 5.0, 0, 3, 0.5, old),
    ):  # fmt: skip
        _crate(place(x, y, z, turn), size, kind)
    _cart(yard, place(-5.2, 1.2, 0, -32))
    plank = materials.wood((0.33, 0.22, 0.13), 0)
    bench = place(-0.9, 5.35, 0)
    for k in range(3):
        box((1.7, 0.12, 0.04), plank, bench @ place(0, -0.15 + 0.14 * k, 0.45))
        box((1.7, 0.03, 0.11), plank, bench @ place(0, 0.26, 0.6 + 0.15 * k))
    for x in (-0.7, 0.7):
        box((0.07, 0.45, 0.45), iron, bench @ place(x, 0))
        box((0.05, 0.04, 1.05), iron, bench @ place(x, 0.24))
    shaft = [(0.17, 0), (0.15, 0.3), (0.07, 0.4), (0.055, 1.0), (0.075, 1.05), (0.045, 1.1), (0.04, 2.9), (0.08, 2.95), (0.03, 3.0)]
    for post in (place(5.4, 1.6), place(-3.6, 0.4), place(1.9, 4.1)):
        turned(shaft, iron, post, 20)
        _lamp_head(yard, post @ place(0, 0, 3.05), iron)
    ladder = place(-3.1, 5.45, 0, tilt=(-12, 0))
    for x in (-0.22, 0.22):
        rod((x, 0, 0), (x, 0, 3.1), 0.028, plank, ladder)
    for k in range(9):
        rod((-0.22, 0, 0.3 + 0.31 * k), (0.22, 0, 0.3 + 0.31 * k), 0.018, plank, ladder)
    line = [(-8.4, 2.4, 4.2), (-2.0, 5.9, 4.15)]
    rod(line[0], line[1], 0.008, materials.plain((0.3, 0.28, 0.24)))
    a, b = Vector(line[0]), Vector(line[1])
    heading = math.degrees(math.atan2(b.y - a.y, b.x - a.x))
    washing = [((0.66, 0.64, 0.60), None), ((0.45, 0.10, 0.10), (0.65, 0.6, 0.52)), ((0.14, 0.22, 0.40), None), ((0.68, 0.55, 0.22), None)]
    for k, (first, second) in enumerate(washing):
        spot = a.lerp(b, 0.24 + 0.16 * k)
        size = (rng.uniform(0.7, 0.95), rng.uniform(0.75, 1.1))
        sheet(size[0], size[1], materials.cloth(first, second, 5), place(spot.x, spot.y, spot.z, heading), 0.035)


# Plants -------------------------------------------------------------------------------------------------------------


def _plants(yard: Courtyard) -> None:
    rng = yard.rng
    green = materials.leaves([(0.035, 0.10, 0.018), (0.07, 0.17, 0.03), (0.13, 0.22, 0.045), (0.05, 0.12, 0.03), (0.20, 0.22, 0.05)])
    autumn = materials.leaves([(0.05, 0.12, 0.02), (0.16, 0.17, 0.04), (0.30, 0.10, 0.03), (0.09, 0.16, 0.03), (0.22, 0.05, 0.03)])
    _ivy(Vector((-8.47, 4.9, 0)), Vector((0, 1, 0)), Vector((1, 0, 0)), 1.0, 5.0, 26, autumn, rng)
    _ivy(Vector((-1.6, 5.97, 0)), Vector((1, 0, 0)), Vector((0, -1, 0)), 0.5, 3.1, 12, green, rng)
    _ivy(Vector((8.47, 3.2, 0)), Vector((0, 1, 0)), Vector((-1, 0, 0)), 0.6, 4.4, 18, green, rng)
    _tree(place(-7.0, 3.4), green, rng)
    clay = materials.stone(88.0, (0.46, 0.20, 0.11), 0.5)
    bloom = [materials.leaves([c, tuple(0.6 * v for v in c)]) for c in ((0.65, 0.06, 0.08), (0.75, 0.5, 0.06), (0.6, 0.3, 0.55))]
    pots = [(0.35, 5.35, 0.34), (-2.15, 5.3, 0.3), (1.45, 5.45, 0.26), (7.9, 1.0, 0.32), (7.85, 2.2, 0.26), (-8.0, -0.7, 0.3), (3.95, 5.0, 0.24), (-8.0, 2.1, 0.3)]
    for k, (x, y, r) in enumerate(pots):
        turned([(r * 0.65, 0), (r * 0.95, r * 1.25), (r * 1.08, r * 1.27), (r * 1.08, r * 1.5), (r * 0.9, r * 1.5)], clay, place(x, y), 28)
        _bush(Vector((x, y, r * 1.5)), r * 1.5, green, bloom[k % 3], rng)
    sills = [(-6.0, 5.82, 3.6), (-3.4, 5.82, 3.6), (0.67, 5.82, 3.6)]
    for k, (x, y, z) in enumerate(sills):
        box((0.85, 0.18, 0.16), clay, place(x + 0.9 - 0.9, y - 0.02, z - 0.05))
        for step in range(4):
            _bush(Vector((x - 0.32 + 0.21 * step, y - 0.03, z + 0.1)), 0.17, green, bloom[(k + 1) % 3], rng, 60)
    weeds = []
    for _ in range(420):
        side = rng.random()
        x, y = (rng.uniform(-8.3, 8.3), rng.gauss(5.85, 0.06)) if side < 0.5 else (rng.choice((-8.35, 8.35)) + rng.gauss(0, 0.05), rng.uniform(-4, 6))
        weeds.append((Vector((x, y, abs(rng.gauss(0, 0.07)))), Vector((rng.gauss(0, 1), rng.gauss(0, 1), 0.6))))
    leaf_cloud(weeds, 0.06, green, rng)


def _ivy(root: Vector, along: Vector, out: Vector, spread: float, reach: float, strands: int, leaf: Any, rng: random.Random) -> None:
    """Strands that climb and wander over a wall, leaves on the way."""
    spots = []
    for _ in range(strands):
        p, drift = root + along * rng.gauss(0, spread), rng.gauss(0, 0.4)
        goal = reach * rng.uniform(0.35, 1.0)
        while p.z < goal:
            drift = 0.93 * drift + rng.gauss(0, 0.22)
            p = p + Vector((0, 0, 0.05)) + along * (drift * 0.05)
            for _ in range(2):
                off = along * rng.gauss(0, 0.07) + Vector((0, 0, rng.gauss(0, 0.05))) + out * abs(rng.gauss(0, 0.04))
                spots.append((p + off, out + Vector((0, 0, 0.5))))
    leaf_cloud(spots, 0.062, leaf, rng)


def _bush(centre: Vector, radius: float, leaf: Any, bloom: Any, rng: random.Random, count: int = 260) -> None:
    spots, flowers = [], []
    for k in range(count):
        way = Vector((rng.gauss(0, 1), rng.gauss(0, 1), abs(rng.gauss(0.3, 0.9)))).normalized()
        spot = centre + way * radius * rng.uniform(0.35, 1.0)
        (flowers if k % 7 == 0 else spots).append((spot, way))
    leaf_cloud(spots, radius * 0.17, leaf, rng)
    leaf_cloud(flowers, radius * 0.15, bloom, rng)


def _tree(at: Matrix, leaf: Any, rng: random.Random) -> None:
    bark = materials.stone(99.0, (0.20, 0.15, 0.11), 0.9)
    spots: list[tuple[Vector, Vector]] = []

    def grow(start: Vector, way: Vector, length: float, thick: float, level: int) -> None:
        end = start + way * length
        rod(tuple(start), tuple(end), thick, bark, at, thick * 0.68)
        if level >= 2:
            for _ in range(70 if level == 2 else 120):
                p = start.lerp(end, rng.random()) + Vector((rng.gauss(0, 0.26), rng.gauss(0, 0.26), rng.gauss(0, 0.2)))
                spots.append((at @ p, Vector((rng.gauss(0, 0.5), rng.gauss(0, 0.5), 1))))
        if level == 3:
            return
        for _ in range(3 if level else 4):
            bent = (way + Vector((rng.gauss(0, 0.55), rng.gauss(0, 0.55), rng.gauss(0.1, 0.3)))).normalized()
            grow(end, bent, length * rng.uniform(0.5, 0.75), thick * 0.6, level + 1)

    grow(Vector((0, 0, 0)), Vector((0.06, -0.03, 1)), 1.9, 0.13, 0)
    leaf_cloud(spots, 0.075, leaf, rng)

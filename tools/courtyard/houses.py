"""The three houses around the courtyard and the roofs behind them."""

from __future__ import annotations

import math
from typing import Any

from mathutils import Matrix

from courtyard import materials
from courtyard.lamps import Courtyard, lantern
from courtyard.prints import graffiti, poster, sign
from courtyard.shapes import Hole, box, mesh, pierced_wall, place, rod, sheet, tiled_roof, turned


def _window(
    yard: Courtyard,
    house: Matrix,
    hole: Hole,
    frame: Any,
    sill: Any,
    shutters: Any = None,
    swing: tuple[float, float] = (12, 12),
    lit: tuple[float, float, float] | None = None,
) -> None:
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
        leaf = house @ place(hinge, -0.04, low, -side * angle) @ place(side * width / 4, 0)
        half = width / 2 - 0.02
        for x in (-half / 2 + 0.04, half / 2 - 0.04):
            box((0.08, 0.05, height), shutters, leaf @ place(x, 0))
        slats = int(height / 0.085)
        for k in range(slats):
            box(
                (half - 0.1, 0.02, 0.075),
                shutters,
                leaf @ place(0, 0, (k + 0.15) * height / slats, tilt=(28, 0)),
            )


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
    turned(
        [(0.02, 0), (0.05, 0.01), (0.05, 0.04), (0.02, 0.05)],
        iron,
        house @ place(right - 0.2, 0.13, low + 1.05, tilt=(90, 0)),
        12,
    )
    for x in (left - 0.11, right + 0.11):
        box((0.24, 0.14, high - low + 0.05), surround, house @ place(x, -0.03, low), 0.015)
    box((width + 0.62, 0.2, 0.3), surround, house @ place(centre, -0.04, high + 0.02), 0.02)
    box((width + 0.7, 0.75, 0.13), surround, house @ place(centre, -0.3, 0), 0.02)


def _roof(width: float, length: float, pitch: float, seed: float, at: Matrix, yard: Courtyard) -> None:
    """Tiles on rafters, with a ridge."""
    tiled_roof(width, length, pitch, materials.roof_tiles(seed), at, yard.rng)
    beam = materials.wood((0.16, 0.11, 0.07), 1)
    for k in range(int(width / 0.62)):
        box((0.09, 0.75, 0.11), beam, at @ place(0.3 + 0.62 * k, 0.3, 0.1, tilt=(pitch, 0)))
    slope = math.radians(pitch)
    top = at @ place(0, length * math.cos(slope), length * math.sin(slope) + 0.02)
    clay = materials.stone(seed + 200, (0.36, 0.17, 0.10), 0.6)
    for k in range(int(width / 0.4)):
        rod((0.4 * k, 0, 0), (0.4 * k + 0.43, 0, 0.03), 0.1, clay, top, 0.115)


def back_house(yard: Courtyard, house: Matrix) -> None:
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

    upper: list[Hole] = [
        (0.9, 1.85, 3.55, 5.0),
        (3.1, 4.05, 3.55, 5.0),
        (5.5, 6.45, 3.55, 5.0),
        (8.7, 9.65, 3.55, 5.0),
    ]
    lower: list[Hole] = [(1.0, 1.9, 1.15, 2.45), (6.2, 7.0, 1.2, 2.3)]
    gate: Hole = (3.3, 5.2, 0.0, 2.75)
    door: Hole = (8.6, 9.7, 0.13, 2.4)
    pierced_wall(11.2, 6.62, [*upper, *lower, gate, door], ochre, house)
    for hole, shutters, swing, lit in zip(
        upper,
        (green, green, None, green),
        ((9, 30), (14, 8), (0, 0), (165, 10)),
        ((1.0, 0.55, 0.2), None, (1.0, 0.7, 0.36), None),
        strict=True,
    ):
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
    _roof(11.8, 3.4, 42, 2.0, house @ place(-0.2, -0.45, 6.25), yard)
    for x, h in ((2.3, 1.5), (7.6, 1.1)):
        box((0.75, 0.55, h), rust, house @ place(x, 1.5, 7.5))
        box((0.9, 0.7, 0.1), trim, house @ place(x, 1.5, 7.6 + h))
    annexe = house @ place(11.2, -0.55)
    holes: list[Hole] = [(0.8, 1.9, 1.0, 2.4), (3.2, 4.3, 1.05, 2.4), (1.9, 3.1, 3.3, 4.4)]
    pierced_wall(5.8, 5.13, holes, rust, annexe)
    mesh([(0, 0, 0), (0, 0.55, 0), (0, 0.55, 5.1), (0, 0, 5.1)], [(0, 3, 2, 1)], rust, annexe)
    _window(yard, annexe, holes[0], teal, trim, None)
    _window(yard, annexe, holes[1], teal, trim, teal, (10, 24))
    _window(yard, annexe, holes[2], teal, trim, teal, (22, 9), (1.0, 0.5, 0.18))
    _roof(6.2, 2.6, 38, 8.0, annexe @ place(-0.25, -0.4, 4.85), yard)
    rod((11.1, -0.08, 0), (11.1, -0.08, 6.1), 0.05, materials.metal((0.2, 0.26, 0.22), 0.16), house)
    for x, z in ((2.55, 2.7), (5.75, 2.55), (8.2, 2.6)):
        lantern(yard, house @ place(x, 0, z), iron)
    lantern(yard, annexe @ place(2.55, 0, 2.6), iron)
    poster(house @ place(7.6, -0.012, 2.15), 0.62, 0.85, 5)
    poster(house @ place(2.5, -0.012, 1.9, tilt=(0, 3)), 0.55, 0.78, 9)
    graffiti(house @ place(7.5, -0.008, 1.75), 1.7, 0.85, 3)
    sign(annexe @ place(2.55, -0.03, 3.05), iron)


def left_house(yard: Courtyard, house: Matrix) -> None:
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
    pierced_wall(13.0, 5.88, [*upper, *lower, *doors], brick, house)
    for i, hole in enumerate(upper):
        _window(
            yard,
            house,
            hole,
            white,
            trim,
            (blue, None, blue, white)[i],
            ((8, 15), (0, 0), (30, 12), (10, 150))[i],
            ((1.0, 0.6, 0.25), None, (0.85, 0.75, 0.5), None)[i],
        )
    for hole in lower:
        _window(yard, house, hole, white, trim, None, lit=(1.0, 0.6, 0.3) if hole[0] > 4 else None)
    _door(house, doors[0], grey, trim, iron)
    _door(house, doors[1], blue, trim, iron)
    box(
        (13.0, 0.14, 0.5),
        materials.rubble_wall(61.0, [(0.3, 0.28, 0.25), (0.42, 0.38, 0.3)], 0.3),
        house @ place(6.5, 0),
    )
    box((13.1, 0.26, 0.2), trim, house @ place(6.5, -0.05, 5.4), 0.02)
    for k in range(44):
        box((0.13, 0.14, 0.12), trim, house @ place(0.2 + 0.295 * k, -0.06, 5.27))
    _roof(13.4, 3.0, 42, 31.0, house @ place(-0.2, -0.4, 5.55), yard)
    box((0.9, 0.6, 1.6), brick, house @ place(5.2, 1.7, 6.2))
    for x in (3.6, 7.65, 11.0):
        lantern(yard, house @ place(x, 0, 2.75), iron)
    for i, x in enumerate((7.25, 7.95, 11.35)):
        poster(house @ place(x, -0.012, 1.95 + 0.1 * i, tilt=(0, 2 * i - 2)), 0.6, 0.84, 20 + i)
    graffiti(house @ place(11.6, -0.008, 1.2), 1.7, 0.8, 8)


def right_house(yard: Courtyard, house: Matrix) -> None:
    """Rubble below, pale plaster above; local x runs from the back wall (0) to the street (13)."""
    stones = [
        (0.44, 0.38, 0.29), (0.30, 0.28, 0.26), (0.52, 0.45, 0.34), (0.36, 0.28, 0.21), (0.27, 0.29, 0.30),
    ]  # fmt: skip
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
    pierced_wall(13.0, 3.1, shifted, pale, house @ place(0, 0, 2.95))
    for i, hole in enumerate(upper):
        _window(
            yard,
            house,
            hole,
            brown,
            trim,
            (wine, wine, None, wine, wine)[i],
            ((10, 20), (35, 9), (0, 0), (12, 12), (8, 40))[i],
            (None, (1.0, 0.62, 0.28), None, (1.0, 0.5, 0.2), None)[i],
        )
    for i, hole in enumerate(lower):
        _window(yard, house, hole, brown, trim, None, lit=(1.0, 0.66, 0.3) if i == 1 else None)
    _door(house, doors[0], wine, trim, iron)
    _door(house, doors[1], brown, trim, iron)
    box((13.1, 0.18, 0.16), trim, house @ place(6.5, -0.04, 2.88), 0.015)
    box((13.1, 0.28, 0.2), trim, house @ place(6.5, -0.06, 5.55), 0.02)
    _roof(13.4, 3.0, 42, 55.0, house @ place(-0.2, -0.42, 5.7), yard)
    awning = sheet(
        2.5,
        1.25,
        materials.cloth((0.52, 0.10, 0.07), (0.66, 0.61, 0.50), 9),
        house @ place(6.75, -0.02, 2.8, tilt=(-58, 0)),
    )
    awning.data.materials[0].use_backface_culling = False
    sheet(
        2.5,
        0.2,
        materials.cloth((0.52, 0.10, 0.07), (0.66, 0.61, 0.50), 9),
        house @ place(6.75, -1.08, 2.14),
        0.01,
    )
    for x in (5.55, 7.95):
        rod((x, -0.02, 2.2), (x, -1.05, 2.14), 0.015, iron, house)
    for x in (2.95, 5.2, 9.6):
        lantern(yard, house @ place(x, 0, 2.5), iron)
    for i, x in enumerate((0.7, 2.95, 5.1)):
        poster(house @ place(x, -0.012, 1.95 - 0.12 * (i % 2), tilt=(0, 3 * i - 3)), 0.62, 0.86, 40 + i)


def skyline(yard: Courtyard) -> None:
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

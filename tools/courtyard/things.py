"""What stands in the courtyard: fountain, sculptures, barrels, crates, a cart, a bench, the washing."""

from __future__ import annotations

import math
from typing import Any

from mathutils import Matrix, Vector

from courtyard import materials
from courtyard.lamps import Courtyard, lamp_head
from courtyard.shapes import box, mesh, place, rod, sheet, turned


def ground(yard: Courtyard) -> None:
    mesh([(-30, -30, 0), (30, -30, 0), (30, 30, 0), (-30, 30, 0)], [(0, 1, 2, 3)], materials.paving())
    slab = materials.stone(33.0, (0.30, 0.27, 0.23))
    for ring, count in ((2.15, 22), (2.62, 28)):
        for k in range(count):
            angle = 360 * (k + yard.rng.uniform(-0.1, 0.1)) / count
            at = place(0.3, 1.6, -0.1, angle) @ place(
                ring, 0, yard.rng.gauss(0, 0.006), yard.rng.gauss(0, 1.5)
            )
            box((0.43, 2 * math.pi * ring / count - 0.03, 0.125), slab, at, 0.012)
    gutter = materials.stone(35.0, (0.30, 0.29, 0.27))
    for k in range(26):
        box(
            (0.58, 0.34, 0.12),
            gutter,
            place(-7.4 + 0.6 * k, 5.15 + yard.rng.gauss(0, 0.01), -0.095, yard.rng.gauss(0, 0.8)),
            0.012,
        )


def fountain(at: Matrix) -> None:
    lime = materials.stone(44.0, (0.40, 0.36, 0.29), 0.75)
    turned([(1.95, 0), (1.95, 0.16), (1.72, 0.17)], lime, at, 8, False)
    basin = [
        (1.62, 0.16),
        (1.55, 0.30),
        (1.50, 0.55),
        (1.64, 0.62),
        (1.66, 0.72),
        (1.42, 0.73),
        (1.36, 0.60),
        (1.34, 0.30),
    ]
    turned(basin, lime, at, 8, False)
    turned([(1.38, 0.58), (0.01, 0.581)], materials.water(), at, 48)
    dark = materials.stone(47.0, (0.27, 0.25, 0.21), 0.8)
    for k in range(8):
        panel = at @ place(0, 0, 0.2, 45 * k + 22.5) @ place(1.42, 0, 0, 90)
        box((0.72, 0.06, 0.30), dark, panel @ place(0, 0.0, 0.0, tilt=(-5, 0)), 0.01)
        shape = [(0.10, 0), (0.12, 0.02), (0.05, 0.03), (0.045, 0.05), (0.01, 0.06)]
        petals = 4 + k % 4
        turned(
            shape,
            lime,
            panel @ place(0, -0.03, 0.155, tilt=(90, 0)),
            40,
            True,
            lambda a, _, n=petals: 1 + 0.25 * math.cos(n * a),
        )
        if k % 2:
            spout = materials.metal((0.16, 0.12, 0.05), 0.2)
            rod((0, -0.03, 0.36), (0, -0.2, 0.34), 0.022, spout, panel)
    stem = [
        (0.42, 0.2),
        (0.40, 0.62),
        (0.30, 0.72),
        (0.18, 0.9),
        (0.16, 1.15),
        (0.24, 1.3),
        (0.2, 1.4),
        (0.5, 1.52),
        (0.78, 1.68),
        (0.82, 1.74),
        (0.76, 1.76),
        (0.5, 1.66),
        (0.16, 1.64),
        (0.13, 1.9),
        (0.22, 2.02),
        (0.12, 2.12),
        (0.2, 2.25),
        (0.17, 2.38),
        (0.05, 2.5),
        (0.0, 2.56),
    ]
    turned(stem, lime, at, 40, True, lambda a, z: 1 + (0.05 * math.cos(12 * a) if 1.45 < z < 1.72 else 0.0))


def sculpture(at: Matrix) -> None:
    """The smooth one: a polished closed form with a hole, on a block."""
    block = materials.ashlar(150.0, (0.40, 0.37, 0.33), (0.33, 0.31, 0.28), 0.9, 0.5)
    box((1.0, 1.0, 0.95), block, at @ place(0, 0, 0, 20), 0.02)
    box((1.12, 1.12, 0.1), materials.stone(51.0, (0.46, 0.43, 0.38)), at @ place(0, 0, 0.95, 20), 0.015)
    marble = materials.polished((0.58, 0.55, 0.50), (0.33, 0.30, 0.28), 0.28)
    rings, sides = 96, 48
    points = []
    for i in range(rings):
        u = 2 * math.pi * i / rings
        thick = 0.23 + 0.10 * math.cos(u + 0.6) + 0.04 * math.sin(2 * u)
        centre = Vector((0.50 * math.cos(u), 0.14 * math.sin(2 * u + 0.5), 0.62 * math.sin(u)))
        tangent = Vector((-0.50 * math.sin(u), 0.28 * math.cos(2 * u + 0.5), 0.62 * math.cos(u))).normalized()
        outward = (
            Vector((math.cos(u), 0, math.sin(u)))
            - tangent * tangent.dot(Vector((math.cos(u), 0, math.sin(u))))
        ).normalized()
        across = tangent.cross(outward)
        for j in range(sides):
            v = 2 * math.pi * j / sides
            points.append(
                centre + outward * (thick * 0.8 * math.cos(v)) + across * (thick * 1.1 * math.sin(v))
            )
    faces = [
        (
            i * sides + j,
            ((i + 1) % rings) * sides + j,
            ((i + 1) % rings) * sides + (j + 1) % sides,
            i * sides + (j + 1) % sides,
        )
        for i in range(rings)
        for j in range(sides)
    ]
    mesh(points, [f[::-1] for f in faces], marble, at @ place(0, 0, 1.86, 35), True)


def statue(yard: Courtyard, at: Matrix, size: float) -> None:
    """A robed figure of weathered stone on a pedestal."""
    lime = materials.stone(66.0, (0.38, 0.36, 0.31), 0.8)
    box((0.95, 0.95, 0.22), lime, at, 0.02)
    box((0.75, 0.75, 0.85), lime, at @ place(0, 0, 0.22), 0.02)
    box((0.9, 0.9, 0.12), lime, at @ place(0, 0, 1.07), 0.02)
    body = at @ place(0, 0, 1.19)
    robe = [
        (0.36, 0),
        (0.34, 0.25),
        (0.28, 0.6),
        (0.22, 0.95),
        (0.24, 1.15),
        (0.27, 1.3),
        (0.23, 1.42),
        (0.09, 1.5),
        (0.075, 1.58),
    ]

    def folds(angle: float, z: float) -> float:
        depth = max(0.0, 0.17 * (1 - z / 1.2))
        flat = 1 - 0.22 * math.sin(angle) ** 2
        return flat * (
            1
            + depth * math.sin(9 * angle + 1.6 * math.sin(2 * angle + z))
            + 0.4 * depth * math.sin(17 * angle + 4 * z)
        )

    turned(robe, lime, body, 96, True, folds)
    turned(
        [(0.01, 0), (0.085, 0.03), (0.115, 0.12), (0.12, 0.2), (0.09, 0.29), (0.01, 0.33)],
        lime,
        body @ place(0, -0.01, 1.55),
        24,
    )
    for side in (-1, 1):
        elbow = (side * 0.33, -0.06, 1.02)
        rod((side * 0.22, 0, 1.36), elbow, 0.085, lime, body, 0.075)
        rod(elbow, (side * 0.09, -0.28, 1.12), 0.075, lime, body, 0.05)
        turned([(0.01, -0.09), (0.09, 0), (0.01, 0.09)], lime, body @ place(*elbow), 12)


def _barrel(at: Matrix, staves: Any, iron: Any) -> None:
    outline = [
        (0.26, 0),
        (0.30, 0.15),
        (0.335, 0.32),
        (0.345, 0.45),
        (0.335, 0.58),
        (0.30, 0.75),
        (0.26, 0.9),
        (0.235, 0.9),
        (0.235, 0.87),
    ]
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
    turned(
        [(radius - 0.07, 0), (radius, 0), (radius, 0.07), (radius - 0.07, 0.07), (radius - 0.07, 0)],
        timber,
        tipped,
        40,
    )
    turned(
        [(radius, 0.005), (radius + 0.015, 0.005), (radius + 0.015, 0.065), (radius, 0.065)], iron, tipped, 40
    )
    turned([(0.09, -0.06), (0.1, 0.03), (0.07, 0.13)], timber, tipped, 16)
    for k in range(10):
        a = math.radians(36 * k)
        rod(
            (0.05 * math.cos(a), 0, 0.05 * math.sin(a)),
            ((radius - 0.04) * math.cos(a), 0, (radius - 0.04) * math.sin(a)),
            0.024,
            timber,
            at,
        )


def _cart(yard: Courtyard, at: Matrix) -> None:
    lying = materials.wood((0.34, 0.22, 0.12), 0)
    blue = materials.wood((0.34, 0.24, 0.15), 0, (0.12, 0.24, 0.30), 0.52)
    iron = materials.metal((0.05, 0.045, 0.045), 0.14)
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
        turned(
            [(0.02, 0), (r * 0.9, 0.04), (r, 0.2), (r * 0.85, 0.38), (r * 0.3, 0.5), (r * 0.35, 0.58)],
            sack,
            bed @ place(x, y, lifted),
            40,
            True,
            lambda a, z, k=lump: 1 + 0.07 * math.sin(3 * a + k) + 0.03 * math.sin(8 * a + 9 * z),
        )


def leave_things(yard: Courtyard) -> None:
    rng = yard.rng
    staves = materials.wood((0.34, 0.20, 0.10), 2)
    iron = materials.metal((0.035, 0.04, 0.04), 0.1)
    boards = (materials.wood((0.50, 0.36, 0.20), 0), materials.wood((0.44, 0.31, 0.17), 2))
    old = (materials.wood((0.36, 0.31, 0.25), 0), materials.wood((0.30, 0.26, 0.21), 2))
    for x, y, turn in (
        (-5.7, 5.0, 0),
        (-5.0, 5.2, 40),
        (-5.35, 4.4, 15),
        (5.0, 4.7, 70),
        (6.9, 0.6, 20),
        (-6.9, -1.2, 60),
    ):
        _barrel(place(x, y, 0, turn), staves, iron)
    _barrel(place(4.2, 3.55, 0.33, 25, tilt=(90, 0)), staves, iron)
    for x, y, z, turn, size, kind in (
        (5.9, 4.65, 0, 12, 0.72, boards),
        (6.65, 4.75, 0, -5, 0.66, old),
        (6.2, 4.7, 0.74, 31, 0.5, boards),
        (5.95, 3.85, 0, 50, 0.5, old),
        (-7.6, 0.1, 0, 8, 0.7, old),
        (-7.5, 0.9, 0, -14, 0.6, boards),
        (-7.6, 0.15, 0.72, 27, 0.48, boards),
        (2.1, 5.0, 0, 3, 0.5, old),
    ):
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
    shaft = [
        (0.17, 0),
        (0.15, 0.3),
        (0.07, 0.4),
        (0.055, 1.0),
        (0.075, 1.05),
        (0.045, 1.1),
        (0.04, 2.9),
        (0.08, 2.95),
        (0.03, 3.0),
    ]
    for post in (place(5.4, 1.6), place(-4.4, 4.2), place(1.9, 4.1)):
        turned(shaft, iron, post, 20)
        lamp_head(yard, post @ place(0, 0, 3.05), iron)
    ladder = place(-3.1, 5.45, 0, tilt=(-12, 0))
    for x in (-0.22, 0.22):
        rod((x, 0, 0), (x, 0, 3.1), 0.028, plank, ladder)
    for k in range(9):
        rod((-0.22, 0, 0.3 + 0.31 * k), (0.22, 0, 0.3 + 0.31 * k), 0.018, plank, ladder)
    line = [(-8.4, 2.4, 4.2), (-2.0, 5.9, 4.15)]
    rod(line[0], line[1], 0.008, materials.plain((0.3, 0.28, 0.24)))
    a, b = Vector(line[0]), Vector(line[1])
    heading = math.degrees(math.atan2(b.y - a.y, b.x - a.x))
    washing = [
        ((0.66, 0.64, 0.60), None),
        ((0.45, 0.10, 0.10), (0.65, 0.6, 0.52)),
        ((0.14, 0.22, 0.40), None),
        ((0.68, 0.55, 0.22), None),
    ]
    for k, (first, second) in enumerate(washing):
        spot = a.lerp(b, 0.24 + 0.16 * k)
        size = (rng.uniform(0.7, 0.95), rng.uniform(0.75, 1.1))
        sheet(
            size[0], size[1], materials.cloth(first, second, 5), place(spot.x, spot.y, spot.z, heading), 0.035
        )

"""Ivy, a tree, flower pots and weeds."""

from __future__ import annotations

import random
from typing import Any

from mathutils import Matrix, Vector

from courtyard import materials
from courtyard.lamps import Courtyard
from courtyard.shapes import box, leaf_cloud, place, rod, turned


def grow_plants(yard: Courtyard) -> None:
    rng = yard.rng
    green = materials.leaves(
        [
            (0.035, 0.10, 0.018),
            (0.07, 0.17, 0.03),
            (0.13, 0.22, 0.045),
            (0.05, 0.12, 0.03),
            (0.20, 0.22, 0.05),
        ]
    )
    autumn = materials.leaves(
        [(0.05, 0.12, 0.02), (0.16, 0.17, 0.04), (0.30, 0.10, 0.03), (0.09, 0.16, 0.03), (0.22, 0.05, 0.03)]
    )
    _ivy(Vector((-8.47, 4.9, 0)), Vector((0, 1, 0)), Vector((1, 0, 0)), 1.0, 5.0, 26, autumn, rng)
    _ivy(Vector((-1.6, 5.97, 0)), Vector((1, 0, 0)), Vector((0, -1, 0)), 0.5, 3.1, 12, green, rng)
    _ivy(Vector((8.47, 3.2, 0)), Vector((0, 1, 0)), Vector((-1, 0, 0)), 0.6, 4.4, 18, green, rng)
    _tree(place(-7.0, 3.4), green, rng)
    clay = materials.stone(88.0, (0.46, 0.20, 0.11), 0.5)
    bloom = [
        materials.leaves([c, tuple(0.6 * v for v in c)])
        for c in ((0.65, 0.06, 0.08), (0.75, 0.5, 0.06), (0.6, 0.3, 0.55))
    ]
    pots = [
        (0.35, 5.35, 0.34),
        (-2.15, 5.3, 0.3),
        (1.45, 5.45, 0.26),
        (7.9, 1.0, 0.32),
        (7.85, 2.2, 0.26),
        (-8.0, -0.7, 0.3),
        (3.95, 5.0, 0.24),
        (-8.0, 2.1, 0.3),
    ]
    for k, (x, y, r) in enumerate(pots):
        turned(
            [
                (r * 0.65, 0),
                (r * 0.95, r * 1.25),
                (r * 1.08, r * 1.27),
                (r * 1.08, r * 1.5),
                (r * 0.9, r * 1.5),
            ],
            clay,
            place(x, y),
            28,
        )
        _bush(Vector((x, y, r * 1.5)), r * 1.5, green, bloom[k % 3], rng)
    sills = [(-6.0, 5.82, 3.6), (-3.4, 5.82, 3.6), (0.67, 5.82, 3.6)]
    for k, (x, y, z) in enumerate(sills):
        box((0.85, 0.18, 0.16), clay, place(x + 0.9 - 0.9, y - 0.02, z - 0.05))
        for step in range(4):
            _bush(
                Vector((x - 0.32 + 0.21 * step, y - 0.03, z + 0.1)), 0.17, green, bloom[(k + 1) % 3], rng, 60
            )
    weeds = []
    for _ in range(420):
        side = rng.random()
        x, y = (
            (rng.uniform(-8.3, 8.3), rng.gauss(5.85, 0.06))
            if side < 0.5
            else (rng.choice((-8.35, 8.35)) + rng.gauss(0, 0.05), rng.uniform(-4, 6))
        )
        weeds.append(
            (Vector((x, y, abs(rng.gauss(0, 0.07)))), Vector((rng.gauss(0, 1), rng.gauss(0, 1), 0.6)))
        )
    leaf_cloud(weeds, 0.06, green, rng)


def _ivy(
    root: Vector,
    along: Vector,
    out: Vector,
    spread: float,
    reach: float,
    strands: int,
    leaf: Any,
    rng: random.Random,
) -> None:
    """Strands that climb and wander over a wall, leaves on the way."""
    spots = []
    for _ in range(strands):
        p, drift = root + along * rng.gauss(0, spread), rng.gauss(0, 0.4)
        goal = reach * rng.uniform(0.35, 1.0)
        while p.z < goal:
            drift = 0.93 * drift + rng.gauss(0, 0.22)
            p = p + Vector((0, 0, 0.05)) + along * (drift * 0.05)
            for _ in range(2):
                off = (
                    along * rng.gauss(0, 0.07)
                    + Vector((0, 0, rng.gauss(0, 0.05)))
                    + out * abs(rng.gauss(0, 0.04))
                )
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
                p = start.lerp(end, rng.random()) + Vector(
                    (rng.gauss(0, 0.26), rng.gauss(0, 0.26), rng.gauss(0, 0.2))
                )
                spots.append((at @ p, Vector((rng.gauss(0, 0.5), rng.gauss(0, 0.5), 1))))
        if level == 3:
            return
        for _ in range(3 if level else 4):
            bent = (way + Vector((rng.gauss(0, 0.55), rng.gauss(0, 0.55), rng.gauss(0.1, 0.3)))).normalized()
            grow(end, bent, length * rng.uniform(0.5, 0.75), thick * 0.6, level + 1)

    grow(Vector((0, 0, 0)), Vector((0.06, -0.03, 1)), 1.9, 0.13, 0)
    leaf_cloud(spots, 0.075, leaf, rng)

"""The lamps of the courtyard, and the record of all that the night switches on."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field
from typing import Any

from mathutils import Matrix, Vector

from courtyard import materials
from courtyard.shapes import place, rod, turned


@dataclass
class Courtyard:
    """What the night changes: sockets of glowing panes and the places of the lamps."""

    rng: random.Random = field(default_factory=lambda: random.Random(11))
    panes: list[Any] = field(default_factory=list)  # emission sockets of the lit windows
    lamp_glass: list[Any] = field(default_factory=list)  # emission sockets of the lanterns
    lamps: list[tuple[float, float, float]] = field(default_factory=list)


def lantern(yard: Courtyard, at: Matrix, iron: Any) -> None:
    """A wall lantern on a bracket, hanging 0.45 m out at the height of `at`."""
    rod((0, 0, 0.25), (0, -0.5, 0.32), 0.018, iron, at)
    rod((0, 0, -0.1), (0, -0.3, 0.28), 0.012, iron, at)
    lamp_head(yard, at @ place(0, -0.45, -0.12), iron)


def lamp_head(yard: Courtyard, at: Matrix, iron: Any) -> None:
    milky, glow = materials.glowing((1.0, 0.62, 0.26))
    yard.lamp_glass.append(glow)
    turned([(0.07, 0), (0.11, 0.3)], milky, at, 6, False)
    turned([(0.15, 0.3), (0.13, 0.34), (0.03, 0.46), (0.015, 0.54)], iron, at, 6, False)
    turned([(0.04, -0.05), (0.085, -0.02), (0.085, 0)], iron, at, 6, False)
    for k in range(6):
        a = math.radians(60 * k)
        rod(
            (0.075 * math.cos(a), 0.075 * math.sin(a), 0),
            (0.115 * math.cos(a), 0.115 * math.sin(a), 0.3),
            0.008,
            iron,
            at,
        )
    spot = at @ Vector((0, 0, 0.12))
    yard.lamps.append((spot.x, spot.y, spot.z))

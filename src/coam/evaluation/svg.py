"""Line plots as inline SVG: sharp at any zoom, no library, readable without colour (dashes and direct
labels).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

# Okabe and Ito's palette, told apart by people with any kind of colour vision.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#000000")
DASHES = ("", "7 4", "2 3", "9 3 2 3", "5 2", "1 2", "12 4")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 400, 60, 150, 18, 52


def line_plot(
    curves: Mapping[str, Sequence[Sequence[float]]], axes: tuple[str, str], *, y_max: float = 1.0
) -> str:
    """SVG of named curves of (x, y) points; y from 0 to `y_max`, x from the smallest to the largest."""
    points = [p for curve in curves.values() for p in curve]
    if not points:
        return ""
    low, high = min(p[0] for p in points), max(p[0] for p in points)
    span = (high - low) or 1.0

    def place(x: float, y: float) -> tuple[float, float]:
        across = LEFT + (x - low) / span * (WIDTH - LEFT - RIGHT)
        return across, HEIGHT - BOTTOM - min(max(y / y_max, 0), 1) * (HEIGHT - TOP - BOTTOM)

    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-label="{escape(axes[1])} against {escape(axes[0])}">'
    ]
    parts += _grid(low, high, y_max, place) + _axis_labels(axes)
    ends: list[tuple[float, str, str]] = []
    for index, (name, curve) in enumerate(curves.items()):
        if not curve:
            continue
        colour, dash = COLOURS[index % len(COLOURS)], DASHES[index % len(DASHES)]
        path = " ".join(f"{a:.1f},{b:.1f}" for a, b in (place(p[0], p[1]) for p in curve))
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" '
            f'stroke-width="2.5" stroke-dasharray="{dash}"/>'
        )
        ends.append((place(curve[-1][0], curve[-1][1])[1], name, colour))
    parts += _labels(ends)
    return "".join([*parts, "</svg>"])


def _grid(low: float, high: float, y_max: float, place: object) -> list[str]:
    assert callable(place)
    parts = []
    for y in (i * y_max / 5 for i in range(6)):
        (x0, at), (x1, _) = place(low, y), place(high, y)
        parts.append(f'<line x1="{x0:.1f}" y1="{at:.1f}" x2="{x1:.1f}" y2="{at:.1f}" class="grid"/>')
        parts.append(f'<text x="{x0 - 8:.1f}" y="{at + 4:.1f}" text-anchor="end">{y:.1f}</text>')
    step = _nice_step((high - low) / 6)
    x = math.ceil(low / step) * step
    while x <= high + 1e-9:
        across, at = place(x, 0)
        parts.append(f'<text x="{across:.1f}" y="{at + 18:.1f}" text-anchor="middle">{x:g}</text>')
        x = round(x + step, 9)
    return parts


def _nice_step(raw: float) -> float:
    if raw <= 0:
        return 1.0
    power = 10.0 ** math.floor(math.log10(raw))
    return next(m * power for m in (1, 2, 5, 10) if m * power >= raw)


def _axis_labels(axes: tuple[str, str]) -> list[str]:
    middle, centre = (LEFT + WIDTH - RIGHT) / 2, (TOP + HEIGHT - BOTTOM) / 2
    return [
        f'<text x="{middle}" y="{HEIGHT - 10}" text-anchor="middle">{escape(axes[0])}</text>',
        f'<text transform="translate(16 {centre}) rotate(-90)" text-anchor="middle">{escape(axes[1])}</text>',
    ]


def _labels(ends: list[tuple[float, str, str]]) -> list[str]:
    """The curves' names at their right ends, in their order, moved apart so that none covers another."""
    parts, free = [], float("-inf")
    for wanted, name, colour in sorted(ends):
        at = max(wanted, free)
        free = at + 15
        style = f"fill:{colour};font-weight:600"
        parts.append(f'<text x="{WIDTH - RIGHT + 8}" y="{at + 4:.1f}" style="{style}">{escape(name)}</text>')
    return parts

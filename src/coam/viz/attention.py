"""What the network looks at for one point: attention at both levels, similarity, and the best match."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from PIL import Image, ImageDraw

from coam.geometry.coordinates import resize_points
from coam.viz.canvas import GAP, as_rgb, draw_dots, font, resize
from coam.viz.colours import ACCENT, INK, PAPER, ByteImage
from coam.viz.maps import THIN, blend_heat, value_range

if TYPE_CHECKING:
    from coam.explanation import Explanation

_TITLE_HEIGHT = 28


def draw_explanation(
    explanation: Explanation, *, distinctiveness: bool = False, panel_height: int = 420
) -> Image.Image:
    """Panels: the point in photo 0, its similarity over photo 1 with the best match, attention by level.

    distinctiveness: a last row with the distinctiveness maps of both photos.
    """
    photo0, photo1 = (_shown(photo, panel_height) for photo in (explanation.image0, explanation.image1))
    size0, size1 = ((p.shape[1], p.shape[0]) for p in (explanation.image0, explanation.image1))
    point_panel = mark_point(photo0, explanation.point, size0)
    low, high = value_range([explanation.similarity])
    # Most of a similarity map is far below its peak; showing the upper part makes rivals visible.
    middle = float(np.nanmedian(explanation.similarity))
    similar = blend_heat(photo1, explanation.similarity, middle if middle < high else low, high)
    panels = [
        ("photo 1: the point", point_panel),
        (f"photo 2: similarity, best match {high:.2f}", mark_point(similar, explanation.best, size1)),
    ]
    for level, weights in explanation.attention.items():
        peak = value_range([weights])[1]
        heated = blend_heat(photo1, weights, 0.0, peak)
        panels.append((f"photo 2: attention at {level}, peak {100 * peak:.2g} %", heated))
    if distinctiveness:
        maps = [explanation.distinctiveness0, explanation.distinctiveness1]
        low, high = value_range(list(maps))
        for number, (photo, values) in enumerate(zip((photo0, photo1), maps, strict=True), start=1):
            heated = blend_heat(photo, values, low, high, THIN)
            panels.append((f"photo {number}: distinctiveness {low:.2f} to {high:.2f}", heated))
    upright = photo0.shape[1] + photo1.shape[1] < 2.2 * panel_height
    return panel_grid(panels, columns=4 if upright else 2)


def mark_point(shown: ByteImage, point: tuple[float, float], size: tuple[int, int]) -> ByteImage:
    """`shown` with a ringed dot at `point`, which is in pixels of the photo at its original `size`."""
    scale = (shown.shape[1] / size[0], shown.shape[0] / size[1])
    at = resize_points(np.array([point], dtype=np.float32), scale)
    marked = shown
    for radius, colour in ((9.0, INK), (7.5, PAPER), (5.5, INK), (4.5, ACCENT)):
        marked = draw_dots(marked, at, np.array([colour], dtype=np.uint8), radius, rim=None)
    return marked


def panel_grid(panels: list[tuple[str, ByteImage]], columns: int) -> Image.Image:
    """Titled pictures in rows of `columns`; a column is as wide as its widest picture."""
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    widths = [max(row[c][1].shape[1] for row in rows if c < len(row)) for c in range(len(rows[0]))]
    heights = [max(image.shape[0] for _, image in row) for row in rows]
    total = (
        sum(widths) + GAP * (len(widths) - 1),
        sum(heights) + _TITLE_HEIGHT * len(rows) + GAP * (len(rows) - 1),
    )
    page = Image.new("RGB", total, PAPER)
    pen = ImageDraw.Draw(page)
    top = 0
    for row, height in zip(rows, heights, strict=True):
        left = 0
        for (title, image), width in zip(row, widths, strict=False):
            pen.text((left + 4, top + 6), title, fill=INK, font=font(14))
            page.paste(Image.fromarray(image), (left, top + _TITLE_HEIGHT))
            left += width + GAP
        top += _TITLE_HEIGHT + height + GAP
    return page


def _shown(photo: ByteImage, height: int) -> ByteImage:
    image = as_rgb(photo)
    return resize(image, (max(1, round(image.shape[1] * height / image.shape[0])), height))

"""VIEW, STYLE, result, sampled image and confidence in one picture."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from coam.images import RGB
from coam.stylization.apply import Stylized
from coam.viz.attention import panel_grid
from coam.viz.canvas import font, resize
from coam.viz.colours import INK, PAPER, colourise

GAP = 6
TITLE_HEIGHT = 24


def draw_panel(result: Stylized, height: int = 420) -> Image.Image:
    """VIEW, STYLE and the result; below them the sampled image and its confidence; each `height` high."""
    own = (result.view.shape[1], result.view.shape[0])  # the working resolution is rounded
    sampled, confidence = (
        resize(picture, own) for picture in (result.sampled, colourise(result.confidence, 0.0, 1.0, "heat"))
    )
    pictures = {
        "VIEW": result.view,
        "STYLE": result.style,
        "result": result.picture,
        "sampled": sampled,
        f"confidence: {result.seen:.0%} of VIEW is seen in STYLE": confidence,
    }
    return panel_grid([(name, _at_height(picture, height)) for name, picture in pictures.items()], columns=3)


def draw_row(pictures: dict[str, RGB], height: int) -> Image.Image:
    """Named pictures (H, W, 3) in one row, each `height` pixels high under its name."""
    shown = {name: _at_height(picture, height) for name, picture in pictures.items()}
    width = sum(p.shape[1] for p in shown.values()) + GAP * (len(shown) - 1)
    page = Image.new("RGB", (width, height + TITLE_HEIGHT), PAPER)
    pen = ImageDraw.Draw(page)
    left = 0
    for name, picture in shown.items():
        pen.text((left + 2, 4), name, fill=INK, font=font(14))
        page.paste(Image.fromarray(picture), (left, TITLE_HEIGHT))
        left += picture.shape[1] + GAP
    return page


def _at_height(picture: RGB, height: int) -> RGB:
    width = max(1, round(picture.shape[1] * height / picture.shape[0]))
    return resize(np.ascontiguousarray(picture), (width, height))

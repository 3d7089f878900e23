"""VIEW, STYLE, sampled image, confidence and result side by side."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

from coam.images import RGB
from coam.stylization.apply import Stylized
from coam.viz.canvas import font, resize
from coam.viz.colours import INK, PAPER, colourise

GAP = 6
TITLE_HEIGHT = 24


def draw_panel(result: Stylized, height: int = 300) -> Image.Image:
    """The five pictures in one row, each `height` pixels high under its name."""
    own = (result.view.shape[1], result.view.shape[0])  # the working resolution is rounded
    sampled, confidence = (
        resize(picture, own) for picture in (result.sampled, colourise(result.confidence, 0.0, 1.0, "heat"))
    )
    return draw_row(
        {
            "VIEW": result.view,
            "STYLE": result.style,
            "sampled": sampled,
            "confidence": confidence,
            "result": result.picture,
        },
        height,
    )


def draw_row(pictures: dict[str, RGB], height: int) -> Image.Image:
    """Named pictures (H, W, 3) in one row, each `height` pixels high under its name."""
    shown = {
        name: resize(np.ascontiguousarray(p), (max(1, round(p.shape[1] * height / p.shape[0])), height))
        for name, p in pictures.items()
    }
    width = sum(p.shape[1] for p in shown.values()) + GAP * (len(shown) - 1)
    page = Image.new("RGB", (width, height + TITLE_HEIGHT), PAPER)
    pen = ImageDraw.Draw(page)
    left = 0
    for name, picture in shown.items():
        pen.text((left + 2, 4), name, fill=INK, font=font(14))
        page.paste(Image.fromarray(picture), (left, TITLE_HEIGHT))
        left += picture.shape[1] + GAP
    return page

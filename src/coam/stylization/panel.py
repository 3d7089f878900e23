"""VIEW, STYLE, result, sampled image and confidence in one picture."""

from __future__ import annotations

import numpy as np
from PIL import Image

from coam.images import RGB
from coam.stylization.apply import Stylized
from coam.viz.canvas import panel_grid, resize
from coam.viz.colours import colourise


def draw_panel(result: Stylized, height: int = 420) -> Image.Image:
    """VIEW, STYLE and the result; below them the sampled image and its confidence; each `height` high."""
    own = (result.view.shape[1], result.view.shape[0])  # the working resolution is rounded
    confidence = colourise(result.confidence, 0.0, 1.0, "heat")
    pictures = {
        "VIEW": result.view,
        "STYLE": result.style,
        "result": result.picture,
        "sampled": resize(result.sampled, own),
        f"confidence: {result.seen:.0%} of VIEW is seen in STYLE": resize(confidence, own),
    }
    return draw_row(pictures, height, columns=3)


def draw_row(pictures: dict[str, RGB], height: int, columns: int | None = None) -> Image.Image:
    """Named pictures (H, W, 3) in one row (or `columns`), each `height` pixels high under its name."""
    panels = []
    for name, picture in pictures.items():
        width = max(1, round(picture.shape[1] * height / picture.shape[0]))
        panels.append((name, resize(np.ascontiguousarray(picture), (width, height))))
    return panel_grid(panels, columns or len(panels))

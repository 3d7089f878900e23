"""A dense warp as an interactive page: swipe and flicker between the photos laid on each other, certainty."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import DataError
from coam.types import FloatArray, Size
from coam.viz.canvas import fitted, resize
from coam.viz.colours import ByteImage, colour_table
from coam.viz.flow import draw_flow
from coam.viz.html import base64_array, fill_page, photo_uri, picture_uri

HOVER_STEP = 4  # map pixels between the places that are kept for hovering
LONGEST_MAP = 1600  # pixels of the long side of what is embedded


def warp_page(
    photo0: ByteImage,
    photo1: ByteImage,
    seen: ByteImage,
    points: FloatArray,
    displacement: FloatArray,
    certainty: FloatArray,
    *,
    names: tuple[str, str] = ("photo 1", "photo 2"),
    figures: tuple[tuple[str, str], ...] = (),
) -> str:
    """A self-contained HTML page of a warp; it asks no other host for anything.

    photo0, photo1: the photos (H, W, 3). seen: photo 1 in the frame of photo 0, of the maps' size. points,
    displacement (h, w, 2) and certainty (h, w): those of `WarpField`, in pixels of the originals.
    """
    height, width = certainty.shape
    if not (points.shape == displacement.shape == (height, width, 2) and seen.shape[:2] == (height, width)):
        raise DataError("the maps of a warp must have one size")
    shown = fitted((width, height), min(LONGEST_MAP, max(width, height)))
    rows, columns = (np.arange(HOVER_STEP // 2, side, HOVER_STEP) for side in (height, width))
    sizes: list[Size] = [(photo.shape[1], photo.shape[0]) for photo in (photo0, photo1)]
    small1 = resize(photo1, fitted(sizes[1], min(LONGEST_MAP, max(sizes[1]))))
    data: dict[str, Any] = {
        "names": list(names),
        "sizes": [list(size) for size in sizes],
        "photo0": photo_uri(resize(photo0, shown)),
        "photo1": photo_uri(small1),
        "seen": photo_uri(resize(seen, shown)),
        "flow": photo_uri(resize(np.asarray(draw_flow(displacement)), shown)),
        "certainty": _grey_uri(certainty, shown),
        "heat": base64_array(colour_table("heat")),
        "grid": [len(columns), len(rows)],
        "places": base64_array(points[np.ix_(rows, columns)].astype(np.float32)),
        "figures": [list(row) for row in figures],
    }
    return fill_page("warp.html", f"{names[1]} seen as {names[0]}", data)


def _grey_uri(certainty: npt.NDArray[Any], size: Size) -> str:
    """Certainty as a grey PNG of `size`: 255 is sure."""
    grey = Image.fromarray(np.rint(np.clip(certainty, 0, 1) * 255).astype(np.uint8))
    buffer = io.BytesIO()
    grey.resize(size, Image.Resampling.BILINEAR).save(buffer, "PNG")
    return picture_uri(buffer.getvalue(), "png")

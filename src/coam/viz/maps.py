"""Values per pixel, laid over their photo: distinctiveness, similarity, attention."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ConfigError
from coam.types import FloatArray
from coam.viz.canvas import Swatch, as_rgb, fitted, lay_out, paste_pair, resize, with_caption
from coam.viz.colours import ByteImage, colour_table, colourise

THIN = 0.6  # most of a distinctiveness map is high: a thicker layer would hide the photo


def blend_heat(
    image: ByteImage, values: npt.NDArray[Any], low: float, high: float, strength: float = 0.85
) -> ByteImage:
    """`image` (H, W, 3) in grey under the colours of `values` (h, w), which cover the same area.

    Low values leave the photo almost as it is, high ones cover it up to `strength`, so that one sees both.
    """
    height, width = image.shape[:2]
    stretched = cv2.resize(_finite(values, low), (width, height), interpolation=cv2.INTER_LINEAR)
    unit = np.clip((stretched - low) / (high - low), 0, 1) if high > low else np.ones_like(stretched)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None].astype(np.float32) * 0.75
    heat = colourise(stretched, low, high, "heat").astype(np.float32)
    cover = (strength * (0.4 + 0.6 * unit))[..., None]
    blended: ByteImage = np.rint(grey * (1 - cover) + heat * cover).astype(np.uint8)
    return blended


def draw_heatmap(
    image: Any,
    values: npt.NDArray[Any],
    *,
    low: float | None = None,
    high: float | None = None,
    label: str = "",
    longest: int = 1000,
) -> Image.Image:
    """`values` (h, w) in colour over `image`, with a legend from `low` to `high` (default: the extremes).

    longest: the longer side of the picture in pixels.
    """
    photo = as_rgb(image)
    shown = resize(photo, fitted((photo.shape[1], photo.shape[0]), longest))
    first, last = value_range([values], low, high)
    return with_caption(blend_heat(shown, values, first, last), label, (heat_legend(first, last),))


def draw_distinctiveness(
    images: tuple[Any, Any], maps: tuple[FloatArray, FloatArray], *, width: int = 1600
) -> Image.Image:
    """Both photos side by side under their distinctiveness maps (h, w), on one common scale."""
    photos = as_rgb(images[0]), as_rgb(images[1])
    (size0, size1) = ((photo.shape[1], photo.shape[0]) for photo in photos)
    place = lay_out(size0, size1, "auto", width)
    low, high = value_range(list(maps))
    heated = [
        blend_heat(resize(photo, shown), values, low, high, THIN)
        for photo, values, shown in zip(photos, maps, (place.shown0, place.shown1), strict=True)
    ]
    canvas = paste_pair(place, heated[0], heated[1])
    return with_caption(canvas, "distinctiveness: where matches are trusted", (heat_legend(low, high),))


def heat_legend(low: float, high: float) -> Swatch:
    """The legend of a heat picture that runs from `low` to `high`."""
    return Swatch(colour_table("heat"), before=f"{low:.3g}", after=f"{high:.3g}")


def value_range(
    maps: list[npt.NDArray[Any]], low: float | None = None, high: float | None = None
) -> tuple[float, float]:
    """(low, high) where given, else the smallest and largest finite value of all `maps`."""
    for values in maps:
        if values.ndim != 2 or values.size == 0:
            raise ConfigError(f"a map has shape {values.shape}; give one of shape (height, width)")
    finite = np.concatenate([values[np.isfinite(values)].ravel() for values in maps])
    if finite.size == 0:
        finite = np.zeros(1)
    return (
        float(finite.min()) if low is None else float(low),
        float(finite.max()) if high is None else float(high),
    )


def _finite(values: npt.NDArray[Any], filler: float) -> FloatArray:
    array = np.asarray(values, dtype=np.float32)
    return np.where(np.isfinite(array), array, np.float32(filler))

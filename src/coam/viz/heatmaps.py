"""Heat maps over photos: distinctiveness, similarity, attention; the panels that explain one point."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ConfigError
from coam.geometry.coordinates import resize_points
from coam.images import load_image
from coam.types import FloatArray
from coam.viz.canvas import Swatch, draw_dots, lay_out, panel_grid, paste_pair, resize, with_caption
from coam.viz.colours import ACCENT, INK, PAPER, ByteImage, colour_table, colourise

if TYPE_CHECKING:
    from coam.matcher.explain import Explanation

THIN_LAYER = 0.6  # most of a distinctiveness map is high: a thicker layer would hide the photo


def blend_heat(
    image: ByteImage, values: npt.NDArray[Any], low: float, high: float, strength: float = 0.85
) -> ByteImage:
    """`image` (H, W, 3) in grey under the colours of `values` (h, w), which cover the same area.

    Low values leave the photo almost as it is, high ones cover it up to `strength`, so that one sees both.
    """
    height, width = image.shape[:2]
    finite = np.where(np.isfinite(values), values, low).astype(np.float32)
    stretched = cv2.resize(finite, (width, height), interpolation=cv2.INTER_LINEAR)
    unit = np.clip((stretched - low) / (high - low), 0, 1) if high > low else np.ones_like(stretched)
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None].astype(np.float32) * 0.75
    heat = colourise(stretched, low, high, "heat").astype(np.float32)
    cover = (strength * (0.4 + 0.6 * unit))[..., None]
    blended: ByteImage = np.rint(grey * (1 - cover) + heat * cover).astype(np.uint8)
    return blended


def draw_distinctiveness(
    images: tuple[Any, Any], maps: tuple[FloatArray, FloatArray], *, width: int = 1600
) -> Image.Image:
    """Both photos side by side under their distinctiveness maps (h, w), on one common scale."""
    photos = [load_image(image).rgb for image in images]
    (size0, size1) = ((photo.shape[1], photo.shape[0]) for photo in photos)
    place = lay_out(size0, size1, "auto", width)
    low, high = value_range(list(maps))
    heated = [
        blend_heat(resize(photo, shown), values, low, high, THIN_LAYER)
        for photo, values, shown in zip(photos, maps, (place.shown0, place.shown1), strict=True)
    ]
    canvas = paste_pair(place, heated[0], heated[1])
    legend = Swatch(colour_table("heat"), before=f"{low:.3g}", after=f"{high:.3g}")
    return with_caption(canvas, "distinctiveness: where matches are trusted", (legend,))


def value_range(maps: list[npt.NDArray[Any]]) -> tuple[float, float]:
    """The smallest and largest finite value of all `maps` (h, w)."""
    for values in maps:
        if values.ndim != 2 or values.size == 0:
            raise ConfigError(f"a map has shape {values.shape}; give one of shape (height, width)")
    finite = np.concatenate([values[np.isfinite(values)].ravel() for values in maps])
    if finite.size == 0:
        finite = np.zeros(1)
    return float(finite.min()), float(finite.max())


def draw_explanation(
    explanation: Explanation, *, distinctiveness: bool = False, panel_height: int = 420
) -> Image.Image:
    """Panels: the point in photo 0, its similarity over photo 1 with the best match, attention by level.

    distinctiveness: a last row with the distinctiveness maps of both photos.
    """
    originals = explanation.image0, explanation.image1
    size0, size1 = ((photo.shape[1], photo.shape[0]) for photo in originals)
    photo0, photo1 = (
        resize(photo, (max(1, round(width * panel_height / height)), panel_height))
        for photo, (width, height) in zip(originals, (size0, size1), strict=True)
    )
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
            heated = blend_heat(photo, values, low, high, THIN_LAYER)
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

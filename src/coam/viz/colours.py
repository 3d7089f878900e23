"""Colours that people with any kind of colour vision can tell apart.

"heat" runs from near black through purple and orange to light yellow, "score" from blue to yellow (bright
enough at its low end for lines over photos); in both lightness only rises, so that they keep their order
without colour vision. One map colours a plane. The two-class pair is the blue and vermilion of Okabe and Ito.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from coam.types import FloatArray

ByteImage = npt.NDArray[np.uint8]  # (H, W, 3) RGB
Rgb = tuple[int, int, int]

CORRECT: Rgb = (86, 180, 233)  # sky blue
WRONG: Rgb = (230, 96, 0)  # vermilion, a little brighter so that it also carries over dark photos
DOUBTFUL: Rgb = (176, 180, 186)  # matches of photos that probably do not show the same place
ACCENT: Rgb = (255, 176, 0)  # marks the one thing a picture is about
INK: Rgb = (34, 38, 46)
PAPER: Rgb = (255, 255, 255)

# Control points, evenly spaced from 0 to 1; lightness rises strictly so that the maps also work in grey.
_MAPS: dict[str, tuple[Rgb, ...]] = {
    "score": ((60, 84, 230), (128, 108, 214), (186, 136, 168), (226, 178, 96), (255, 235, 70)),
    "heat": ((12, 10, 48), (84, 24, 112), (164, 48, 96), (226, 98, 44), (250, 178, 34), (252, 250, 150)),
}
# The plane's top row, then its bottom row: left to right blue, magenta, yellow; light above, deep below.
_PLANE = np.array(
    [
        [(110, 215, 255), (255, 150, 225), (255, 238, 90)],
        [(30, 60, 225), (190, 20, 120), (235, 100, 0)],
    ],
    dtype=np.float32,
)


def colour_table(name: str = "score") -> ByteImage:
    """The colour map `name` ("score" or "heat") as a table (256, 3) of RGB bytes."""
    control = np.asarray(_MAPS[name], dtype=np.float32)
    at = np.linspace(0, len(control) - 1, 256)
    channels = [np.interp(at, np.arange(len(control)), control[:, c]) for c in range(3)]
    return np.rint(np.stack(channels, axis=-1)).astype(np.uint8)


def colourise(values: npt.NDArray[Any], low: float, high: float, name: str = "score") -> ByteImage:
    """RGB bytes (..., 3) of `values` (...): the first colour at `low` (and nan), the last at `high`."""
    span = high - low
    unit = (np.asarray(values, dtype=np.float64) - low) / span if span > 0 else np.ones(np.shape(values))
    index = np.rint(np.clip(np.nan_to_num(unit), 0, 1) * 255).astype(np.intp)
    return colour_table(name)[index]


def score_end(scores: npt.NDArray[Any]) -> float:
    """The score that gets the last colour; 0 gets the first. Fixed, so that bad matches never look good."""
    return max(0.5, float(scores.max())) if len(scores) else 0.5


def plane_colours(points: FloatArray, low: npt.ArrayLike, high: npt.ArrayLike) -> ByteImage:
    """One colour (N, 3) for each of the points (N, 2) by its place in the box from `low` to `high`."""
    first = np.asarray(low, dtype=np.float32)
    span = np.maximum(np.asarray(high, dtype=np.float32) - first, 1e-6)
    unit = np.clip((np.asarray(points, dtype=np.float32).reshape(-1, 2) - first) / span, 0, 1)
    across = unit[:, 0] * (_PLANE.shape[1] - 1)
    left = np.minimum(across.astype(np.intp), _PLANE.shape[1] - 2)
    blend = (across - left)[:, None]
    top, bottom = (row[left] * (1 - blend) + row[left + 1] * blend for row in _PLANE)
    down = unit[:, 1:2]
    colours: ByteImage = np.rint(top * (1 - down) + bottom * down).astype(np.uint8)
    return colours

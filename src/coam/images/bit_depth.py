"""Photos with more than 8 bits per channel whose values fill only the lowest part of their range.

Cameras write 10 or 12 bits into 16, and such a photo is nearly black where 65535 is white.
"""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from PIL import Image

WHITE_SHARE = 99.9  # percent of the values that are at most what becomes white
LOW_RANGE = 0.25  # of the range: below it, that value is made white
_MOST_LOOKED_AT = 1_000_000  # pixels that decide; more change nothing


def stretch_low_range(values: npt.NDArray[np.uint16]) -> npt.NDArray[np.uint16]:
    """Values (H, W) or (H, W, 1|3|4), the fourth being opacity; as they are where they use their range."""
    colours = values[..., :3] if values.ndim == 3 else values
    white = _white(colours)
    if white < 1 or white >= LOW_RANGE * 65535:
        return values
    stretched = values.copy()
    brighter = np.minimum(np.rint(colours * np.float32(65535 / white)), 65535)
    (stretched[..., :3] if values.ndim == 3 else stretched)[...] = brighter
    return stretched


def is_cut_to_upper_bytes(image: Image.Image) -> bool:
    """Whether Pillow will keep only the upper 8 of 16 bits per colour; ask before the picture is loaded."""
    tiles = getattr(image, "tile", [])  # of a file: (decoder, box, offset, raw mode and more)
    return image.mode in ("RGB", "RGBA", "LA") and any("16" in str(tile[3]) for tile in tiles)


def uses_low_range(rgb: npt.NDArray[np.uint8]) -> bool:
    """Whether the upper bytes (H, W, 3) of 16-bit values leave most of the range unused."""
    return _white(rgb) < LOW_RANGE * 255


def read_sixteen_bits(file: IO[bytes]) -> npt.NDArray[np.uint16] | None:
    """All 16 bits of a picture file as (H, W), (H, W, 3) or (H, W, 4) in the order R, G, B; not turned."""
    import cv2

    file.seek(0)
    content = np.frombuffer(file.read(), dtype=np.uint8)
    try:
        values: npt.NDArray[Any] | None = cv2.imdecode(content, cv2.IMREAD_UNCHANGED)
    except cv2.error:  # what Pillow reads need not be readable for OpenCV
        return None
    if values is None or values.dtype != np.uint16:
        return None
    if values.ndim == 3:
        values = values[..., [2, 1, 0, 3][: values.shape[2]]]
    return np.asarray(values, dtype=np.uint16)


def _white(values: npt.NDArray[Any]) -> float:
    """The `WHITE_SHARE` percentile of the values (H, W, ...)."""
    height, width = values.shape[:2]
    step = max(1, int(np.ceil(np.sqrt(height * width / _MOST_LOOKED_AT))))
    return float(np.percentile(values[::step, ::step], WHITE_SHARE))

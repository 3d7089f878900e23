"""A flow as colours: hue says where to, saturation how far, darkness how uncertain."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

FARTHEST_SHARE = 98  # percentile of the certain displacements that gets full saturation
DARKEST = 0.12  # brightness of what is not certain at all


def draw_flow(
    displacement: npt.NDArray[np.float32],
    certainty: npt.NDArray[np.float32] | None = None,
    longest: float | None = None,
) -> Image.Image:
    """The picture (h, w) of displacements (h, w, 2).

    Right is red, down is yellow-green, left cyan, up violet. certainty (h, w) in [0, 1] darkens; `longest`
    pixels have full colour (by default what nearly no certain displacement exceeds).
    """
    import cv2

    moved = np.nan_to_num(np.asarray(displacement, dtype=np.float32))
    length = np.linalg.norm(moved, axis=2)
    sure = np.ones_like(length) if certainty is None else np.asarray(certainty, dtype=np.float32)
    if longest is None:
        judged = length[sure > 0.5]
        longest = float(np.percentile(judged, FARTHEST_SHARE)) if judged.size else float(length.max())
    angle = np.degrees(np.arctan2(moved[..., 1], moved[..., 0])) % 360
    saturation = np.clip(length / max(longest, 1e-6), 0, 1)
    brightness = DARKEST + (1 - DARKEST) * sure
    hsv = np.stack([angle, saturation, brightness], axis=-1).astype(np.float32)
    rgb = cv2.cvtColor(hsv, cv2.COLOR_HSV2RGB)
    return Image.fromarray(np.rint(np.clip(rgb, 0, 1) * 255).astype(np.uint8))

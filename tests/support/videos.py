"""Videos whose motion is known: a window that moves over a large picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import cv2
import numpy as np

from support.simple_matchers import textured


def write_pan(
    path: Path, offsets: Sequence[int], sharp_every: int = 1, size: tuple[int, int] = (320, 240)
) -> Path:
    """A video of 30 frames a second: frame i shows a texture from offsets[i] pixels on; one of
    `sharp_every` is sharp.
    """
    width, height = size
    whole = textured(3, (max(offsets) + width, height))
    path.parent.mkdir(parents=True, exist_ok=True)
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 30.0, size)
    for index, offset in enumerate(offsets):
        frame = np.ascontiguousarray(whole[:, offset : offset + width])
        writer.write(frame if index % sharp_every == 0 else cv2.GaussianBlur(frame, (0, 0), 3))
    writer.release()
    return path

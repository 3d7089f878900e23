"""A photo as a model takes it.

torch and OpenCV are imported only when they are needed, so that photos can be read before they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError
from coam.images import RGB

if TYPE_CHECKING:
    from torch import Tensor

MULTIPLE = 32  # of the sides of all pictures that a network is shown
MOST_UPSCALED = 4.0  # times: beyond, a network is shown blur, and matches it


@dataclass(frozen=True)
class ResizedImage:
    """A picture as a model takes it, and what is needed to map points back."""

    tensor: Tensor  # (1, 3, H, W) float32 in [0, 1]
    scale: tuple[float, float]  # exactly (new width / width, new height / height)


def resize_for_model(rgb: RGB, resolution: int, squash: bool = False) -> ResizedImage:
    """`rgb` (H, W, 3) uint8 as a tensor (1, 3, H', W') whose sides are multiples of 32.

    The aspect ratio is kept and the long side becomes `resolution`, but it grows no more than `MOST_UPSCALED`
    times; with `squash` it is stretched to resolution x resolution. Each side is then rounded to the nearest
    multiple, at least one, so the scales in x and y differ slightly and are recorded exactly.
    """
    height, width = rgb.shape[:2]
    if resolution < 1:
        raise ConfigError(f"resolution {resolution} must be positive; try 512")
    factor = min(resolution / max(width, height), MOST_UPSCALED)
    wanted = (resolution, resolution) if squash else (width * factor, height * factor)
    new_width, new_height = (max(1, int(side / MULTIPLE + 0.5)) * MULTIPLE for side in wanted)
    return ResizedImage(
        as_tensor(_resample(rgb, new_width, new_height)), (new_width / width, new_height / height)
    )


def as_tensor(pixels: npt.NDArray[Any]) -> Tensor:
    """Pixels (H, W, 3) of 0 to 255 as a network takes them: (1, 3, H, W) float32 in [0, 1]."""
    import torch

    return torch.from_numpy(pixels).permute(2, 0, 1)[None].float().div_(255).contiguous()


def _resample(rgb: RGB, width: int, height: int) -> npt.NDArray[Any]:
    """Area means where a side shrinks, bilinear where it grows; both map x to (x + .5) s - .5."""
    import cv2

    # Two passes, because OpenCV's area mode falls back to something else as soon as one side grows.
    pixels: npt.NDArray[Any] = rgb
    inner = (min(width, rgb.shape[1]), min(height, rgb.shape[0]))
    if inner != (rgb.shape[1], rgb.shape[0]):
        pixels = cv2.resize(pixels, inner, interpolation=cv2.INTER_AREA)
    if inner != (width, height):
        pixels = cv2.resize(pixels.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR)
    return pixels

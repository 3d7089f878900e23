"""A photo as a model takes it, and points mapped both ways.

torch and OpenCV are imported only when they are needed, so that photos can be read before they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError
from coam.images import RGB
from coam.types import Size

if TYPE_CHECKING:
    from torch import Tensor

    from coam.geometry.coordinates import Points

MOST_UPSCALED = 4.0  # times: beyond, a network is shown blur, and matches it


@dataclass(frozen=True)
class ResizedImage:
    """A picture as a model takes it, with all that is needed to map points back."""

    tensor: Tensor  # (1, 3, H, W) float32 in [0, 1]
    scale: tuple[float, float]  # exactly (new width / width, new height / height)
    size: Size  # (width, height) of the original


def resize_for_model(
    rgb: RGB,
    resolution: int | tuple[int, int],
    multiple: int = 32,
    squash: bool = False,
    most_upscaled: float = MOST_UPSCALED,
) -> ResizedImage:
    """`rgb` (H, W, 3) uint8 as a tensor (1, 3, H', W') whose sides are multiples of `multiple`.

    The aspect ratio is kept and the long side becomes `resolution` (or the picture is fitted into the box
    `resolution` = (width, height)), but it grows no more than `most_upscaled` times; with `squash` it is
    stretched to resolution x resolution, or the box. Each side is then rounded to the nearest multiple, at
    least one, so the scales in x and y differ slightly and are recorded exactly.
    """
    height, width = rgb.shape[:2]
    box = (resolution, resolution) if isinstance(resolution, int) else resolution
    if min(box) < 1 or multiple < 1:
        raise ConfigError(f"resolution {resolution} and multiple {multiple} must be positive; try 512 and 32")
    factors = (box[0] / width, box[1] / height)
    if not squash:
        factors = (min(*factors, most_upscaled),) * 2
    new_width = _nearest_multiple(width * factors[0], multiple)
    new_height = _nearest_multiple(height * factors[1], multiple)
    pixels = _resample(rgb, new_width, new_height)
    return ResizedImage(as_tensor(pixels), (new_width / width, new_height / height), (width, height))


def as_tensor(pixels: npt.NDArray[Any]) -> Tensor:
    """Pixels (H, W, 3) of 0 to 255 as a network takes them: (1, 3, H, W) float32 in [0, 1]."""
    import torch

    return torch.from_numpy(pixels).permute(2, 0, 1)[None].float().div_(255).contiguous()


def _nearest_multiple(length: float, multiple: int) -> int:
    return max(1, int(length / multiple + 0.5)) * multiple


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


def points_to_resized(points: Points, scale: tuple[float, float]) -> Points:
    """Points (..., 2) of the original picture in the resized one; `scale` is that of `ResizedImage`."""
    from coam.geometry.coordinates import resize_points

    return resize_points(points, scale)


def points_to_original(points: Points, scale: tuple[float, float]) -> Points:
    """Points (..., 2) of the resized picture in the original one; the inverse of `points_to_resized`."""
    from coam.geometry.coordinates import resize_points

    return resize_points(points, (1.0 / scale[0], 1.0 / scale[1]))

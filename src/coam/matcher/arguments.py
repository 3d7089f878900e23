"""What callers may hand to a matcher, checked: one clear line instead of an error from deep inside."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from coam.errors import ConfigError
from coam.images import ImageLike
from coam.tensors import as_array
from coam.types import FloatArray


def checked_pair(pair: Any) -> tuple[ImageLike, ImageLike]:
    """The two photos of a pair; the name of one photo is no pair of letters."""
    photos: Any = None if isinstance(pair, str | bytes) else pair
    try:
        image0, image1 = photos
    except (TypeError, ValueError) as error:
        what = repr(pair) if isinstance(pair, str | bytes | os.PathLike) else f"a {type(pair).__name__}"
        raise ConfigError(f"match_many takes pairs of photos, (a, b); it was given {what}") from error
    return image0, image1


def checked_point(point: Any) -> tuple[float, float]:
    """One point as two plain numbers."""
    try:
        x, y = (float(value) for value in point)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"point must be two numbers (x, y), pixels of photo 0; not {point!r}") from error
    return x, y


def checked_keypoints(keypoints: npt.ArrayLike | Tensor, size: tuple[int, int], side: int = 0) -> FloatArray:
    """Keypoints as (N, 2) float32, all inside photo `side` (0 or 1), which has `size` (width, height)."""
    name = f"keypoints{side}"
    if isinstance(keypoints, Tensor):
        keypoints = as_array(keypoints)
    try:
        points = np.asarray(keypoints, dtype=np.float32)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{name} must be numbers of shape (N, 2)") from error
    if points.size == 0:
        points = points.reshape(0, 2)
    if points.ndim != 2 or points.shape[1] != 2:
        raise ConfigError(f"{name} must have shape (N, 2), not {points.shape}")
    last = np.asarray(size, dtype=np.float32) - 0.5
    if not np.isfinite(points).all() or (points < -0.5).any() or (points > last).any():
        raise ConfigError(f"{name} must lie inside photo {side}, which is {size[0]} x {size[1]}")
    return points

"""Ground-truth maps: 16-bit PNG files, and bilinear lookup that tells where it crosses an edge."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import DataError

Float64Array = npt.NDArray[np.float64]


def read_png16(path: Path) -> npt.NDArray[np.uint16]:
    """A 16-bit grey PNG as an array (H, W)."""
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as image:
            values = np.asarray(image)
    except (OSError, UnidentifiedImageError) as error:
        raise DataError(f"cannot read the bundled {path.name} ({error}); reinstall coam") from error
    return values.astype(np.uint16)


def sample_smooth(
    field: npt.NDArray[np.floating], points: Float64Array, max_spread: float
) -> tuple[Float64Array, npt.NDArray[np.bool_]]:
    """Bilinear values (N,) of `field` (H, W) at pixel positions (N, 2), and where they can be trusted (N,).

    A value is trusted where all pixels that carry weight are finite and differ by at most `max_spread`;
    elsewhere it is nan. Positions outside the outermost pixel centres are not trusted.
    """
    height, width = field.shape
    x, y = points[:, 0], points[:, 1]
    inside = np.isfinite(points).all(axis=1) & (x >= 0) & (y >= 0) & (x <= width - 1) & (y <= height - 1)
    x, y = np.where(inside, x, 0.0), np.where(inside, y, 0.0)
    column, row = np.floor(x).astype(np.int64), np.floor(y).astype(np.int64)
    right, below = x - column, y - row
    corners = []
    weights = []
    for dy, weight_y in ((0, 1 - below), (1, below)):
        for dx, weight_x in ((0, 1 - right), (1, right)):
            corners.append(field[np.minimum(row + dy, height - 1), np.minimum(column + dx, width - 1)])
            weights.append(weight_x * weight_y)
    values, shares = np.stack(corners).astype(np.float64), np.stack(weights)
    used = shares > 0
    finite = np.isfinite(values)
    high = np.where(used & finite, values, -np.inf).max(axis=0)
    low = np.where(used & finite, values, np.inf).min(axis=0)
    trusted = inside & (finite | ~used).all(axis=0)
    trusted[trusted] = (high - low)[trusted] <= max_spread
    mean = (np.where(used & finite, values, 0.0) * shares).sum(axis=0)
    return np.where(trusted, mean, np.nan), trusted

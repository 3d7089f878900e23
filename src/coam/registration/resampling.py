"""The moving image in the fixed one's frame, tile by tile in bounded memory, in its own type of values."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import cv2
import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError
from coam.matcher.tiles import Window
from coam.registration.rasters import Mask, Pixels, Raster, tiles_over
from coam.registration.transforms import Array, PlaneTransform, Transform
from coam.types import Size

INTERPOLATIONS = {"nearest": cv2.INTER_NEAREST, "linear": cv2.INTER_LINEAR, "cubic": cv2.INTER_CUBIC}
REMAPPABLE = (np.uint8, np.uint16, np.int16, np.float32, np.float64)  # types that OpenCV interpolates


@dataclass(frozen=True)
class ResampleOptions:
    """How pixels are fetched."""

    interpolation: str = "cubic"  # nearest, linear, cubic
    tile: int = 1024  # pixels a side of the fixed image that are made at once
    lattice: int = 8  # pixels between places at which a local transform is computed, linear between
    fill: float | None = None  # where there is nothing; None: the moving image's nodata value, else 0

    def __post_init__(self) -> None:
        if self.interpolation not in INTERPOLATIONS:
            known = ", ".join(INTERPOLATIONS)
            raise ConfigError(f"interpolation {self.interpolation!r} does not exist; choose one of {known}")


DEFAULT_RESAMPLE = ResampleOptions()


def fill_value(raster: Raster, options: ResampleOptions) -> float:
    """What stands where the moving image has nothing."""
    if options.fill is not None:
        return options.fill
    return 0.0 if raster.nodata is None else raster.nodata


def resampled_tiles(
    raster: Raster, transform: Transform, size: Size, options: ResampleOptions = DEFAULT_RESAMPLE
) -> Iterator[tuple[Window, Pixels, Mask]]:
    """Windows of a fixed image of `size`, the moving image's pixels there, and which of them it has."""
    for window in tiles_over(size, options.tile):
        yield (window, *resample_window(raster, transform, window, options))


def resample_whole(
    raster: Raster, transform: Transform, size: Size, options: ResampleOptions = DEFAULT_RESAMPLE
) -> tuple[Pixels, Mask]:
    """All of it in memory: (H, W, bands) and (H, W)."""
    pixels = np.empty((size[1], size[0], raster.bands), raster.dtype)
    inside = np.empty((size[1], size[0]), np.bool_)
    for window, part, there in resampled_tiles(raster, transform, size, options):
        rows = slice(window.top, window.top + window.height)
        columns = slice(window.left, window.left + window.width)
        pixels[rows, columns], inside[rows, columns] = part, there
    return pixels, inside


def resample_window(
    raster: Raster, transform: Transform, window: Window, options: ResampleOptions = DEFAULT_RESAMPLE
) -> tuple[Pixels, Mask]:
    """The moving image's pixels (h, w, bands) in a window of the fixed one, and which it has (h, w)."""
    places = places_of(transform, window, options.lattice)
    fill = np.asarray(fill_value(raster, options)).astype(raster.dtype)
    drawn = np.full((window.height, window.width, raster.bands), fill, raster.dtype)
    inside: Mask = np.asarray(((places >= -0.5) & (places <= np.asarray(raster.size) - 0.5)).all(axis=2))
    if not inside.any():
        return drawn, inside
    low = np.floor(places[inside].min(axis=0)).astype(int) - 3
    high = np.ceil(places[inside].max(axis=0)).astype(int) + 4
    left, top = np.maximum(low, 0)
    right, bottom = np.minimum(high, raster.size)
    source = Window(int(left), int(top), int(right - left), int(bottom - top))
    # Pixels of the moving image for one of the fixed: several are averaged before.
    shrink = math.sqrt(source.width * source.height / max(1, inside.sum()))
    factor = 1 if options.interpolation == "nearest" else max(1, int(shrink))
    factor = min(factor, source.width, source.height)
    if factor > 1:
        read, usable = raster.reduced(source, factor)
    else:
        read = raster.read(source)
        usable = raster.valid(read, source)
    x, y = (((places - [source.left, source.top]) + 0.5) / factor - 0.5).astype(np.float32).transpose(2, 0, 1)
    how = INTERPOLATIONS[options.interpolation]
    complete = bool(usable.all())
    if complete:
        there = inside
    else:
        share = cv2.remap(usable.astype(np.float32), x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
        there = inside & (share > 0.5)
        how = min(how, cv2.INTER_LINEAR)  # a cubic kernel would ring at the edges of what is missing
    for band in range(raster.bands):
        values: npt.NDArray[Any] = np.ascontiguousarray(read[..., band])
        if values.dtype not in REMAPPABLE:
            values = values.astype(np.float64)
        if complete:
            fetched: npt.NDArray[Any] = cv2.remap(
                cast(Any, values), x, y, how, borderMode=cv2.BORDER_REPLICATE
            )
        else:
            known = np.where(usable, values, 0).astype(
                np.float32 if values.dtype != np.float64 else np.float64
            )
            fetched = cv2.remap(cast(Any, known), x, y, how, borderMode=cv2.BORDER_REPLICATE)
            if how != cv2.INTER_NEAREST:
                fetched = fetched / np.maximum(share, 1e-6)
        drawn[..., band] = np.where(there, as_type(fetched, raster.dtype), fill)
    return drawn, there


def places_of(transform: Transform, window: Window, lattice: int) -> Array:
    """(h, w, 2): where the pixels of a window of the fixed image lie in the moving one."""
    step = 1 if isinstance(transform, PlaneTransform) else lattice
    columns, rows = (math.ceil((side - 1) / step) + 1 for side in (window.width, window.height))
    x, y = np.meshgrid(window.left + step * np.arange(columns), window.top + step * np.arange(rows))
    nodes = transform.inverse_points(np.stack([x, y], axis=-1).reshape(-1, 2)).reshape(rows, columns, 2)
    if step == 1:
        return nodes
    across, down = np.arange(window.width) / step, np.arange(window.height) / step
    return _between(_between(nodes, down, 0), across, 1)


def _between(nodes: Array, at: Array, axis: int) -> Array:
    """Linear interpolation of nodes along an axis at positions (N,) in node spacings."""
    first = np.minimum(at.astype(int), max(0, nodes.shape[axis] - 2))
    second = np.minimum(first + 1, nodes.shape[axis] - 1)
    weight = (at - first).reshape((-1, 1, 1) if axis == 0 else (1, -1, 1))
    return np.asarray(np.take(nodes, first, axis) * (1 - weight) + np.take(nodes, second, axis) * weight)


def as_type(values: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """Values in another type; whole numbers are rounded and kept in its range."""
    if np.issubdtype(dtype, np.integer) and values.dtype != dtype:
        limits = np.iinfo(dtype)
        return np.asarray(np.clip(np.rint(values), limits.min, limits.max), dtype)
    return np.asarray(values, dtype)

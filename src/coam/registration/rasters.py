"""Images of any depth and number of bands, read window by window: what registration takes and gives back.

8 and 16 bit, float, one band or many. TIFF files are read by rasterio where it is installed (extra geo), with
their place on Earth, else by tifffile (extra tiff); other files as photos. Nothing but windows is held in
memory of a file that can be read by windows.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeAlias

import cv2
import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, ImageError, MissingExtraError
from coam.images import RGB, ImageLike, load_image
from coam.images.limits import check_size
from coam.matcher.tiles import Window
from coam.types import Size

Pixels = npt.NDArray[Any]  # (h, w, bands) in the type of the file
Mask = npt.NDArray[np.bool_]  # (h, w)
RasterLike: TypeAlias = "ImageLike | Raster"

TIFF_ENDINGS = (".tif", ".tiff")
STRIP_PIXELS = 8_000_000  # read at once where a whole image is looked at
WINDOWED_PIXELS = 4_000_000_000  # of a file that is read by windows


@dataclass(frozen=True)
class Georeference:
    """Where a raster lies on Earth, as rasterio has it."""

    crs: str  # WKT of the coordinate reference system
    transform: tuple[
        float, float, float, float, float, float
    ]  # a, b, c, d, e, f: x = a column + b row + c, ...

    def to_map(self, pixels: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Map coordinates (N, 2) of pixels (N, 2) in our convention; GDAL's corner is (-0.5, -0.5)."""
        a, b, c, d, e, f = self.transform
        x, y = (np.asarray(pixels, np.float64).reshape(-1, 2) + 0.5).T
        return np.stack([a * x + b * y + c, d * x + e * y + f], axis=1)


@dataclass(frozen=True, eq=False)
class Raster:
    """An image that is read by windows."""

    size: Size
    bands: int
    dtype: np.dtype[Any]
    read: Callable[[Window], Pixels]  # of a window inside the image
    nodata: float | None = None  # value of pixels that hold nothing
    georeference: Georeference | None = None
    name: str | None = None
    mask: Mask | None = None  # (H, W) usable pixels, beside those that hold something; None: all

    @property
    def whole(self) -> Window:
        """All of it."""
        return Window(0, 0, *self.size)

    def valid(self, pixels: Pixels, window: Window) -> Mask:
        """(h, w) which pixels of a window hold something and may be used."""
        valid: Mask = np.ones(pixels.shape[:2], np.bool_)
        if np.issubdtype(pixels.dtype, np.floating):
            valid &= np.isfinite(pixels).all(axis=2)
        if self.nodata is not None and np.isfinite(self.nodata):
            valid &= (pixels != self.dtype.type(self.nodata)).any(axis=2)
        if self.mask is not None:
            valid &= window.cut(self.mask)
        return valid

    def reduced(self, window: Window, factor: int) -> tuple[npt.NDArray[np.float32], Mask]:
        """Means (h // factor, w // factor, bands) of blocks of usable pixels, and which blocks have any.

        Rows and columns at the far edges that fill no block are left out.
        """
        rows, columns = window.height // factor, window.width // factor
        means = np.zeros((rows, columns, self.bands), np.float32)
        filled = np.zeros((rows, columns), np.bool_)
        deep = max(1, STRIP_PIXELS // max(1, window.width * factor))
        for start in range(0, rows, deep):
            stop = min(rows, start + deep)
            strip = Window(
                window.left, window.top + start * factor, columns * factor, (stop - start) * factor
            )
            pixels = self.read(strip)
            usable = self.valid(pixels, strip)
            size = (columns, stop - start)
            share = cv2.resize(usable.astype(np.float32), size, interpolation=cv2.INTER_AREA)
            filled[start:stop] = share > 0.5
            everywhere = bool(usable.all())
            for band in range(self.bands):
                values = pixels[..., band].astype(np.float32)
                if not everywhere:
                    values = np.where(usable, values, 0)
                mean = cv2.resize(values, size, interpolation=cv2.INTER_AREA)
                means[start:stop, :, band] = mean / np.maximum(share, 1e-6)
        return means, filled


@dataclass(frozen=True)
class Display:
    """How a raster is shown as RGB: three bands, or one, and what is black and white in each."""

    bands: tuple[int, ...]  # one or three, from 0
    black: tuple[float, ...]
    white: tuple[float, ...]

    def rgb(self, pixels: npt.NDArray[Any]) -> RGB:
        """Pixels (h, w, bands) as (h, w, 3)."""
        shown = [
            np.clip((pixels[..., band].astype(np.float32) - low) * (255 / (high - low)), 0, 255)
            for band, low, high in zip(self.bands, self.black, self.white, strict=True)
        ]
        stacked = np.nan_to_num(np.stack(shown * (3 // len(shown)), axis=-1))
        return np.asarray(np.rint(stacked), np.uint8)


@dataclass(frozen=True)
class DisplayOptions:
    """The stretch of values to what a network sees."""

    bands: tuple[int, ...] | None = None  # one or three, from 0; None: the first three, or the only one
    clip: float = 0.5  # percent of the values that become black, and white
    keep_bytes_from: float = 64.0  # 8-bit values that span this much are shown as they are


def display_of(
    pixels: npt.NDArray[Any], valid: Mask, dtype: np.dtype[Any], options: DisplayOptions, name: str
) -> Display:
    """A robust stretch for usable values of an overview (h, w, bands)."""
    count = pixels.shape[2]
    bands = options.bands or (tuple(range(3)) if count >= 3 else (0,))
    if len(bands) not in (1, 3) or not all(0 <= band < count for band in bands):
        raise ConfigError(f"{name}: has {count} band(s); choose one or three of them, from 0 to {count - 1}")
    black, white = [], []
    for band in bands:
        values = pixels[..., band][valid]
        low, high = np.percentile(values, [options.clip, 100 - options.clip]) if values.size else (0.0, 1.0)
        if dtype == np.uint8 and high - low >= options.keep_bytes_from:
            low, high = 0.0, 255.0
        if not high > low:
            low, high = low - 0.5, low + 0.5
        black.append(float(low))
        white.append(float(high))
    return Display(bands, tuple(black), tuple(white))


# ---- opening


def open_raster(source: RasterLike, mask: Mask | None = None) -> Raster:
    """Any image-like as a raster: a path, or what `load_image` takes, or an array (H, W) or (H, W, bands)."""
    raster = _open(source)
    if mask is None:
        return raster
    if mask.shape != (raster.size[1], raster.size[0]):
        width, height = raster.size
        raise ImageError(f"the mask: is not of the size of its image; make it {width} x {height}")
    return replace(raster, mask=mask)


def _open(source: RasterLike) -> Raster:
    if isinstance(source, Raster):
        return source
    if isinstance(source, np.ndarray):
        return of_array(source)
    if isinstance(source, str | os.PathLike) and Path(source).suffix.lower() in TIFF_ENDINGS:
        return _open_tiff(Path(source))
    if isinstance(source, str | os.PathLike) and Path(source).suffix.lower() == ".png":
        deep = _sixteen_bit_png(Path(source))
        if deep is not None:
            return of_array(deep, str(source))
    image = load_image(source)
    return of_array(image.rgb, image.name)


def of_array(array: npt.NDArray[Any], name: str | None = None, nodata: float | None = None) -> Raster:
    """A raster of an array (H, W) or (H, W, bands) of numbers, which is not copied."""
    label = name or "the array"
    if array.ndim not in (2, 3) or 0 in array.shape:
        raise ImageError(f"{label}: has shape {array.shape}; give (H, W) or (H, W, bands)")
    if array.dtype == np.bool_:
        array = array.astype(np.uint8) * np.uint8(255)
    if not np.issubdtype(array.dtype, np.number) or np.issubdtype(array.dtype, np.complexfloating):
        raise ImageError(f"{label}: has values of type {array.dtype}; give whole or real numbers")
    values = array[..., None] if array.ndim == 2 else array
    height, width, bands = values.shape
    check_size((width, height), label, WINDOWED_PIXELS)
    return Raster((width, height), bands, values.dtype, lambda window: window.cut(values), nodata, name=name)


def _sixteen_bit_png(path: Path) -> npt.NDArray[np.uint16] | None:
    """All 16 bits of a PNG (H, W) or (H, W, 3); None where it has 8, or is no PNG."""
    from coam.images.bit_depth import read_sixteen_bits
    from coam.images.limits import opened_picture

    if not path.is_file():
        return None
    with opened_picture(path) as picture:
        if "16" not in str(picture.mode) and not any("16" in str(t[3]) for t in getattr(picture, "tile", [])):
            return None
    with path.open("rb") as file:
        return read_sixteen_bits(file)


def _open_tiff(path: Path) -> Raster:
    if not path.is_file():
        what = "is a folder; give one image file" if path.is_dir() else "no such file; check the path"
        raise ImageError(f"{path}: {what}")
    try:
        if find_spec("rasterio") is not None:
            return _open_by_rasterio(path)
        if find_spec("tifffile") is not None:
            return _open_by_tifffile(path)
    except (ImageError, MissingExtraError):
        raise
    except Exception as error:  # a damaged file can make a reader raise anything at all
        reason = " ".join(str(error).split())[:200] or type(error).__name__
        raise ImageError(f"{path}: is damaged or no TIFF that can be read ({reason})") from error
    image = load_image(path)
    return of_array(image.rgb, str(path))


def _open_by_rasterio(path: Path) -> Raster:
    import warnings

    import rasterio
    from rasterio.windows import Window as RasterioWindow

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        file = rasterio.open(path)  # kept open: windows are read from it
    check_size((file.width, file.height), str(path), WINDOWED_PIXELS)
    if len(set(file.dtypes)) != 1 or np.dtype(file.dtypes[0]).kind not in "uif":
        raise ImageError(
            f"{path}: has bands of types {', '.join(file.dtypes)}; give one type of real numbers"
        )
    georeference = None
    if file.crs is not None:
        a, b, c, d, e, f = tuple(file.transform)[:6]
        georeference = Georeference(file.crs.to_wkt(), (a, b, c, d, e, f))

    def read(window: Window) -> Pixels:
        part = RasterioWindow(window.left, window.top, window.width, window.height)
        return np.moveaxis(file.read(window=part), 0, -1)

    nodata = None if file.nodata is None else float(file.nodata)
    dtype = np.dtype(file.dtypes[0])
    return Raster((file.width, file.height), file.count, dtype, read, nodata, georeference, str(path))


def _open_by_tifffile(path: Path) -> Raster:
    import tifffile

    with tifffile.TiffFile(path) as file:
        series = file.series[0]
        axes = series.axes
        try:
            values = np.asanyarray(tifffile.memmap(path, mode="r"))
        except ValueError:  # compressed, or in tiles
            check_size((series.sizes.get("width", 1), series.sizes.get("height", 1)), str(path))
            try:
                values = series.asarray()
            except ValueError as error:
                if "imagecodecs" in str(error):
                    raise MissingExtraError("rasterio, which reads every compression,", "geo") from error
                raise
    for axis in range(values.ndim - 1, -1, -1):  # sides of one page or sample say nothing
        if values.ndim > 2 and axes[axis] not in "YX" and values.shape[axis] == 1:
            values, axes = np.squeeze(values, axis), axes[:axis] + axes[axis + 1 :]
    if values.ndim == 3 and axes[1:] == "YX":
        values = np.moveaxis(values, 0, -1)
    elif axes[:2] != "YX" or values.ndim > 3:
        raise ImageError(f"{path}: has the axes {axes}; give an image of rows, columns and bands")
    return of_array(values, str(path))


def tiles_over(size: Size, side: int) -> Iterator[Window]:
    """Windows of at most side x side that cover a raster once, row by row."""
    for top in range(0, size[1], side):
        for left in range(0, size[0], side):
            yield Window(left, top, min(side, size[0] - left), min(side, size[1] - top))

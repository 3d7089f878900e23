"""Files of a registration: the moving image on the fixed one's grid, control points, pictures, the page.

TIFF files keep the type and number of bands; they are written by tiles. With rasterio a GeoTIFF gets the
fixed image's coordinate reference system and transform, and the moving image's nodata value.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Callable
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path

import cv2
import numpy as np

from coam.errors import ImageError, MissingExtraError
from coam.registration.pair import control_points
from coam.registration.pictures import (
    DEFAULT_DISPLAYS,
    ENDINGS,
    Displays,
    draw_picture,
    overlay_of,
    registration_page,
)
from coam.registration.rasters import TIFF_ENDINGS, DisplayOptions, Georeference, Raster, display_of
from coam.registration.resampling import (
    DEFAULT_RESAMPLE,
    ResampleOptions,
    fill_value,
    resample_whole,
    resampled_tiles,
)
from coam.registration.result import Registration
from coam.registration.transforms import Transform
from coam.store.atomic import atomic_write
from coam.store.documents import write_sealed_json
from coam.types import Size

PHOTOS = (".png", ".jpg", ".jpeg", ".webp")
IMAGES = (*PHOTOS, *TIFF_ENDINGS)
KNOWN = (*IMAGES, ".json", ".html", ".points")


def require_writers(outputs: list[Path]) -> None:
    """MissingExtraError where an output is a TIFF and nothing here writes any: to be asked first."""
    if any(path.suffix.lower() in TIFF_ENDINGS for path in outputs) and _tiff_writer() is None:
        raise MissingExtraError("tifffile", "tiff")


def _tiff_writer() -> str | None:
    """The package that writes TIFF files here: rasterio where it is installed, else tifffile; None: none."""
    return next((name for name in ("rasterio", "tifffile") if find_spec(name) is not None), None)


def write_outputs(
    registration: Registration,
    moving: Raster,
    fixed: Raster,
    outputs: list[Path],
    options: ResampleOptions,
    displays: Displays = DEFAULT_DISPLAYS,
) -> None:
    """Write every file, by its ending, or none: see `KNOWN`; pictures have one of `ENDINGS` before .png."""
    require_writers(outputs)
    wanted = [path for path in outputs if picture_of(path) or path.suffix.lower() == ".html"]
    overlay = overlay_of(registration, moving, fixed, displays=displays) if wanted else None
    with ExitStack() as stack:
        temporaries = [stack.enter_context(atomic_write(path)) for path in outputs]
        for path, temporary in zip(outputs, temporaries, strict=True):
            ending, picture = path.suffix.lower(), picture_of(path)
            if overlay is not None and picture:
                draw_picture(picture, registration, overlay, moving).save(temporary)
            elif overlay is not None and ending == ".html":
                names = tuple(Path(raster.name or "image").name for raster in (moving, fixed))
                temporary.write_text(registration_page(registration, overlay, (names[0], names[1])), "utf-8")
            elif ending == ".json":
                write_sealed_json(temporary, registration.to_json())
            elif ending == ".points":
                temporary.write_text(ground_control_points(registration, fixed), "utf-8")
            else:
                registration.require_trust()
                frame = registration.fixed_size, fixed.georeference
                write_image(temporary, ending, moving, registration.transform, *frame, options)


def picture_of(path: Path) -> str:
    """The entry of `ENDINGS` that a picture's name asks for; empty: none."""
    inner = Path(path.stem).suffix.lower()
    return inner if inner in ENDINGS and path.suffix.lower() in PHOTOS else ""


def write_image(
    path: Path,
    ending: str,
    moving: Raster,
    transform: Transform,
    size: Size,
    georeference: Georeference | None = None,
    options: ResampleOptions = DEFAULT_RESAMPLE,
) -> None:
    """`moving` drawn into a frame of `size`, by ending as TIFF (any values, by tiles) or as a photo."""
    if ending in TIFF_ENDINGS:
        _write_tiff(path, moving, transform, size, georeference, options)
    else:
        _write_photo(path, ending, moving, transform, size, options)


def _write_photo(
    path: Path, ending: str, moving: Raster, transform: Transform, size: Size, options: ResampleOptions
) -> None:
    """8 bits as they are, 16 bits into PNG; other types are stretched to what can be seen."""
    pixels, inside = resample_whole(moving, transform, size, options)
    deep = pixels.dtype == np.uint16 and ending == ".png"
    if not (deep or pixels.dtype == np.uint8) or pixels.shape[2] not in (1, 3, 4):
        shown = display_of(pixels, inside, pixels.dtype, DisplayOptions(), moving.name or "the image")
        pixels = shown.rgb(pixels)
        pixels[~inside] = 0
    order = {1: [0], 3: [2, 1, 0], 4: [2, 1, 0, 3]}[pixels.shape[2]]
    done, encoded = cv2.imencode(ending, np.ascontiguousarray(pixels[..., order]))
    if not done:
        raise ImageError(f"{path.name}: cannot be written with this ending; use .tif or .png")
    path.write_bytes(encoded.tobytes())


def _write_tiff(
    path: Path,
    moving: Raster,
    transform: Transform,
    size: Size,
    georeference: Georeference | None,
    options: ResampleOptions,
) -> None:
    if _tiff_writer() == "rasterio":
        _write_by_rasterio(path, moving, transform, size, georeference, options)
    else:
        _write_by_tifffile(path, moving, transform, size, options)


def _write_by_rasterio(
    path: Path,
    moving: Raster,
    transform: Transform,
    size: Size,
    georeference: Georeference | None,
    options: ResampleOptions,
) -> None:
    import warnings

    import rasterio
    from rasterio.windows import Window as RasterioWindow

    profile: dict[str, object] = {
        "driver": "GTiff",
        "width": size[0],
        "height": size[1],
        "count": moving.bands,
        "dtype": moving.dtype.name,
        "compress": "deflate",
        "tiled": True,
        "blockxsize": 256,
        "blockysize": 256,
        "BIGTIFF": "IF_SAFER",
    }
    if moving.bands == 3 and moving.dtype == np.uint8:
        profile["photometric"] = "RGB"
    if moving.nodata is not None or options.fill is not None:
        profile["nodata"] = fill_value(moving, options)
    if georeference is not None:
        profile["crs"] = georeference.crs
        profile["transform"] = rasterio.Affine(*georeference.transform)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        with rasterio.open(path, "w", **profile) as file:
            for window, pixels, _ in resampled_tiles(moving, transform, size, options):
                place = RasterioWindow(window.left, window.top, window.width, window.height)
                file.write(np.moveaxis(pixels, -1, 0), window=place)


def _write_by_tifffile(
    path: Path, moving: Raster, transform: Transform, size: Size, options: ResampleOptions
) -> None:
    import tifffile

    shape = (size[1], size[0]) if moving.bands == 1 else (size[1], size[0], moving.bands)
    photometric = "rgb" if moving.bands in (3, 4) else "minisblack"
    target = tifffile.memmap(path, shape=shape, dtype=moving.dtype, photometric=photometric)
    for window, pixels, _ in resampled_tiles(moving, transform, size, options):
        rows = slice(window.top, window.top + window.height)
        columns = slice(window.left, window.left + window.width)
        target[rows, columns] = pixels[..., 0] if moving.bands == 1 else pixels
    target.flush()


def ground_control_points(registration: Registration, fixed: Raster, count: int = 100) -> str:
    """Control points as QGIS' georeferencer reads them (.points): map coordinates, pixels, residuals.

    Map coordinates are those of the fixed image's reference system, or its pixels with y up without one.
    Source pixels count from the corner of the first one, y up, as QGIS has them.
    """
    points = control_points(registration, count)
    moved = registration.points(points[:, :2]) - points[:, 2:]
    place: Callable[[np.ndarray], np.ndarray] = (
        fixed.georeference.to_map if fixed.georeference is not None else lambda xy: (xy + 0.5) * [1, -1]
    )
    maps = place(points[:, 2:])
    text = io.StringIO()
    if fixed.georeference is not None:
        text.write(f"#CRS: {' '.join(fixed.georeference.crs.split())}\n")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["mapX", "mapY", "sourceX", "sourceY", "enable", "dX", "dY", "residual"])
    for (x, y), (x0, y0), (dx, dy) in zip(maps, points[:, :2] + 0.5, moved, strict=True):
        row = [x, y, x0, -y0, 1, dx, dy, float(np.hypot(dx, dy))]
        writer.writerow([f"{value:.6f}" if isinstance(value, float) else value for value in row])
    return text.getvalue()

"""What a registration looks like: checkerboard, before and after, residual arrows, swipe and flicker page."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.geometry.coordinates import resize_points
from coam.matcher.tiles import Window
from coam.registration.local_models import spread_points
from coam.registration.rasters import DisplayOptions, RasterLike, display_of, open_raster
from coam.registration.resampling import places_of
from coam.registration.result import Registration
from coam.registration.transforms import Array, Transform
from coam.types import Size
from coam.viz.canvas import GAP, draw_dots, draw_lines, faded, fitted, resize
from coam.viz.colours import PAPER, ByteImage, colour_table
from coam.viz.html import fill_page, photo_uri
from coam.viz.overlay import Overlay, draw_aligned

LONGEST = 1200  # pixels of the long side of pictures
ARROWS = 150  # residuals drawn
ARROW_LENGTH = 0.03  # of the long side: what the ninth decile of the residuals is drawn as
Displays = tuple[DisplayOptions, DisplayOptions]  # of the moving and the fixed image
DEFAULT_DISPLAYS: Displays = (DisplayOptions(), DisplayOptions())
ENDINGS = {".checker": "checkerboard", ".arrows": "residual arrows", ".before-after": "before and after"}


def overlay_of(
    registration: Registration,
    moving: RasterLike,
    fixed: RasterLike,
    longest: int = LONGEST,
    displays: Displays = DEFAULT_DISPLAYS,
) -> Overlay:
    """Both images in the fixed one's frame, as RGB, its long side at most `longest`."""
    shown0, shown1 = (
        _shown(image, longest, how) for image, how in zip((moving, fixed), displays, strict=True)
    )
    (rgb0, scale0), (rgb1, scale1) = shown0, shown1
    moved, inside = _drawn(
        rgb0, _Shrunk(registration.transform, scale0, scale1), (rgb1.shape[1], rgb1.shape[0])
    )
    return Overlay(rgb1, moved, inside)


def _shown(image: RasterLike, longest: int, how: DisplayOptions) -> tuple[ByteImage, tuple[float, float]]:
    """An image as RGB with its long side at most `longest`, and its scale in x and y."""
    raster = open_raster(image)
    factor = max(1, max(raster.size) // longest)
    values, usable = raster.reduced(raster.whole, min(factor, *raster.size))
    rgb = display_of(values, usable, raster.dtype, how, raster.name or "the image").rgb(values)
    rgb[~usable] = 0
    covered = (rgb.shape[1] * factor, rgb.shape[0] * factor)  # without rows that fill no block
    size = fitted(covered, min(longest, max(covered)))
    return resize(rgb, size), (size[0] / covered[0], size[1] / covered[1])


class _Shrunk(Transform):
    """A transform between two images that are shown smaller."""

    kind = "dense"

    def __init__(self, inner: Transform, moving: tuple[float, float], fixed: tuple[float, float]) -> None:
        self.inner, self.moving, self.fixed = inner, moving, fixed

    def points(self, moving: npt.ArrayLike) -> Array:
        back = resize_points(np.asarray(moving, np.float64), (1 / self.moving[0], 1 / self.moving[1]))
        return np.asarray(resize_points(self.inner.points(back), self.fixed))

    def inverse_points(self, fixed: npt.ArrayLike) -> Array:
        back = resize_points(np.asarray(fixed, np.float64), (1 / self.fixed[0], 1 / self.fixed[1]))
        return np.asarray(resize_points(self.inner.inverse_points(back), self.moving))

    def to_json(self) -> dict[str, object]:
        raise NotImplementedError("a picture's transform is not kept")


def _drawn(rgb: ByteImage, transform: Transform, size: Size) -> tuple[ByteImage, npt.NDArray[np.bool_]]:
    import cv2

    places = places_of(transform, Window(0, 0, *size), lattice=4)
    inside: npt.NDArray[np.bool_] = np.asarray(
        ((places >= -0.5) & (places <= np.array(rgb.shape[1::-1]) - 0.5)).all(axis=2)
    )
    x, y = np.where(np.isfinite(places), places, -1e4).clip(-1e4, 1e5).astype(np.float32).transpose(2, 0, 1)
    moved = cv2.remap(rgb, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.where(inside[..., None], moved, 0).astype(np.uint8), inside


def draw_checkerboard(overlay: Overlay) -> Image.Image:
    """Alternating squares of both images; edges that run on from square to square are right."""
    return draw_aligned(overlay, "checkerboard")


def draw_before_after(registration: Registration, overlay: Overlay, moving: RasterLike) -> Image.Image:
    """Both images one over the other, in two colours: as they came, and registered.

    The fixed image is red, the moving one cyan: what agrees is grey.
    """
    height, width = overlay.inside.shape
    scale = width / registration.fixed_size[0]
    before, _ = _shown(moving, max(1, round(max(registration.moving_size) * scale)), DisplayOptions())
    placed = np.zeros_like(overlay.photo0)
    rows, columns = min(height, before.shape[0]), min(width, before.shape[1])
    placed[:rows, :columns] = before[:rows, :columns]
    paper = np.full((height, GAP, 3), PAPER, np.uint8)
    return Image.fromarray(
        np.hstack(
            [_two_colours(overlay.photo0, placed), paper, _two_colours(overlay.photo0, overlay.warped1)]
        )
    )


def _two_colours(first: ByteImage, second: ByteImage) -> ByteImage:
    """One image in the red channel and one in the others, each stretched."""
    grey0, grey1 = (_stretched(image) for image in (first, second))
    return np.stack([grey0, grey1, grey1], axis=-1)


def _stretched(image: ByteImage) -> npt.NDArray[np.uint8]:
    grey = image.astype(np.float32).mean(axis=2)
    seen = grey[grey > 0]
    low, high = np.percentile(seen, [1, 99]) if seen.size else (0.0, 1.0)
    return np.asarray(np.clip((grey - low) * (255 / max(high - low, 1.0)), 0, 255), np.uint8)


def draw_residuals(registration: Registration, overlay: Overlay) -> Image.Image:
    """Where matches that agree miss the transform: arrows, magnified, on the fixed image.

    Colours and lengths grow with the residual; the ninth decile is 3 % of the long side long.
    """
    height, width = overlay.inside.shape
    scale = (width / registration.fixed_size[0], height / registration.fixed_size[1])
    canvas = faded(overlay.photo0)
    points = registration.control_points
    if not len(points):
        return Image.fromarray(canvas)
    chosen = spread_points(points[:, 2:], ARROWS)
    index = {tuple(point): number for number, point in enumerate(points[:, 2:].tolist())}
    points = points[[index[tuple(point)] for point in chosen.tolist()]]
    starts = resize_points(points[:, 2:], scale)
    ends = resize_points(registration.points(points[:, :2]), scale)
    lengths = np.linalg.norm(ends - starts, axis=1)
    typical = max(float(np.percentile(lengths, 90)), 1e-6)
    magnified = starts + (ends - starts) * (ARROW_LENGTH * max(width, height) / typical)
    table = colour_table("score")[::-1]
    colours = table[np.clip(lengths / typical * 255, 0, 255).astype(int)]
    canvas = draw_lines(canvas, starts.astype(np.float32), magnified.astype(np.float32), colours, 1.0, 2)
    return Image.fromarray(draw_dots(canvas, starts.astype(np.float32), colours, 2.5))


def draw_picture(name: str, registration: Registration, overlay: Overlay, moving: RasterLike) -> Image.Image:
    """The picture of an ending in `ENDINGS`."""
    if name == ".checker":
        return draw_checkerboard(overlay)
    if name == ".arrows":
        return draw_residuals(registration, overlay)
    return draw_before_after(registration, overlay, moving)


def registration_page(
    registration: Registration, overlay: Overlay, names: tuple[str, str] = ("moving", "fixed")
) -> str:
    """A self-contained HTML page: swipe between both, flicker, blend, difference, residual arrows."""
    quality = registration.quality
    error = quality.held_out_error
    data = {
        "names": list(names),
        "size": [overlay.inside.shape[1], overlay.inside.shape[0]],
        "fixed": photo_uri(overlay.photo0),
        "moved": photo_uri(overlay.warped1),
        "arrows": photo_uri(np.asarray(draw_residuals(registration, overlay))),
        "kind": registration.transform.kind,
        "confidence": round(quality.confidence, 3),
        "coverage": round(quality.coverage, 3),
        "error": round(error, 2) if np.isfinite(error) else None,
        "inliers": quality.inliers,
        "refusal": registration.refusal,
        "why": registration.why,
    }
    return fill_page("registration.html", f"{names[0]} on {names[1]}", data)

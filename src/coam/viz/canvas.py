"""Drawing primitives: photos as bytes, layouts of photos, antialiased lines and dots, captions and panels."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Literal

import cv2
import numpy as np
from PIL import Image, ImageDraw, ImageFont

from coam.errors import ConfigError
from coam.geometry.coordinates import resize_points
from coam.images import load_image
from coam.types import FloatArray, Matches, Size
from coam.viz.colours import INK, PAPER, ByteImage, Rgb

Layout = Literal["auto", "horizontal", "vertical"]
GAP = 8  # pixels of paper between two photos
CAPTION_HEIGHT = 30
_TITLE_HEIGHT = 28
_SUBPIXEL_BITS = 4  # OpenCV draws at 1/16 pixel
_FAR = 1e5  # pixels
_PHASES = 4  # dots are placed at quarters of a pixel
_RIM = 0.8  # pixels


def photos_of(matches: Matches, images: tuple[Any, Any] | None) -> tuple[ByteImage, ByteImage]:
    """The two photos to draw on: `images` where given, else those that `matches` carries or came from."""
    if images is not None:
        return load_image(images[0]).rgb, load_image(images[1]).rgb
    return _own_photo(matches, 0), _own_photo(matches, 1)


def _own_photo(matches: Matches, number: int) -> ByteImage:
    """Photo 0 or 1 as it was matched, or from its file."""
    kept, size = ((matches.image0, matches.size0), (matches.image1, matches.size1))[number]
    if kept is not None:
        return load_image(kept).rgb
    path = matches.meta.get(f"image{number}")
    if not isinstance(path, str):
        raise ConfigError(
            "these matches carry no photos and know no files of them: pass images=(photo0, photo1)"
        )
    if not os.path.isfile(path):
        raise ConfigError(f"{path}: the matched photo is no longer there: pass images=(photo0, photo1)")
    photo = load_image(path)
    if photo.size != size:
        raise ConfigError(f"{path}: is not the photo that was matched, {size[0]} x {size[1]}: pass images=")
    return photo.rgb


def resize(image: ByteImage, size: Size) -> ByteImage:
    """`image` at `size` (width, height): area averaging when shrinking, cubic when growing."""
    if (image.shape[1], image.shape[0]) == size:
        return image
    shrinks = size[0] * size[1] < image.shape[0] * image.shape[1]
    how = cv2.INTER_AREA if shrinks else cv2.INTER_CUBIC
    return np.asarray(cv2.resize(image, size, interpolation=how), dtype=np.uint8)


def fitted(size: Size, longest: int) -> Size:
    """`size` (width, height) scaled so that its longer side is `longest`."""
    scale = longest / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


@dataclass(frozen=True)
class PairLayout:
    """Where two photos lie on one canvas. Sizes are (width, height), corners (x, y) in canvas pixels."""

    original0: Size
    original1: Size
    shown0: Size
    shown1: Size
    corner1: tuple[int, int]  # photo 0 lies at (0, 0)
    canvas: Size

    def place(self, photo: int, points: FloatArray) -> FloatArray:
        """Canvas positions (N, 2) of `points` (N, 2) given in original pixels of photo 0 or 1."""
        original, shown = (self.original0, self.shown0) if photo == 0 else (self.original1, self.shown1)
        corner = (0, 0) if photo == 0 else self.corner1
        scaled = resize_points(
            np.asarray(points, dtype=np.float32).reshape(-1, 2),
            (shown[0] / original[0], shown[1] / original[1]),
        )
        return np.asarray(scaled + np.asarray(corner, dtype=np.float32), dtype=np.float32)


def lay_out(size0: Size, size1: Size, layout: Layout = "auto", width: int = 1600) -> PairLayout:
    """Place photos of `size0` and `size1` side by side or stacked on a canvas at most `width` x 0.8 `width`.

    Both get the same height beside each other, the same width above each other. "auto" goes beside
    unless that would show them much smaller (panoramas).
    """
    if layout not in ("auto", "horizontal", "vertical"):
        raise ConfigError(f"layout {layout!r} does not exist; choose auto, horizontal or vertical")
    aspect0, aspect1 = size0[0] / size0[1], size1[0] / size1[1]
    limit = 0.8 * width
    row_height = min((width - GAP) / (aspect0 + aspect1), limit)
    column_width = min((limit - GAP) / (1 / aspect0 + 1 / aspect1), width)
    row_area = row_height**2 * (aspect0 + aspect1)
    column_area = column_width**2 * (1 / aspect0 + 1 / aspect1)
    if layout == "horizontal" or (layout == "auto" and 2.2 * row_area >= column_area):
        height = max(1, round(row_height))
        shown0, shown1 = ((max(1, round(height * a)), height) for a in (aspect0, aspect1))
        corner1, canvas = (shown0[0] + GAP, 0), (shown0[0] + GAP + shown1[0], height)
    else:
        across = max(1, round(column_width))
        shown0, shown1 = ((across, max(1, round(across / a))) for a in (aspect0, aspect1))
        corner1, canvas = (0, shown0[1] + GAP), (across, shown0[1] + GAP + shown1[1])
    return PairLayout(size0, size1, shown0, shown1, corner1, canvas)


def paste_pair(layout: PairLayout, image0: ByteImage, image1: ByteImage) -> ByteImage:
    """The canvas (H, W, 3) with both photos in their places on paper."""
    canvas = np.full((layout.canvas[1], layout.canvas[0], 3), PAPER, dtype=np.uint8)
    for image, shown, (x, y) in ((image0, layout.shown0, (0, 0)), (image1, layout.shown1, layout.corner1)):
        canvas[y : y + shown[1], x : x + shown[0]] = resize(image, shown)
    return canvas


def faded(image: ByteImage, saturation: float = 0.5, brightness: float = 0.84) -> ByteImage:
    """A quieter photo on which lines and dots stand out; a photo by night is lifted instead."""
    grey = cv2.cvtColor(image, cv2.COLOR_RGB2GRAY)[..., None].astype(np.float32)
    brightness = max(brightness, min(1.3, 70 / max(float(grey.mean()), 1.0)))
    quiet = (grey + (image - grey) * saturation) * brightness
    return np.rint(np.clip(quiet, 0, 255)).astype(np.uint8)


def _fixed(points: FloatArray) -> list[tuple[int, int]]:
    scaled = np.rint(np.asarray(points, dtype=np.float64) * (1 << _SUBPIXEL_BITS)).astype(np.int64)
    return [(int(x), int(y)) for x, y in scaled]


def draw_lines(
    canvas: ByteImage,
    starts: FloatArray,
    ends: FloatArray,
    colours: ByteImage,
    alpha: float,
    thickness: int = 1,
) -> ByteImage:
    """`canvas` with smooth lines from `starts` (N, 2) to `ends` (N, 2) of `colours` (N, 3), last on top."""
    layer = canvas.copy()
    # OpenCV overruns its memory on coordinates that overflow; no honest line goes that far.
    sane = (np.abs(starts) < _FAR).all(axis=1) & (np.abs(ends) < _FAR).all(axis=1)
    starts, ends, colours = starts[sane], ends[sane], colours[sane]
    for start, end, colour in zip(_fixed(starts), _fixed(ends), colours.tolist(), strict=True):
        cv2.line(layer, start, end, colour, thickness, cv2.LINE_AA, _SUBPIXEL_BITS)
    return np.asarray(cv2.addWeighted(layer, alpha, canvas, 1 - alpha, 0), dtype=np.uint8)


def draw_dots(
    canvas: ByteImage, points: FloatArray, colours: ByteImage, radius: float, rim: Rgb | None = INK
) -> ByteImage:
    """`canvas` with discs of `colours` (N, 3) at `points` (N, 2), each with a thin `rim`, the last on top."""
    layer = canvas.astype(np.float32)
    sane = (np.abs(points) < _FAR).all(axis=1)
    points, colours = points[sane], colours[sane]
    rim_colour = None if rim is None else np.asarray(rim, dtype=np.float32)
    reach = int(np.ceil(radius + _RIM + 1))
    for (x, y), colour in zip(
        np.asarray(points, np.float64).tolist(), colours.astype(np.float32), strict=True
    ):
        column, row = round(x), round(y)
        phase = (round((x - column) * _PHASES) / _PHASES, round((y - row) * _PHASES) / _PHASES)
        left, top = column - reach, row - reach
        patch = layer[max(top, 0) : row + reach + 1, max(left, 0) : column + reach + 1]
        if 0 in patch.shape or row + reach < 0 or column + reach < 0:
            continue
        cut = (
            slice(max(-top, 0), max(-top, 0) + patch.shape[0]),
            slice(max(-left, 0), max(-left, 0) + patch.shape[1]),
        )
        if rim_colour is not None:
            cover = disc_cover(radius + _RIM, reach, phase)[cut]
            patch += cover * (rim_colour - patch)
        patch += disc_cover(radius, reach, phase)[cut] * (colour - patch)
    return np.rint(layer).astype(np.uint8)


@lru_cache(maxsize=4096)
def disc_cover(radius: float, reach: int, centre: tuple[float, float]) -> FloatArray:
    """How much of each pixel (2 reach + 1, 2 reach + 1, 1) lies in a disc `centre` away from the middle.

    OpenCV's filled circles of two or three pixels are diamonds; these are round.
    """
    at = np.arange(-reach, reach + 1, dtype=np.float32)
    distance = np.hypot(at[None, :] - centre[0], at[:, None] - centre[1])
    cover: FloatArray = np.clip(radius + 0.5 - distance, 0, 1).astype(np.float32)
    return cover[..., None]


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    """The font that Pillow carries, so that pictures look the same on every machine."""
    return ImageFont.load_default(size)


def text_width(text: str, size: int = 14) -> int:
    """Width in pixels of `text` at `size`."""
    return int(np.ceil(font(size).getlength(text)))


@dataclass(frozen=True)
class Swatch:
    """One legend entry: a colour bar (M, 3) with words before and after it."""

    colours: ByteImage
    before: str = ""
    after: str = ""


def with_caption(picture: ByteImage, text: str, swatches: tuple[Swatch, ...] = ()) -> Image.Image:
    """`picture` above a strip of paper with `text` at the left and the legend at the right.

    The strip is below the photos, so that it covers nothing and canvas positions stay what they were.
    """
    height, width = picture.shape[:2]
    page = Image.new("RGB", (width, height + CAPTION_HEIGHT), PAPER)
    page.paste(Image.fromarray(picture), (0, 0))
    pen = ImageDraw.Draw(page)
    size = 14 if width >= 420 else 11
    top = height + (CAPTION_HEIGHT - size) // 2 - 1
    right = width - 6
    for swatch in reversed(swatches):
        bar_size = (90 if len(swatch.colours) > 1 else 14, 12)
        bar = Image.fromarray(np.repeat(swatch.colours[None], 12, axis=0)).resize(bar_size)
        for part in (swatch.after, bar, swatch.before):
            if isinstance(part, Image.Image):
                right -= part.width
                page.paste(part, (right, height + (CAPTION_HEIGHT - 12) // 2))
            elif part:
                right -= text_width(part, size)
                pen.text((right, top), part, fill=INK, font=font(size))
            right -= 5 if part else 0
        right -= 9
    while text and text_width(text, size) > right - 8:
        text = text[:-2].rstrip(" ,;·…") + "…" if len(text) > 2 else ""
    pen.text((6, top), text, fill=INK, font=font(size))
    return page


def panel_grid(panels: list[tuple[str, ByteImage]], columns: int) -> Image.Image:
    """Titled pictures in rows of `columns`; a column is as wide as its widest picture."""
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    widths = [max(row[c][1].shape[1] for row in rows if c < len(row)) for c in range(len(rows[0]))]
    heights = [max(image.shape[0] for _, image in row) for row in rows]
    total = (
        sum(widths) + GAP * (len(widths) - 1),
        sum(heights) + _TITLE_HEIGHT * len(rows) + GAP * (len(rows) - 1),
    )
    page = Image.new("RGB", total, PAPER)
    pen = ImageDraw.Draw(page)
    top = 0
    for row, height in zip(rows, heights, strict=True):
        left = 0
        for (title, image), width in zip(row, widths, strict=False):
            pen.text((left + 4, top + 6), title, fill=INK, font=font(14))
            page.paste(Image.fromarray(image), (left, top + _TITLE_HEIGHT))
            left += width + GAP
        top += _TITLE_HEIGHT + height + GAP
    return page

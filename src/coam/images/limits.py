"""Limits of pictures, read from the header before anything is decoded: only here are picture files opened.

A file of 74 bytes can claim to be 1 x 199,000,000 pixels, and decoding it would take gigabytes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from PIL import Image

from coam.errors import ImageError
from coam.types import Size

MAX_PIXELS = 200_000_000  # 600 MB as RGB
MAX_SIDE = 65_535  # pixels; what JPEG can hold
MAX_ASPECT = 5_000  # long side over short side

# Photo formats only: Pillow also opens documents (EPS starts Ghostscript), which is no business of a matcher.
FORMATS = (
    "JPEG", "MPO", "PNG", "TIFF", "WEBP", "BMP", "DIB", "GIF", "PPM", "JPEG2000", "TGA", "ICO", "AVIF",
)  # fmt: skip
_limit_lock = threading.Lock()  # Pillow's own limit of pixels belongs to the process


def check_size(size: Size, label: str, max_pixels: int = MAX_PIXELS) -> None:
    """Refuse a picture of this (width, height); `label` names it."""
    width, height = size
    measured = f"{label}: {width} x {height} pixels"
    if width < 1 or height < 1:
        raise ImageError(f"{label}: has no pixels ({width} x {height}); give a picture of at least 1 x 1")
    if width * height > max_pixels:
        raise ImageError(f"{measured} are over the limit of {max_pixels / 1e6:g} million; shrink it first")
    if max(width, height) > MAX_SIDE:
        raise ImageError(f"{measured}: no side may be longer than {MAX_SIDE}; shrink or cut it first")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageError(f"{measured}: one side may be {MAX_ASPECT} times the other at most; cut it first")


def open_checked(file: IO[bytes], label: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """The picture in `file`, its header read and its size checked, not decoded yet."""
    Image.init()
    formats = [known for known in (*FORMATS, "HEIF") if known in Image.OPEN]
    # A damaged file can make a decoder raise anything at all, so this border catches everything.
    try:
        with _limit_lock:  # only the header is read here; `check_size` then applies our limits
            before, Image.MAX_IMAGE_PIXELS = Image.MAX_IMAGE_PIXELS, None
            try:
                image = Image.open(file, formats=formats)
            finally:
                Image.MAX_IMAGE_PIXELS = before
    except Exception as error:
        raise ImageError(f"{label}: is not a picture that can be read; give a JPEG, PNG or TIFF") from error
    try:
        check_size(image.size, label, max_pixels)
    except ImageError:
        image.close()
        raise
    return image


@contextmanager
def opened_picture(path: Path) -> Iterator[Image.Image]:
    """A picture file as Pillow has it, within the limits; what its decoder raises is an `ImageError` too."""
    try:
        with open(path, "rb") as file, open_checked(file, str(path)) as image:
            yield image
    except ImageError:
        raise
    except (OSError, ValueError, SyntaxError, MemoryError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{path}: cannot be read as a picture ({reason}); remove or replace it") from error

"""Pictures in: any image-like to 8-bit RGB.

Decisions, made once here: EXIF orientation is applied; transparent pixels show white; 16-bit values are
scaled (65535 is white), never clipped, and stretched where they use less than a quarter of their range; of an
animation the first frame is taken; floats are in [0, 1].

torch is imported only for what is a tensor, so that photos can be read before it is.
"""

from __future__ import annotations

import io
import os
import re
import stat
import sys
from dataclasses import dataclass, replace
from typing import IO, TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.errors import ImageError, install_command
from coam.images.bit_depth import is_cut_to_upper_bytes, read_sixteen_bits, stretch_low_range, uses_low_range
from coam.images.limits import MAX_PIXELS, check_size, open_checked
from coam.types import Size

if TYPE_CHECKING:
    from torch import Tensor

RGB = npt.NDArray[np.uint8]  # (H, W, 3)
ImageLike: TypeAlias = (
    "str | os.PathLike[str] | bytes | IO[bytes] | Image.Image | npt.NDArray[Any] | Tensor | LoadedImage"
)

_HEIF_BRANDS = (b"heic", b"heix", b"hevc", b"hevx", b"heim", b"heis", b"mif1", b"msf1")
_AVIF_BRANDS = (b"avif", b"avis")
_SIXTEEN_BIT_MODES = ("I", "I;16", "I;16B", "I;16L", "I;16N")
_ORIENTATION, _MAKE, _MODEL, _EXIF_IFD, _FOCAL_35MM = 0x0112, 0x010F, 0x0110, 0x8769, 0xA405
_GPS_IFD = 0x8825


@dataclass(frozen=True)
class LoadedImage:
    """A picture ready for use, upright."""

    rgb: RGB  # (H, W, 3)
    name: str | None = None  # path or file name, where it has one
    focal35: float | None = None  # EXIF focal length in mm on 35 mm film; in pixels: focal35 / 36 * long side
    camera: str | None = None  # EXIF make and model
    gps: tuple[float, float, float] | None = None  # EXIF latitude, longitude (degrees), altitude (m, or 0)

    @property
    def size(self) -> Size:
        """(width, height)"""
        return int(self.rgb.shape[1]), int(self.rgb.shape[0])

    @property
    def path(self) -> str | None:
        """Where its file is, absolute; None where it came from no file."""
        return os.path.abspath(self.name) if self.name and os.path.isfile(self.name) else None


def load_image(source: ImageLike, *, max_pixels: int = MAX_PIXELS) -> LoadedImage:
    """Any image-like as upright 8-bit RGB (H, W, 3).

    `source`: a path, the bytes of a file, a binary file object, a PIL image, an array (H, W) or
    (H, W, 1|3|4), a tensor (1|3|4, H, W), (1, 1|3|4, H, W) or shaped as an array; uint8, uint16, bool, or
    floats in [0, 1].
    A `LoadedImage` comes back as it is.
    """
    if isinstance(source, LoadedImage):
        return source
    if isinstance(source, Image.Image):
        check_size(source.size, "the PIL image", max_pixels)
        return _from_pil(source, getattr(source, "filename", None) or None, "the PIL image")
    torch = sys.modules.get("torch")  # what is not imported has made no tensors
    if torch is not None and isinstance(source, torch.Tensor):
        return LoadedImage(_rgb_from_array(_channels_last(source), "the tensor", max_pixels))
    if isinstance(source, np.ndarray):
        return LoadedImage(_rgb_from_array(source, "the array", max_pixels))
    if isinstance(source, (bytes, bytearray, memoryview)):
        return _decode(io.BytesIO(source), None, "the given bytes", max_pixels)
    if isinstance(source, (str, os.PathLike)):
        return _read_path(source, max_pixels)
    if hasattr(source, "read"):
        return _read_file_object(cast("IO[bytes]", source), max_pixels)
    kind = type(source).__name__
    raise ImageError(f"a {kind} is not an image; give a path, bytes, a file, a PIL image, array or tensor")


# ---- files


def _read_path(source: str | os.PathLike[str], max_pixels: int) -> LoadedImage:
    name = os.fspath(source)
    _check_is_readable_file(name)
    try:
        with open(name, "rb") as file:
            return _decode(file, name, name, max_pixels)
    except OSError as error:
        reason = error.strerror or error
        raise ImageError(f"{name}: cannot be opened ({reason}); check its permissions") from error


def _check_is_readable_file(name: str) -> None:
    """Ask before opening: opening a pipe or a device would wait for ever."""
    if re.match(r"(https?|ftp)://?", name):  # one slash is left of two in a Path
        url = re.sub(":/+", "://", name, count=1)
        raise ImageError(f"{url}: URLs are not read; download the photo and give its path")
    try:
        mode = os.stat(name).st_mode
    except FileNotFoundError as error:
        raise ImageError(f"{name}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise ImageError(f"{name!a}: cannot be opened ({reason}); check the path") from error
    if stat.S_ISDIR(mode):
        raise ImageError(f"{name}: is a folder; give one image file")
    if not stat.S_ISREG(mode):
        raise ImageError(f"{name}: is not a regular file; save the picture to a file first")


def _read_file_object(source: IO[bytes], max_pixels: int) -> LoadedImage:
    given = getattr(source, "name", None)
    name = given if isinstance(given, str) else None
    label = name or "the file object"
    try:
        content = source.read()
    except (OSError, ValueError) as error:
        raise ImageError(f"{label}: cannot be read ({error}); give an open, readable file") from error
    if not isinstance(content, bytes):
        raise ImageError(f"{label}: gives text, not bytes; open the file with mode 'rb'")
    return _decode(io.BytesIO(content), name, label, max_pixels)


def _decode(file: IO[bytes], name: str | None, label: str, max_pixels: int) -> LoadedImage:
    head = file.read(64)
    file.seek(0)
    if not head:
        raise ImageError(f"{label}: is empty (0 bytes); copy or download it again")
    Image.init()
    if head[4:8] == b"ftyp":
        _enable_heif(head[8:12], head[16:], label)
    image = open_checked(file, label, max_pixels)
    with image:
        is_cut = is_cut_to_upper_bytes(image)
        loaded = _from_pil(image, name, label)
        # Nearly black by its upper bytes alone: read all 16 bits.
        values = read_sixteen_bits(file) if is_cut and uses_low_range(loaded.rgb) else None
        return (
            loaded if values is None else replace(loaded, rgb=_upright(_rgb_from_array(values, label), image))
        )


def _enable_heif(brand: bytes, others: bytes, label: str) -> None:
    """Make Pillow able to open a photo of phones: HEIC needs pillow-heif, AVIF a Pillow from 11.3 on."""
    is_avif = brand in _AVIF_BRANDS or any(known in others for known in _AVIF_BRANDS)
    if (is_avif and "AVIF" in Image.OPEN) or not (is_avif or brand in _HEIF_BRANDS):
        return
    kind = "AVIF" if is_avif else "HEIC"
    try:
        import pillow_heif  # type: ignore[import-not-found,unused-ignore]
    except ImportError as error:
        how = install_command("heif")
        raise ImageError(f"{label}: is {kind}; install pillow-heif ({how}) or convert it to JPEG") from error
    pillow_heif.register_heif_opener()


# ---- PIL images


def _from_pil(image: Image.Image, name: str | None, label: str) -> LoadedImage:
    try:
        image.load()
        rgb = _upright(_rgb_from_pil(image, label), image)
    except ImageError:
        raise
    except MemoryError as error:
        raise ImageError(f"{label}: not enough memory to decode {image.size}; shrink it first") from error
    except Exception as error:  # a damaged file can make a decoder raise anything at all
        reason = " ".join(str(error).split()) or type(error).__name__
        raise ImageError(f"{label}: is damaged ({reason}); copy or download it again") from error
    parts = [_exif_value(image, tag) for tag in (_MAKE, _MODEL)]
    words = [part.replace("\0", " ").strip() for part in parts if isinstance(part, str)]
    camera = " ".join(word for word in words if word) or None
    return LoadedImage(rgb, name, _focal35(image), camera, _gps(image))


def _upright(rgb: RGB, tagged: Image.Image) -> RGB:
    """`rgb` (H, W, 3) turned and mirrored as the EXIF orientation (1 to 8) of `tagged` asks."""
    orientation = _exif_value(tagged, _ORIENTATION)
    if orientation in (5, 6, 7, 8):
        rgb = rgb.transpose(1, 0, 2)
    if orientation in (2, 3, 6, 7):
        rgb = rgb[:, ::-1]
    if orientation in (3, 4, 7, 8):
        rgb = rgb[::-1]
    return np.ascontiguousarray(rgb)


def _rgb_from_pil(image: Image.Image, label: str) -> RGB:
    if image.mode in _SIXTEEN_BIT_MODES:
        values = np.asarray(image)
        # Pillow's mode "I" is 32-bit, though the files that give it nearly always hold 16-bit values.
        if values.min() < 0 or values.max() > 65535:
            raise ImageError(f"{label}: holds 32-bit integers; save it with 8 or 16 bits per channel")
        return _rgb_from_array(values.astype(np.uint16), label)
    if image.mode == "F":
        return _rgb_from_array(np.asarray(image), label)
    if image.has_transparency_data:
        return _over_white(np.asarray(image.convert("RGBA")))
    return np.array(image if image.mode == "RGB" else image.convert("RGB"))


def _exif_value(image: Image.Image, tag: int, ifd: int | None = None) -> Any:
    """One EXIF value, or None: damaged EXIF is no reason to refuse a picture."""
    try:
        exif = image.getexif()
        return (exif if ifd is None else exif.get_ifd(ifd)).get(tag)
    except Exception:  # Pillow's EXIF parser raises many kinds of errors on damaged data
        return None


def _focal35(image: Image.Image) -> float | None:
    value = _exif_value(image, _FOCAL_35MM, _EXIF_IFD)
    try:
        focal = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return focal if 0 < focal < 10_000 else None  # 0 means unknown


def _gps(image: Image.Image) -> tuple[float, float, float] | None:
    """Latitude, longitude and altitude; None where the first two are missing or impossible."""
    try:
        sides = {}
        for tag, negative in ((2, "S"), (4, "W")):
            degrees, minutes, seconds = (float(part) for part in _exif_value(image, tag, _GPS_IFD))
            sign = (
                -1.0 if str(_exif_value(image, tag - 1, _GPS_IFD)).strip("\0 ").upper() == negative else 1.0
            )
            sides[tag] = sign * (degrees + minutes / 60 + seconds / 3600)
        latitude, longitude = sides[2], sides[4]
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    possible = abs(latitude) <= 90 and abs(longitude) <= 180 and (latitude, longitude) != (0.0, 0.0)
    try:
        below = _exif_value(image, 5, _GPS_IFD) in (1, b"\x01", "\x01")
        altitude = float(_exif_value(image, 6, _GPS_IFD)) * (-1.0 if below else 1.0)
    except (TypeError, ValueError, ZeroDivisionError):
        altitude = 0.0
    return (latitude, longitude, altitude if abs(altitude) < 1e5 else 0.0) if possible else None


# ---- arrays


def _channels_last(tensor: Tensor) -> npt.NDArray[Any]:
    import torch

    tensor = tensor.detach().cpu()
    if tensor.dtype in (torch.bfloat16, torch.float16):
        tensor = tensor.float()  # numpy has no bfloat16
    if tensor.ndim == 4 and tensor.shape[0] == 1:  # a batch of one
        tensor = tensor[0]
    if tensor.ndim == 3 and tensor.shape[0] in (1, 3, 4):
        tensor = tensor.permute(1, 2, 0)
    return tensor.numpy()


def _rgb_from_array(array: npt.NDArray[Any], label: str, max_pixels: int = MAX_PIXELS) -> RGB:
    """(H, W) or (H, W, 1|3|4) of any accepted type to a new array (H, W, 3)."""
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)):
        shape = tuple(array.shape)
        raise ImageError(
            f"{label}: has shape {shape}; give one image: (H, W), (H, W, 3) or a tensor (3, H, W)"
        )
    check_size((array.shape[1], array.shape[0]), label, max_pixels)
    deep = stretch_low_range(array) if array.dtype == np.uint16 else array
    values = np.ascontiguousarray(_to_uint8(deep, label))
    if values.ndim == 2 or values.shape[2] == 1:
        return np.repeat(values.reshape(*values.shape[:2], 1), 3, axis=2)
    return _over_white(values) if values.shape[2] == 4 else values


def _to_uint8(array: npt.NDArray[Any], label: str) -> npt.NDArray[np.uint8]:
    """A copy, so that what was matched does not change when the caller's array does."""
    if array.dtype == np.uint8:
        return array.copy()
    if array.dtype == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if array.dtype == np.uint16:
        return ((array.astype(np.uint32) + 128) // 257).astype(np.uint8)
    if not np.issubdtype(array.dtype, np.floating):
        raise ImageError(f"{label}: has values of type {array.dtype}; give uint8, uint16 or floats in [0, 1]")
    if not np.isfinite(array).all():
        raise ImageError(f"{label}: contains NaN or infinite values; replace them first (numpy.nan_to_num)")
    low, high = float(array.min()), float(array.max())
    if low < -1e-4 or high > 1 + 1e-4:  # a rounding error is no mistake, another range is
        raise ImageError(f"{label}: has float values from {low:g} to {high:g}; scale them to [0, 1]")
    scaled: npt.NDArray[np.uint8] = np.rint(array.clip(0, 1) * 255).astype(np.uint8)
    return scaled


def _over_white(rgba: npt.NDArray[np.uint8]) -> RGB:
    """Composite (H, W, 4) over white, as most viewers show it."""
    alpha = rgba[..., 3:].astype(np.uint16)
    mixed = rgba[..., :3] * alpha + 255 * (255 - alpha) + 127
    return (mixed // 255).astype(np.uint8)

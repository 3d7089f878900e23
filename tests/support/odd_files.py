"""Broken, tiny, huge and odd files, the same ones every time."""

from __future__ import annotations

import io
import os
import pickle
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, features

KINDS = ("JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP", "PPM", "TGA", "ICO", "JPEG2000", "AVIF")
ENDING = {"JPEG": "jpg", "TIFF": "tif", "JPEG2000": "jp2"}


@dataclass(frozen=True)
class OddFile:
    """A path, and whether it must be readable; None where damage may or may not hit what matters."""

    path: Path
    readable: bool | None


def make_odd_files(folder: Path) -> list[OddFile]:
    """Write all of them into `folder`."""
    made = []
    for name, content, readable in [
        *_cut(),
        *_flipped(),
        *_modes(),
        *_sizes(),
        *_headers(),
        *_not_pictures(),
    ]:
        path = folder / name
        path.write_bytes(content)
        made.append(OddFile(path, readable))
    return made + _odd_places(folder)


Case = tuple[str, bytes, bool | None]


def photo(width: int = 40, height: int = 32) -> Image.Image:
    rng = np.random.default_rng(7)
    coarse = Image.fromarray(rng.integers(0, 256, (8, 10, 3), dtype=np.uint8))
    return coarse.resize((width, height), Image.Resampling.BICUBIC)


def encode(image: Image.Image, kind: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def _whole() -> dict[str, bytes]:
    kinds = [
        k
        for k in KINDS
        if k not in ("AVIF", "JPEG2000") or features.check({"AVIF": "avif"}.get(k, "jpg_2000"))
    ]
    return {kind: encode(photo(), kind) for kind in kinds}


def _cut() -> Iterator[Case]:
    """Every format, cut off at eight places."""
    for kind, data in _whole().items():
        yield f"whole.{ENDING.get(kind, kind.lower())}", data, True
        for eighth in range(8):
            length = max(1, len(data) * eighth // 8)
            yield f"cut-{kind}-{length}.{ENDING.get(kind, kind.lower())}", data[:length], None


def _flipped() -> Iterator[Case]:
    """Every format with damaged bytes: in the header, and all over."""
    for kind, data in _whole().items():
        for seed in range(8):
            rng = np.random.default_rng(seed)
            damaged = bytearray(data)
            span = min(len(data), 64) if seed % 2 else len(data)
            for position in rng.integers(0, span, 1 + seed):
                damaged[position] ^= int(rng.integers(1, 256))
            yield f"flipped-{kind}-{seed}.{ENDING.get(kind, kind.lower())}", bytes(damaged), None


def _modes() -> Iterator[Case]:
    """Pictures that are sound but not plain 8-bit RGB, or carry the wrong ending."""
    base = photo()
    grey16 = Image.fromarray(np.linspace(0, 65535, 40 * 32).astype(np.uint16).reshape(32, 40))
    rgba = base.convert("RGBA")
    rgba.putalpha(base.convert("L"))
    exif = Image.Exif()
    for orientation in (3, 6, 7, 0, 99):
        exif[0x0112] = orientation
        yield f"orientation-{orientation}.jpg", encode(base, "JPEG", exif=exif), True
    frames = [base.rotate(angle) for angle in (10, 20)]
    yield "mode-1.png", encode(base.convert("1"), "PNG"), True
    yield "mode-L.jpg", encode(base.convert("L"), "JPEG"), True
    yield "mode-LA.png", encode(base.convert("LA"), "PNG"), True
    yield "mode-P.png", encode(base.quantize(7), "PNG"), True
    yield "mode-P-clear.png", encode(base.quantize(7), "PNG", transparency=0), True
    yield "mode-RGBA.png", encode(rgba, "PNG"), True
    yield "mode-RGBA.webp", encode(rgba, "WEBP"), True
    yield "mode-RGBA.tif", encode(rgba, "TIFF"), True
    yield "mode-CMYK.jpg", encode(base.convert("CMYK"), "JPEG"), True
    yield "mode-CMYK.tif", encode(base.convert("CMYK"), "TIFF"), True
    # Some versions of Pillow cannot read back what they wrote here.
    yield "mode-YCbCr.tif", encode(base.convert("YCbCr"), "TIFF"), None
    yield "mode-LAB.tif", encode(base.convert("LAB"), "TIFF"), True
    yield "mode-16.png", encode(grey16, "PNG"), True
    yield "mode-16.tif", encode(grey16, "TIFF"), True
    yield "mode-32.tif", encode(Image.fromarray(np.full((9, 9), 2**30, np.int32)), "TIFF"), False
    yield "mode-F.tif", encode(Image.fromarray(np.full((32, 40), 0.5, np.float32)), "TIFF"), True
    yield "mode-F-range.tif", encode(Image.fromarray(np.full((32, 40), 900.0, np.float32)), "TIFF"), False
    yield "mode-F-nan.tif", encode(Image.fromarray(np.full((32, 40), np.nan, np.float32)), "TIFF"), False
    yield "progressive.jpg", encode(base, "JPEG", progressive=True), True
    yield "lzw.tif", encode(base, "TIFF", compression="tiff_lzw"), True
    yield "animated.gif", encode(base, "GIF", save_all=True, append_images=frames), True
    yield "animated.webp", encode(base, "WEBP", save_all=True, append_images=frames), True
    yield "pages.tif", encode(base, "TIFF", save_all=True, append_images=frames), True
    yield "bad-exif.jpg", encode(base, "JPEG", exif=b"Exif\0\0II*\0" + b"\xff" * 60), True
    yield "bad-icc.png", encode(base, "PNG", icc_profile=b"\xff" * 60), True
    yield "png-as.jpg", encode(base, "PNG"), True
    yield "jpg-as.png", encode(base, "JPEG"), True
    yield "gif-as.tiff", encode(base, "GIF"), True
    yield "no-ending", encode(base, "PNG"), True
    yield "png-and-rubbish.png", encode(base, "PNG") + b"rubbish" * 99, True
    yield "one-colour.png", encode(Image.new("RGB", (40, 32), (0, 0, 0)), "PNG"), True


def _sizes() -> Iterator[Case]:
    for width, height in ((1, 1), (1, 2), (2, 1), (3, 3), (1, 3000), (3000, 1), (7, 900), (31, 33), (33, 31)):
        yield f"size-{width}x{height}.png", encode(photo(width, height), "PNG"), True
    yield "size-1x1.jpg", encode(photo(1, 1), "JPEG"), True


def png(width: int, height: int, depth: int = 8, colour: int = 2, raw: bytes = b"\0" * 64) -> bytes:
    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    parts = chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(raw)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + parts


def _headers() -> Iterator[Case]:
    """Small files whose headers promise absurd pictures."""
    for width, height in ((60_000, 60_000), (2**31 - 1, 1), (2**31 - 1, 2**31 - 1), (0, 0), (0, 9), (9, 0)):
        yield f"header-{width}x{height}.png", png(width, height), False
    yield "header-short.png", png(100, 100), False
    yield "header-depth.png", png(8, 8, depth=3), False
    jpeg = encode(photo(), "JPEG")
    start = jpeg.index(b"\xff\xc0") + 5
    for height, width in ((65_500, 65_500), (0, 40), (32, 0)):
        content = jpeg[:start] + struct.pack(">HH", height, width) + jpeg[start + 4 :]
        yield f"header-{width}x{height}.jpg", content, False
    gif = encode(photo(), "GIF")
    yield "header-65535.gif", gif[:6] + struct.pack("<HH", 65535, 65535) + gif[10:], False
    bmp = encode(photo(), "BMP")
    for width, height in ((10**6, 10**6), (-40, 32), (40, -(2**31)), (0, 0)):
        yield f"header-{width}x{height}.bmp", bmp[:18] + struct.pack("<ii", width, height) + bmp[26:], False
    for text in (
        "P6 99999 99999 255\n",
        "P6 0 0 255\n",
        "P6 -4 4 255\n",
        "P6 4 4 0\n",
        "P6 4",
        "P3 2 2 255\n1 2 3",
    ):
        yield f"header-{text.strip().replace(' ', '-')[:16]!a}.ppm".replace("\\", ""), text.encode(), False


def _not_pictures() -> Iterator[Case]:
    random = np.random.default_rng(3).bytes(2000)
    for name, content in {
        "empty.jpg": b"", "zeros.png": b"\0" * 2000, "random.jpg": random, "ones.tif": b"\xff" * 2000,
        "text.jpg": b"not a picture", "newline.png": b"\n", "page.jpg": b"<!doctype html><html></html>",
        "drawing.svg": b"<svg xmlns='http://www.w3.org/2000/svg' width='9' height='9'/>",
        "print.eps": b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n",
        "book.pdf": b"%PDF-1.7\n%%EOF\n", "script.png": b"#!/bin/sh\n", "archive.png": b"PK\x03\x04" + random,
        "phone.heic": b"\0\0\0\x18ftypheic\0\0\0\0mif1" + random, "pickle.png": pickle.dumps({"a": [1]}),
        "signature.png": b"\x89PNG\r\n\x1a\n", "signature.jpg": b"\xff\xd8\xff", "signature.gif": b"GIF89a",
        "signature.tif": b"II*\0", "signature.webp": b"RIFF\x04\0\0\0WEBP", "signature.bmp": b"BM",
        "loop.tif": b"II*\0\x08\0\0\0\0\0\x08\0\0\0", "utf16.jpg": "picture".encode("utf-16"),
    }.items():  # fmt: skip
        yield name, content, False


def _odd_places(folder: Path) -> list[OddFile]:
    """Paths that are no regular files, or have awkward names."""
    (folder / "folder.png").mkdir()
    (folder / "loop.png").symlink_to(folder / "loop.png")
    (folder / "dangling.png").symlink_to(folder / "nowhere.png")
    (folder / "link.png").symlink_to(folder / "whole.png")
    os.mkfifo(folder / "pipe.png")
    content = encode(photo(), "PNG")
    awkward = [
        "with space.png",
        "ümläut ☃.png",
        "new\nline.png",
        "[red]markup.png",
        "%s{}.png",
        os.fsdecode(b"\xff\xfe.png"),
    ]
    for name in awkward:
        (folder / name).write_bytes(content)
    bad_text = folder / "new\nline.txt"
    bad_text.write_text("text")
    unreadable = [
        "folder.png",
        "loop.png",
        "dangling.png",
        "pipe.png",
        "missing.png",
        "x" * 300,
        "whole.png/inside.png",
    ]
    places = [OddFile(folder / name, False) for name in unreadable]
    places += [OddFile(folder / name, True) for name in (*awkward, "link.png")]
    return [*places, OddFile(bad_text, False), OddFile(Path(os.devnull), False)]

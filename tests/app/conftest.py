from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image


@pytest.fixture
def huge_png(tmp_path) -> Path:
    """A valid one-bit PNG of 20,000 x 20,000 pixels: a few kilobytes that would fill gigabytes as RGB."""
    side, path = 20_000, tmp_path / "huge.png"

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    rows = zlib.compress((b"\0" + bytes(side // 8)) * side, 9)
    header = struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0)
    signature = b"\x89PNG\r\n\x1a\n"
    path.write_bytes(signature + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b""))
    return path


@pytest.fixture(scope="session")
def photos(tmp_path_factory) -> tuple[Path, Path]:
    """Two views of one textured plane, moved by (24, 10) pixels."""
    rng = np.random.default_rng(3)
    small = Image.fromarray(rng.integers(0, 255, (60, 80, 3)).astype(np.uint8))
    world = np.asarray(small.resize((480, 360), Image.Resampling.BICUBIC))
    folder = tmp_path_factory.mktemp("photos")
    paths = folder / "first.jpg", folder / "second.jpg"
    Image.fromarray(world[10:310, 24:424]).save(paths[0], quality=95)
    Image.fromarray(world[:300, :400]).save(paths[1], quality=95)
    return paths

"""Pictures that claim to be huge are refused by every reader, by their header alone."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coam.data.pack_rgbd import _read_depth
from coam.data.packed import _decode_span, read_photo_as_jpeg, read_stored_rgb
from coam.data.photo_bank import read_square
from coam.errors import ImageError
from coam.images import load_image
from coam.images.limits import MAX_ASPECT, MAX_PIXELS, MAX_SIDE, check_size
from support.odd_files import encode, photo, png


def from_bytes(path: Path) -> Any:
    content = np.frombuffer(path.read_bytes(), np.uint8)
    return _decode_span(content, np.array([0, len(content)]))


READERS: dict[str, Callable[[Path], Any]] = {
    "load_image": load_image,
    "bytes": lambda path: load_image(path.read_bytes()),
    "photo bank": lambda path: read_square(path, 64),
    "depth": lambda path: _read_depth(path, 1.0),
    "stored": read_stored_rgb,
    "packed": lambda path: read_photo_as_jpeg(path, 64),
    "decoded": from_bytes,
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    ("size", "words"),
    [
        ((1, 199_000_000), "no side may be longer than 65535"),
        ((199_000_000, 1), "no side may be longer than 65535"),
        ((65_536, 100), "no side may be longer than 65535"),
        ((20_000, 20_000), "limit of 200 million"),
        ((10, 50_001), "5000 times the other"),
        ((2**31 - 1, 2**31 - 1), "limit of 200 million"),
    ],
)
def test_a_small_file_that_claims_to_be_huge_is_refused_at_once(tmp_path, reader, size, words):
    path = tmp_path / "a.png"
    path.write_bytes(png(*size, depth=1, colour=0, raw=b"\0\0"))
    assert path.stat().st_size < 100
    began = time.monotonic()
    tracemalloc.start()
    try:
        with pytest.raises(ImageError, match=words):
            READERS[reader](path)
        assert tracemalloc.get_traced_memory()[1] < 20e6
    finally:
        tracemalloc.stop()
    assert time.monotonic() - began < 5


@pytest.mark.parametrize("reader", [name for name in READERS if name != "depth"])
def test_every_reader_reads_a_photo_and_names_what_is_none(tmp_path, reader):
    path = tmp_path / "a.png"
    path.write_bytes(encode(photo(), "PNG"))
    READERS[reader](path)
    path.write_bytes(b"no picture")
    with pytest.raises(ImageError):
        READERS[reader](path)


def test_the_limits_themselves_are_allowed():
    check_size((MAX_SIDE, MAX_PIXELS // MAX_SIDE), "a")
    check_size((1, MAX_ASPECT), "a")
    check_size((MAX_ASPECT, 1), "a")
    with pytest.raises(ImageError, match="times the other"):
        check_size((1, MAX_ASPECT + 1), "a")
    with pytest.raises(ImageError, match="limit of 200 million"):
        check_size((MAX_SIDE, MAX_PIXELS // MAX_SIDE + 1), "a")
    with pytest.raises(ImageError, match="no pixels"):
        check_size((0, 5), "a")

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.types import Matches
from coam.warp import Warp, WarpField
from coam.warp.files import flo_bytes


def random_warp() -> Warp:
    rng = np.random.default_rng(0)

    def field(height: int, width: int, size: tuple[int, int], other: tuple[int, int]) -> WarpField:
        points = rng.uniform(0, 50, (height, width, 2)).astype(np.float32)
        return WarpField(points, rng.random((height, width), dtype=np.float32), size, other)

    return Warp(
        field(6, 9, (90, 60), (70, 71)),
        field(8, 7, (70, 71), (90, 60)),
        overlap=0.25,
        meta={"model": "m", "image0": None},
    )


def test_npz_there_and_back(tmp_path: Path) -> None:
    warp = random_warp()
    path = warp.save(tmp_path / "ab.warp.npz")
    back = Warp.load(path)
    for name in ("forward", "backward"):
        wrote, read = getattr(warp, name), getattr(back, name)
        np.testing.assert_array_equal(wrote.points, read.points)
        np.testing.assert_array_equal(wrote.certainty, read.certainty)
        assert (wrote.size, wrote.other_size) == (read.size, read.other_size)
    assert back.overlap == 0.25
    assert back.meta == warp.meta
    unknown = Warp(warp.forward, warp.backward)
    assert np.isnan(Warp.load(unknown.save(tmp_path / "nan.npz")).overlap)


def test_flo_byte_by_byte() -> None:
    displacement = np.array([[[1.5, -2.0], [0.0, np.nan]]], dtype=np.float32)  # one row of two pixels
    wanted = b"PIEH" + struct.pack("<ii", 2, 1) + struct.pack("<ffff", 1.5, -2.0, 0.0, 1e10)
    assert flo_bytes(displacement) == wanted
    assert struct.unpack("<f", wanted[:4])[0] == 202021.25  # the check of Middlebury's readers


def test_flo_of_a_warp_holds_displacements_in_original_pixels(tmp_path: Path) -> None:
    warp = random_warp()
    content = warp.save(tmp_path / "ab.flo").read_bytes()
    assert struct.unpack("<ii", content[4:12]) == (9, 6)
    values = np.frombuffer(content[12:], "<f4").reshape(6, 9, 2)
    np.testing.assert_array_equal(values, warp.forward.points - warp.forward.positions)
    assert warp.forward.positions[0, 0].tolist() == [4.5, 4.5]  # blocks of 10 x 10 pixels


def test_files_that_are_no_warp(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="unknown ending"):
        random_warp().save(tmp_path / "ab.txt")
    with pytest.raises(DataError, match="no such file"):
        Warp.load(tmp_path / "nothing.npz")
    (tmp_path / "torn.npz").write_bytes(b"PK\x03\x04 torn")
    with pytest.raises(DataError, match="damaged or not a warp"):
        Warp.load(tmp_path / "torn.npz")
    none, no_ids = np.zeros((0, 2), np.float32), np.zeros(0, np.int64)
    matches = Matches(none, none, np.zeros(0, np.float32), no_ids, no_ids, (4, 4), (4, 4))
    with pytest.raises(DataError, match="holds no warp but coam-matches"):
        Warp.load(matches.save(tmp_path / "matches.npz"))
    with pytest.raises(DataError):
        Matches.load(random_warp().save(tmp_path / "warp.npz"))
    odd = Warp(random_warp().forward, random_warp().backward, meta={"path": Path("x")})
    with pytest.raises(ConfigError, match="JSON"):
        odd.save(tmp_path / "odd.npz")

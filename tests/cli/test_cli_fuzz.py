"""Several hundred broken, tiny, huge and odd files: no traceback, no hang, no partial output."""

from __future__ import annotations

import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from coam.errors import ImageError
from coam.images import load_image
from coam.types import Matches
from support.odd_files import OddFile, encode, make_odd_files, photo

Run = Any
SECONDS = 60  # for one file; a hang, on any machine
TINY = ("--resolution", "64", "--device", "cpu")


@contextmanager
def no_longer_than(seconds: int, what: str) -> Iterator[None]:
    def give_up(_: int, __: FrameType | None) -> None:
        raise AssertionError(f"{what} hangs")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def check(run: Run, odd: OddFile, pair: tuple[Path, Path], out: Path) -> bool:
    """Match it, and look at everything that is left behind; whether it was read."""
    name = repr(odd.path.name)
    with no_longer_than(SECONDS, name):
        result = run("match", *pair, *TINY, "-o", out / "o.npz", "-o", out / "o.jpg")
    assert result.exit_code in (0, 2), (name, result.output, result.exception)
    assert odd.readable in (None, result.exit_code == 0), (name, result.output)
    if result.exit_code == 2:
        lines = result.stderr.splitlines()
        assert len(lines) == 1, (name, result.stderr)
        assert lines[0].startswith("error: "), name
        assert ";" in lines[0], (name, "does not say what to do")
        assert list(out.iterdir()) == [], (name, "leaves a file behind")
        return False
    assert sorted(os.listdir(out)) == ["o.jpg", "o.npz"], name
    matches = Matches.load(out / "o.npz")
    for points, size in ((matches.points0, matches.size0), (matches.points1, matches.size1)):
        assert np.isfinite(points).all(), name
        assert (points >= 0).all(), name
        assert (points <= np.array(size) - 1).all(), name
    with Image.open(out / "o.jpg") as picture:
        picture.load()
    for path in out.iterdir():
        path.unlink()
    return True


@pytest.mark.parametrize(
    "part", [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]
)
def test_coam_match_survives_every_file(run: Run, tmp_path: Path, part: int) -> None:
    """A third of the files in every run, the others among the slow tests: two minutes for all."""
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    good = tmp_path / "good.png"
    photo().save(good)
    odd_files = make_odd_files(folder)
    assert len({odd.path for odd in odd_files}) == len(odd_files) >= 250
    read = 0
    odd_files = odd_files[part::3]
    for turn, odd in enumerate(odd_files):
        pair = (odd.path, good) if turn % 2 else (good, odd.path)
        read += check(run, odd, pair, out)
    assert 20 <= read <= len(odd_files) - 40, "most are refused, the sound ones are not"


def test_two_odd_photos_at_once(run: Run, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    sizes = ((1, 1), (1, 700), (700, 1), (5, 7))
    paths = []
    for width, height in sizes:
        paths.append(tmp_path / f"{width}x{height}.png")
        photo(width, height).save(paths[-1])
    for first in paths:
        for second in paths:
            assert check(run, OddFile(second, True), (first, second), out)


def test_the_real_program_survives_too(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    wanted = {"header-60000x60000.png", "pipe.png", "whole.jpg"}
    for odd in [odd for odd in make_odd_files(folder) if odd.path.name in wanted]:
        command = [sys.executable, "-m", "coam", "match", odd.path, odd.path, *TINY, "-o", out / "o.npz"]
        result = subprocess.run(command, capture_output=True, text=True, timeout=2 * SECONDS, check=False)
        assert result.returncode == (0 if odd.readable else 2), result.stderr
        assert "Traceback" not in result.stderr
        assert os.listdir(out) == (["o.npz"] if odd.readable else [])
        (out / "o.npz").unlink(missing_ok=True)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    kind=st.sampled_from(["JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP", "TGA", "JPEG2000"]),
    damage=st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=6),
    keep=st.floats(0.02, 1),
)
def test_damaged_bytes_give_a_picture_or_an_image_error(
    kind: str, damage: list[tuple[float, int]], keep: float
) -> None:
    data = bytearray(ENCODED[kind])
    for place, value in damage:
        data[int(place * len(data))] = value
    try:
        loaded = load_image(bytes(data[: max(1, int(keep * len(data)))]), max_pixels=10_000_000)
    except ImageError:
        return
    assert loaded.rgb.dtype == np.uint8
    assert loaded.rgb.shape[2] == 3


ENCODED = {
    kind: encode(photo(), kind) for kind in ("JPEG", "PNG", "TIFF", "WEBP", "GIF", "BMP", "TGA", "JPEG2000")
}


@pytest.mark.slow
def test_the_largest_picture_that_is_taken(run: Run, tmp_path: Path) -> None:
    large, larger = tmp_path / "large.png", tmp_path / "larger.png"
    Image.new("1", (14_142, 14_142), 1).save(large)  # 199.996 MP
    Image.new("1", (14_143, 14_143), 1).save(larger)  # 200.024 MP
    good = tmp_path / "good.png"
    photo().save(good)
    assert run("match", good, large, *TINY, "-o", tmp_path / "o.jpg").exit_code == 0
    result = run("match", good, larger, *TINY)
    assert result.exit_code == 2
    assert "200 million" in result.stderr


def test_arrays_through_the_api(run: Run) -> None:
    """What cannot come from a file; `run` only to share its loaded matcher."""
    import coam.matcher.matcher

    matcher = coam.matcher.matcher.load_matcher(device="cpu", resolution=64)
    sound = np.asarray(photo())
    for bad in (
        np.full((9, 9, 3), np.nan),
        np.zeros((0, 9, 3), np.uint8),
        np.zeros((9, 9, 5), np.uint8),
        b"",
        None,
    ):
        for pair in ((sound, bad), (bad, sound)):
            with pytest.raises(ImageError):
                matcher.match(*pair)  # type: ignore[arg-type]
    stream = io.BytesIO(encode(photo(), "PNG"))
    assert matcher.match(stream, sound).size0 == (40, 32)

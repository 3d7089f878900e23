"""Stacks: a folder onto one image or onto the middle, cut to the common part; a stopped run goes on."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coam.errors import ConfigError, DataError
from coam.matcher.tiles import Window
from coam.registration.rasters import Georeference
from coam.registration.stack import REPORT, SharedPart, StackOptions, _cut, middle_of, register_folder
from coam.registration.transforms import PlaneTransform
from support.known_registration import KnowingMatcher, as_matcher
from support.simple_matchers import textured

SIZE = (200, 150)


def shift(x: float, y: float) -> PlaneTransform:
    return PlaneTransform("translation", np.array([[1, 0, x], [0, 1, y], [0, 0, 1.0]]))


class Frames(KnowingMatcher):
    """Knows how far every frame is from where it should be: its mean red is its number."""

    blind: tuple[tuple[int, int], ...] = ()

    def match(self, image0, image1, mask0=None, mask1=None):
        first, second = (int(image[0, 0, 0]) for image in (image0, image1))
        self.matrix = np.eye(3)
        self.matrix[:2, 2] = (second - first) * 4, (second - first) * -2
        self.overlap = 0.01 if (first, second) in self.blind else 0.99
        self.count = 10 if (first, second) in self.blind else 1200
        self.noise = 30.0 if (first, second) in self.blind else 0.05
        return super().match(image0, image1)


def write_frames(folder: Path, count: int = 3) -> Path:
    """Frame n sees the scene 4 n px further left and 2 n px further down; its corner pixel says n."""
    folder.mkdir(parents=True, exist_ok=True)
    scene = textured(3, (300, 250))
    for number in range(count):
        left, top = 40 - 4 * number, 40 + 2 * number
        frame = scene[top : top + 150, left : left + 200].copy()
        frame[0, 0] = number
        Image.fromarray(frame).save(folder / f"f{number}.png")
    return folder


def test_frames_lie_on_the_first_and_are_cut_to_the_common_part(tmp_path: Path) -> None:
    folder, out = write_frames(tmp_path / "in"), tmp_path / "out"
    report = register_folder(folder, out, as_matcher(Frames(resolution=800)))
    assert [line.kept for line in report] == [True, True, True]
    frames = [np.asarray(Image.open(out / f"f{n}.png")).astype(int) for n in range(3)]
    assert frames[0].shape == frames[1].shape == frames[2].shape
    assert abs(frames[0].shape[1] - 192) <= 2
    assert abs(frames[0].shape[0] - 146) <= 2
    assert np.abs(frames[0] - frames[2])[3:-3, 3:-3].mean() < 1.0


def test_a_stopped_run_goes_on(tmp_path: Path) -> None:
    folder, out = write_frames(tmp_path / "in"), tmp_path / "out"
    first = register_folder(folder, out, as_matcher(Frames()))
    matcher = Frames()
    assert register_folder(folder, out, as_matcher(matcher)) == first
    assert matcher.calls == 0
    next((out / "registrations").glob("f1-*")).write_text("[{")
    register_folder(folder, out, as_matcher(matcher))
    assert matcher.calls == 1


def test_what_the_reference_refuses_goes_through_a_neighbour(tmp_path: Path) -> None:
    folder = write_frames(tmp_path / "in")
    matcher = Frames()
    matcher.blind = ((2, 0),)
    report = register_folder(folder, tmp_path / "out", as_matcher(matcher))
    assert [(line.through, line.kept) for line in report[1:]] == [("f0.png", True), ("f1.png", True)]
    frames = [np.asarray(Image.open(tmp_path / "out" / f"f{n}.png")).astype(int) for n in (0, 2)]
    assert np.abs(frames[0] - frames[1])[3:-3, 3:-3].mean() < 1.5


def test_what_nothing_shows_is_left_out_by_name(tmp_path: Path) -> None:
    folder = write_frames(tmp_path / "in")
    matcher = Frames()
    matcher.blind = ((2, 0), (2, 1))
    report = register_folder(folder, tmp_path / "out", as_matcher(matcher))
    assert [line.kept for line in report] == [True, True, False]
    assert "probability" in report[2].reason or "no transform" in report[2].reason
    assert not (tmp_path / "out" / "f2.png").exists()
    assert (tmp_path / "out" / REPORT).is_file()


def test_the_middle_is_between(tmp_path: Path) -> None:
    matrix = middle_of(SIZE, [shift(0, 0), shift(-6, 3), shift(-12, 6)])
    assert matrix == pytest.approx(np.array([[1, 0, 6], [0, 1, -3], [0, 0, 1.0]]), abs=1e-9)
    folder = write_frames(tmp_path / "in")
    register_folder(folder, tmp_path / "out", as_matcher(Frames()), options=StackOptions(middle=True))
    middle = np.asarray(Image.open(tmp_path / "out" / "f1.png")).astype(int)
    raw = np.asarray(Image.open(folder / "f1.png")).astype(int)
    width, height = middle.shape[1], middle.shape[0]
    left, top = (200 - width) // 2, (150 - height) // 2
    cut = raw[top : top + height, left : left + width]
    assert np.abs(middle - cut)[3:-3, 3:-3].mean() < 6  # frame 1 hardly moves


def common(*images: tuple[PlaneTransform, tuple[int, int]]) -> Window | None:
    part = SharedPart.of(SIZE)
    for transform, size in images:
        part = part.narrowed(transform, size)
    return part.window


def test_the_common_part_by_hand() -> None:
    assert common((shift(0, 0), SIZE)) == Window(0, 0, 200, 150)
    assert common((shift(10, -5), SIZE), (shift(-20, 0), SIZE)) == Window(10, 0, 170, 145)
    assert common((shift(500, 0), SIZE)) is None
    assert common((shift(30, 30), (50, 40))) == Window(30, 30, 50, 40)


def test_a_cut_geotiff_starts_where_it_is_cut() -> None:
    place = Georeference("x", (2.0, 0.0, 100.0, 0.0, -2.0, 900.0))
    cut = _cut(place, Window(10, 5, 4, 4))
    assert cut is not None
    assert cut.transform == (2.0, 0.0, 120.0, 0.0, -2.0, 890.0)


def test_mistakes_are_named(tmp_path: Path) -> None:
    folder = write_frames(tmp_path / "in")
    matcher = as_matcher(Frames())
    with pytest.raises(DataError, match="neither inside"):
        register_folder(folder, folder / "out", matcher)
    with pytest.raises(DataError, match="too few images"):
        register_folder(write_frames(tmp_path / "one", 1), tmp_path / "out", matcher)
    Image.fromarray(textured(0, SIZE)).save(folder / "f1.jpg")
    with pytest.raises(DataError, match="ending only"):
        register_folder(folder, tmp_path / "out", matcher)
    (folder / "f1.jpg").unlink()
    small = textured(0, (90, 90))
    small[0, 0] = 1
    Image.fromarray(small).save(folder / "g.png")
    mixed = Frames()
    with pytest.raises((ConfigError, DataError)):
        register_folder(
            folder, tmp_path / "out2", as_matcher(mixed), options=StackOptions(middle=True, crop=False)
        )

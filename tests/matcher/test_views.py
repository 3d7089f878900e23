"""Views of photos, and what a pair gains from being looked at more than once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import coam.samples
from coam import load_matcher
from coam.geometry.coordinates import rotate_points
from coam.geometry.homography import apply_homography
from coam.matcher.views import Change, View, changed_view, render_view
from support.match_rules import check_rules, needs_weights


def gradient(width: int, height: int) -> np.ndarray:
    """Red is x, green is y."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)


# ---- views


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_turned_view_is_what_numpy_turns(turns: int) -> None:
    photo = np.random.default_rng(1).integers(0, 255, (96, 160, 3), dtype=np.uint8)
    view = changed_view((160, 96), 160, Change(turn=90.0 * turns))
    np.testing.assert_array_equal(render_view(photo, view), np.rot90(photo, turns))
    corner = np.array([[0.0, 0.0], [3.0, 7.0]])
    there = rotate_points(corner, turns, 160, 96)
    np.testing.assert_allclose(apply_homography(view.photo_from_view, there), corner, atol=1e-9)


@pytest.mark.parametrize("resolution", [64, 128, 224])
def test_a_view_shows_each_pixel_from_where_it_says(resolution: int) -> None:
    """The colours of a gradient are its positions: half as large, as large, and larger."""
    view = changed_view((224, 160), resolution)
    picture = render_view(gradient(224, 160), view).astype(float)
    width, height = view.size
    inner = np.array([[x, y] for x in range(4, width - 4, 7) for y in range(4, height - 4, 5)], dtype=float)
    expected = apply_homography(view.photo_from_view, inner)
    seen = np.array([picture[int(y), int(x), :2] for x, y in inner])
    assert np.abs(seen - expected).max() < 1.01  # rounded to whole colours twice; half a view pixel is 1.75


def test_beyond_the_photo_a_view_is_black() -> None:
    view = changed_view((64, 64), 64)
    shifted = View(np.array([[1.0, 0, 40], [0, 1, 0], [0, 0, 1]]), view.size)
    picture = render_view(np.full((64, 64, 3), 200, np.uint8), shifted)
    assert picture[:, :23].min() == 200
    assert picture[:, 25:].max() == 0


def test_a_tilted_view_is_narrow_along_its_direction() -> None:
    """As wide as a wall that is seen from the side: 640 pixels become 160, and 480 stay."""
    view = changed_view((640, 480), 640, Change(tilt=4.0))
    assert view.size == (160, 480)
    np.testing.assert_allclose(apply_homography(view.photo_from_view, [[79.5, 239.5]]), [[319.5, 239.5]])
    down = changed_view((640, 480), 640, Change(tilt=4.0, direction=90.0))
    assert down.size == (640, 128)  # 120, in steps of 32


def test_a_narrow_view_is_made_of_area_means() -> None:
    """Stripes one pixel wide are grey when eight of them fall on a pixel, and stripes across them stay."""
    stripes = np.zeros((128, 256, 3), np.uint8)
    stripes[:, ::2] = 254
    narrow = render_view(stripes, changed_view((256, 128), 256, Change(tilt=8.0)))
    assert np.abs(narrow[8:-8, 4:-4].astype(int) - 127).max() <= 4
    across = np.zeros((128, 256, 3), np.uint8)
    across[32:96] = 254
    narrow = render_view(across, changed_view((256, 128), 256, Change(tilt=8.0)))
    assert narrow[40:88, 4:-4].min() > 250
    assert narrow[:24, 4:-4].max() < 4


# ---- with the trained model


def picture(path: Path) -> np.ndarray:
    return np.asarray(Image.open(path).convert("RGB"))


@needs_weights
def test_one_look_is_one_look_and_two_are_two() -> None:
    photo = picture(coam.samples.courtyard().day[3])[:240, :320]
    for looks, taken in (("once", 1), ("align", 2)):
        matches = load_matcher(device="cpu", resolution=256, looks=looks).match(photo, photo)
        assert matches.meta["looks"] == taken
        assert np.median(np.linalg.norm(matches.points0 - matches.points1, axis=1)) < 0.5


@needs_weights
@pytest.mark.parametrize("turns", [1, 2, 3])
def test_a_turned_photo_is_found(turns: int) -> None:
    left = picture(coam.samples.motorcycle().left)
    matches = load_matcher(device="cpu", resolution=256).match(
        left, np.ascontiguousarray(np.rot90(left, turns))
    )
    check_rules(matches)
    height, width = left.shape[:2]
    error = np.linalg.norm(matches.points1 - rotate_points(matches.points0, turns, width, height), axis=1)
    assert (error < 3).mean() > 0.95
    assert len(matches) > 500


@needs_weights
def test_a_detail_is_found_in_the_whole_photo() -> None:
    """A fifth of the photo, shown five times as large: far beyond what one look finds."""
    left = picture(coam.samples.motorcycle().left)
    height, width = left.shape[:2]
    x, y, w, h = int(0.42 * width), int(0.4 * height), width // 5, height // 5
    detail = np.asarray(
        Image.fromarray(left[y : y + h, x : x + w]).resize((5 * w, 5 * h), Image.Resampling.BICUBIC)
    )
    matches = load_matcher(device="cpu", resolution=512).match(left, detail)
    assert matches.meta["looks"] > 1
    expected = (matches.points0 - [x, y] + 0.5) * 5 - 0.5
    error = np.linalg.norm(matches.points1 - expected, axis=1) / 5
    assert len(matches) > 100
    assert (error < 1).mean() > 0.9

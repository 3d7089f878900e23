"""How far a homography is off, over what both images show."""

from __future__ import annotations

import math

import numpy as np
import pytest

from coam.geometry.homography import apply_homography, visible_error

SIZE = (640, 480)
SHIFTED = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])


def test_a_shift_is_off_by_its_length() -> None:
    assert visible_error(SHIFTED, np.eye(3), SIZE, SIZE) == pytest.approx(5.0)
    assert visible_error(-2 * SHIFTED, np.eye(3), SIZE, SIZE) == pytest.approx(5.0)
    assert visible_error(np.eye(3), np.eye(3), SIZE, SIZE) == 0.0


def test_the_larger_image_counts() -> None:
    """Image 1 is five times as small: a pixel there is five here."""
    small = np.diag([0.2, 0.2, 1.0])
    wrong = small + np.array([[0, 0, 1.0], [0, 0, 0], [0, 0, 0]])
    assert visible_error(wrong, small, SIZE, (128, 96)) == pytest.approx(5.0)
    back = np.linalg.inv(small)
    assert visible_error(back @ SHIFTED, back, (128, 96), SIZE) == pytest.approx(25.0, rel=1e-6)


def test_only_what_is_seen_counts() -> None:
    """Right of column 320 image 1 ends; the horizon of the estimate is at column 600, beyond what is seen."""
    true = np.array([[1.0, 0, 320], [0, 1, 0], [0, 0, 1]])
    horizon = true.copy()
    horizon[2, 0] = -1 / 600
    assert 10 < visible_error(horizon, true, SIZE, SIZE) < 1000
    assert visible_error(true, true, SIZE, SIZE) < 1e-9


def test_nothing_found_and_nothing_in_common() -> None:
    assert visible_error(None, np.eye(3), SIZE, SIZE) == math.inf
    assert visible_error(np.zeros((3, 3)), np.eye(3), SIZE, SIZE) == math.inf
    away = np.array([[1.0, 0, 5000], [0, 1, 0], [0, 0, 1]])
    assert math.isnan(visible_error(np.eye(3), away, SIZE, SIZE))


def test_an_estimate_that_loses_a_seen_point_is_infinitely_wrong() -> None:
    """Of both photos all is seen; the estimate's horizon is the middle column, or, the other way, a row."""
    columns = np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 320, 0, 1]])
    assert visible_error(columns, np.eye(3), (641, 481), (641, 481), steps=41) == math.inf
    inverse = np.linalg.inv(columns)
    assert visible_error(inverse, np.eye(3), (641, 481), (641, 481), steps=41) == math.inf
    assert visible_error(SHIFTED, np.eye(3), SIZE, SIZE, steps=3) == pytest.approx(5.0)


def test_what_lies_behind_the_horizon_is_not_seen() -> None:
    """The map sends columns beyond 400 through infinity and back into photo 1; they are not what it shows."""
    true = np.array([[0.5, 0, 0], [0, 0.5, 0], [-1 / 400, 0, 1.0]])
    points = np.array([[630.0, 100.0]])
    assert (apply_homography(true, points) < 0).all()
    flipped = np.diag([-1.0, -1.0, 1.0]) @ true  # now exactly those behind it would fall inside
    assert (apply_homography(flipped, points) > 0).all()
    for sign in (1, -1):
        wrong = flipped.copy()
        wrong[0, 2] += 10
        found = visible_error(sign * wrong, flipped, SIZE, SIZE)
        assert 0 < found < math.inf


def test_image_1_ends_at_its_last_pixel() -> None:
    """Moved by one column, the last of image 0 is no longer seen; only there the estimate is wrong."""
    true = np.array([[1.0, 0, 1], [0, 1, 0], [0, 0, 1]])
    wider = np.array([[1.5, 0, 1], [0, 1, 0], [0, 0, 1]])
    assert visible_error(wider, true, SIZE, SIZE, steps=2) == pytest.approx(0.0, abs=1e-9)
    assert visible_error(wider, true, SIZE, (641, 480), steps=2) == pytest.approx(639 / 4)

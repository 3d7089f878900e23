"""One photo warped onto the other: homography, checkerboard, blend, flicker."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from coam.errors import ConfigError, DataError
from coam.viz import align, draw_aligned, flicker_animation, flicker_frames


def test_a_shift_is_found_and_undone(shifted_pair):
    pair = align(shifted_pair, longest=180)
    np.testing.assert_allclose(
        pair.homography / pair.homography[2, 2], [[1, 0, 12], [0, 1, 5], [0, 0, 1]], atol=0.02
    )
    assert pair.inliers[:400].all()
    assert pair.inliers[400:].sum() <= 5
    # Photo 1 ends 12 pixels before the right border of photo 0's frame and 5 before its lower one.
    assert pair.inside[:114, :167].all()
    assert not pair.inside[117:].any()
    assert not pair.inside[:, 170:].any()
    difference = np.abs(pair.warped1.astype(int) - pair.photo0)[2:112, 2:165]
    assert np.median(difference) <= 2
    assert (difference > 60).mean() < 0.02


def test_alignment_holds_at_another_scale(shifted_pair):
    pair = align(shifted_pair, longest=90)
    assert pair.photo0.shape == (60, 90, 3)
    difference = np.abs(pair.warped1.astype(int) - pair.photo0)[4:50, 4:76]
    assert difference.mean() < 25  # an error of one pixel would give about 40 on this pattern


def test_checkerboard_takes_squares_of_each_photo_in_turn(shifted_pair):
    pair = align(shifted_pair, longest=180)
    board = np.asarray(draw_aligned(pair, squares=6))  # squares of 30 pixels
    np.testing.assert_array_equal(board[:30, :30], pair.photo0[:30, :30])
    np.testing.assert_array_equal(board[:30, 30:60], pair.warped1[:30, 30:60])
    np.testing.assert_array_equal(board[30:60, :30], pair.warped1[30:60, :30])
    np.testing.assert_array_equal(board[100:, 170:], pair.photo0[100:, 170:])  # photo 1 has no pixels there
    blend = np.asarray(draw_aligned(pair, "blend"), int)
    expected = (pair.photo0.astype(int) + pair.warped1) / 2
    assert np.abs(blend - expected)[:100, :160].max() <= 1
    with pytest.raises(ConfigError, match="checkerboard"):
        draw_aligned(pair, "stripes")  # type: ignore[arg-type]


@pytest.mark.parametrize("file_format", ["GIF", "WEBP"])
def test_flicker_is_an_endless_animation_of_two_frames(shifted_pair, file_format):
    night = shifted_pair.image1 // 4  # equal frames would be merged into one
    pair = align(shifted_pair, (shifted_pair.image0, night), longest=180)
    animation = Image.open(io.BytesIO(flicker_animation(pair, file_format, milliseconds=500)))
    assert animation.n_frames == 2
    assert animation.size == (180, 120)
    assert animation.info["loop"] == 0
    first, second = (np.asarray(frame, int) for frame in flicker_frames(pair))
    assert (first[118, 100] == pair.photo0[118, 100] // 3).all()
    assert (second[118, 100] == first[118, 100]).all()


def test_random_matches_cannot_be_aligned(shifted_pair):
    with pytest.raises(DataError, match="cannot be aligned"):
        align(shifted_pair.select(np.arange(400, 412)))
    with pytest.raises(DataError, match="cannot be aligned"):
        align(shifted_pair.top(2))

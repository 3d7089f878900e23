"""Heat maps over photos: colours, alignment with the photo, one scale; the panels that explain one point."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from coam.errors import ConfigError
from coam.viz import draw_distinctiveness, draw_explanation
from coam.viz.canvas import CAPTION_HEIGHT, GAP
from coam.viz.colours import ACCENT, colour_table
from coam.viz.heatmaps import blend_heat, mark_point


def test_heat_is_the_mix_of_photo_and_map_colour():
    photo = np.full((8, 8, 3), 200, np.uint8)
    values = np.zeros((8, 8), np.float32)
    values[:, 4:] = 1.0
    heat = blend_heat(photo, values, 0.0, 1.0, strength=1.0)
    np.testing.assert_array_equal(heat[0, 7], colour_table("heat")[255])  # full cover at the top value
    low = 0.6 * 200 * 0.75 + 0.4 * colour_table("heat")[0].astype(float)
    np.testing.assert_allclose(heat[0, 0], low, atol=1)


def test_a_coarse_map_covers_the_whole_photo_without_shift():
    photo = np.full((64, 64, 3), 100, np.uint8)
    values = np.zeros((4, 4), np.float32)
    values[1, 2] = 1  # its cell is rows 16..31, columns 32..47
    heat = blend_heat(photo, values, 0, 1).astype(int).sum(axis=2)
    row, column = np.unravel_index(heat.argmax(), heat.shape)
    assert abs(row - 23.5) <= 1
    assert abs(column - 39.5) <= 1


def test_distinctiveness_maps_share_one_scale():
    photo = np.full((100, 100, 3), 100, np.uint8)
    low, high = np.zeros((10, 10), np.float32), np.ones((10, 10), np.float32)
    picture = np.asarray(draw_distinctiveness((photo, photo), (low, high), width=408))
    assert picture.shape == (200 + CAPTION_HEIGHT, 400 + GAP, 3)
    assert picture[100, 300].astype(int).sum() > picture[100, 100].astype(int).sum() + 200


def test_maps_without_values_are_drawn_and_bad_shapes_refused():
    photo = np.full((50, 100, 3), 100, np.uint8)
    for values in (np.full((5, 5), np.nan), np.ones((5, 5))):
        draw_distinctiveness((photo, photo), (values, values))
    with pytest.raises(ConfigError, match="shape"):
        draw_distinctiveness((photo, photo), (np.zeros((2, 2, 2)), np.zeros((2, 2))))


# ---- the panels that explain one point


def make_explanation(**changes):
    photo = np.full((100, 150, 3), 90, np.uint8)
    similarity = np.zeros((10, 15), np.float32)
    similarity[2, 3] = 0.9
    attention = np.zeros((5, 8), np.float32)
    attention[4, 7] = 1
    fields = {
        "image0": photo, "image1": photo, "point": (75.0, 50.0), "best": (35.0, 25.0),
        "similarity": similarity,
        "attention": {"1/32": attention, "1/16": attention}, "distinctiveness0": similarity,
        "distinctiveness1": similarity,
    }  # fmt: skip
    return SimpleNamespace(**(fields | changes))


def test_explanation_marks_the_point_and_its_best_match():
    picture = draw_explanation(make_explanation(), panel_height=200)
    panel_width, title = 300, 28
    assert picture.size == (2 * panel_width + GAP, 2 * (200 + title) + GAP)
    # (75 + .5) * 2 - .5 = 150.5, (50 + .5) * 2 - .5 = 100.5
    assert picture.getpixel((150, title + 100)) == ACCENT
    assert picture.getpixel((panel_width + GAP + 70, title + 50)) == ACCENT
    # Attention is hottest at the lower right cell of both lower panels.
    below = np.asarray(picture, int)[200 + 2 * title + GAP :].sum(axis=2)
    assert below[180, 280] > below[20, 20] + 300
    assert below[180, panel_width + GAP + 280] > below[20, panel_width + GAP + 20] + 300
    taller = draw_explanation(make_explanation(), panel_height=200, distinctiveness=True)
    assert taller.size[1] == 3 * (200 + title) + 2 * GAP


def test_mark_at_the_border_does_not_fail():
    shown = np.zeros((20, 20, 3), np.uint8)
    assert tuple(mark_point(shown, (0, 0), (20, 20))[0, 0]) == ACCENT
    assert not mark_point(shown, (-50, 90), (20, 20)).any()

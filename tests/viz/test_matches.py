"""Match pictures: dots, lines, colours, layout, captions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from coam.errors import ConfigError, ImageError
from coam.types import Matches
from coam.viz import draw_matches, spread_subset
from coam.viz.canvas import CAPTION_HEIGHT, GAP, disc_cover, draw_dots, faded, lay_out
from coam.viz.colours import CORRECT, DOUBTFUL, WRONG, colour_table, colourise, plane_colours, score_end
from coam.viz.matches import _summary, dot_radius

GREY = 120


def make_matches(points0, points1, scores, size0=(200, 100), size1=(200, 100), photos=True) -> Matches:
    count = len(scores)
    image0, image1 = (np.full((h, w, 3), GREY, np.uint8) if photos else None for w, h in (size0, size1))
    return Matches(
        np.float32(points0).reshape(-1, 2),
        np.float32(points1).reshape(-1, 2),
        np.float32(scores),
        np.arange(count),
        np.arange(count),
        size0,
        size1,
        image0=image0,
        image1=image1,
    )


def pixel(picture: Image.Image, x: float, y: float) -> tuple[int, int, int]:
    return picture.getpixel((round(x), round(y)))


def test_dots_lie_where_the_points_are_and_carry_the_end_colours_of_the_map():
    matches = make_matches([(20, 30), (150, 60)], [(40, 30), (100, 70)], [0.0, 0.9])
    picture = draw_matches(matches, layout="horizontal", width=408, max_lines=0)
    assert picture.size == (408, 100 + CAPTION_HEIGHT)
    table = colour_table("score")
    low, high = tuple(table[0].tolist()), tuple(table[255].tolist())
    assert pixel(picture, 20, 30) == low
    assert pixel(picture, 150, 60) == high
    assert pixel(picture, 200 + GAP + 40, 30) == low
    assert pixel(picture, 200 + GAP + 100, 70) == high
    assert pixel(picture, 204, 50) == (255, 255, 255)  # the gap is paper


def test_bad_scores_never_look_good():
    """The scale runs from 0 to at least 0.5: .004 has the colour of .004 whatever else is in the picture."""
    bad = draw_matches(make_matches([(20, 30)], [(40, 30)], [0.004]), layout="horizontal", width=408)
    table = colour_table("score").tolist()
    assert list(pixel(bad, 20, 30)) == table[2]  # .004 / .5 * 255 = 2.04
    middling = draw_matches(make_matches([(20, 30)], [(40, 30)], [0.4]), layout="horizontal", width=408)
    assert list(pixel(middling, 20, 30)) == table[204]
    assert score_end(np.float32([])) == score_end(np.float32([0.001, 0.5])) == 0.5
    assert score_end(np.float32([0.25, 0.75])) == 0.75


def test_matches_of_different_places_are_grey_and_the_caption_says_so():
    matches = make_matches([(20, 50)], [(180, 50)], [0.9])
    doubtful = replace(matches, overlap=0.02)
    picture = draw_matches(doubtful, layout="horizontal", width=408)
    assert pixel(picture, 20, 50) == DOUBTFUL
    red, green, blue = pixel(picture, 120, 50)
    assert max(red, green, blue) - min(red, green, blue) < 12, "the line is grey"
    yellow = tuple(colour_table("score")[255].tolist())
    assert (
        pixel(draw_matches(replace(matches, overlap=0.98), layout="horizontal", width=408), 20, 50) == yellow
    )
    assert pixel(draw_matches(doubtful, layout="horizontal", width=408, colour="score"), 20, 50) == yellow
    judged = draw_matches(doubtful, layout="horizontal", width=408, correct=np.array([True]))
    assert pixel(judged, 20, 50) == CORRECT
    assert _summary(doubtful, 1, "side") == "1 match  ·  probably not the same place (2 %)"
    assert _summary(replace(matches, overlap=0.98), 1, "side") == "1 match  ·  same place: 98 %"


def test_loaded_matches_open_the_photos_they_came_from(tmp_path):
    rng = np.random.default_rng(0)
    paths = [str(tmp_path / name) for name in ("a.png", "b.png")]
    for path in paths:
        Image.fromarray(rng.integers(0, 255, (100, 200, 3), dtype=np.uint8)).save(path)
    matches = make_matches([(5, 5)], [(5, 5)], [0.4], photos=False)
    matches.meta.update(image0=paths[0], image1=paths[1])
    loaded = Matches.load(matches.save(tmp_path / "m.npz"))
    want = draw_matches(matches, images=tuple(paths))
    np.testing.assert_array_equal(np.asarray(loaded.draw()), np.asarray(want))
    Image.new("RGB", (60, 60)).save(paths[1])
    with pytest.raises(ConfigError, match="not the photo that was matched, 200 x 100"):
        loaded.draw()
    (tmp_path / "a.png").unlink()
    with pytest.raises(ConfigError, match=r"a\.png: the matched photo is no longer there"):
        loaded.draw()


def test_points_follow_the_resize_convention_of_the_pixel_centre():
    # Photo 0 is shown at twice its size: pixel centre 0 becomes (0 + .5) * 2 - .5 = 0.5, 99 becomes 198.5.
    place = lay_out((100, 50), (100, 50), "horizontal", 408)
    assert place.shown0 == (200, 100)
    np.testing.assert_allclose(place.place(0, np.float32([[0, 0], [99, 49]])), [[0.5, 0.5], [198.5, 98.5]])
    np.testing.assert_allclose(place.place(1, np.float32([[0, 0]])), [[200 + GAP + 0.5, 0.5]])


def test_line_joins_the_two_points_and_nothing_else():
    matches = make_matches([(20, 50)], [(180, 50)], [0.7])
    with_line = np.asarray(draw_matches(matches, layout="horizontal", width=408, caption=False), int)
    no_line = np.asarray(
        draw_matches(matches, layout="horizontal", width=408, caption=False, max_lines=0), int
    )
    changed = np.abs(with_line - np.asarray(no_line, int)).max(axis=2) > 8
    rows, columns = np.nonzero(changed)
    assert rows.min() >= 49
    assert rows.max() <= 51
    radius = dot_radius(1, 408)
    assert columns.min() == pytest.approx(20 + radius, abs=2)
    assert columns.max() == pytest.approx(200 + GAP + 180 - radius, abs=2)
    assert changed[50, columns.min() : columns.max()].all()


def test_correct_and_wrong_get_their_colours():
    matches = make_matches([(20, 30), (150, 60)], [(40, 30), (100, 70)], [0.2, 0.9])
    picture = draw_matches(matches, correct=np.array([True, False]), layout="horizontal", width=408)
    assert pixel(picture, 20, 30) == CORRECT
    assert pixel(picture, 150, 60) == WRONG


def test_flow_gives_both_ends_the_same_colour_and_draws_no_lines():
    matches = make_matches([(10, 10), (190, 90)], [(100, 50), (30, 20)], [0.5, 0.6])
    picture = draw_matches(matches, style="flow", layout="horizontal", width=408)
    for (x0, y0), (x1, y1) in zip(matches.points0, matches.points1, strict=True):
        assert pixel(picture, x0, y0) == pixel(picture, 200 + GAP + x1, y1) != (72, 72, 72)
    assert pixel(picture, 55, 30) == (72, 72, 72)  # 0.6 * 120, untouched between the dots


def test_overlay_draws_in_the_frame_of_photo_0():
    matches = make_matches([(20, 50)], [(200, 50)], [0.7], size1=(400, 100))  # .7 is the end of its scale
    picture = draw_matches(matches, style="overlay", width=200)
    assert picture.size == (200, 100 + CAPTION_HEIGHT)
    # x = 200 of a 400 wide photo lands at (200 + .5) / 2 - .5 = 99.75
    assert pixel(picture, 100, 50) == tuple(colour_table("score")[255].tolist())
    assert pixel(picture, 60, 50) != pixel(picture, 60, 40)
    assert pixel(picture, 150, 50) == pixel(picture, 150, 40)


def test_layout_is_vertical_only_for_panoramas():
    assert lay_out((640, 480), (640, 480)).corner1[1] == 0
    assert lay_out((480, 640), (640, 480)).corner1[1] == 0
    tall = lay_out((3000, 500), (3000, 500))
    assert tall.corner1[0] == 0
    assert tall.canvas[0] == 1600
    with pytest.raises(ConfigError, match="horizontal"):
        lay_out((10, 10), (10, 10), "diagonal")  # type: ignore[arg-type]


def test_no_match_one_match_and_points_on_the_border_are_drawn():
    assert draw_matches(make_matches([], [], []), layout="horizontal").size[0] == 1600
    draw_matches(make_matches([(0, 0), (199, 99)], [(199, 99), (-3, 120)], [0.4, 0.4]), style="flow")
    draw_matches(make_matches([(5, 5)], [(5, 5)], [0.4]), style="overlay")


def test_clear_errors():
    bare = make_matches([(5, 5)], [(5, 5)], [0.4], photos=False)
    with pytest.raises(ConfigError, match="images="):
        draw_matches(bare)
    photos = (Image.new("RGB", (200, 100)), np.zeros((100, 200), np.float32))
    assert draw_matches(bare, images=photos, layout="horizontal").size[0] == 1600
    with pytest.raises(ConfigError, match="overlay"):
        draw_matches(bare, images=photos, style="lines")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="one value"):
        draw_matches(bare, images=photos, correct=np.array([True, False]))
    with pytest.raises(ConfigError, match="correct="):
        draw_matches(bare, images=photos, colour="correct")
    with pytest.raises(ImageError, match="shape"):
        draw_matches(bare, images=(np.zeros((4, 4, 2), np.uint8), photos[1]))


def test_spread_subset_covers_the_area_and_prefers_good_scores():
    rng = np.random.default_rng(0)
    dense = rng.uniform(0, 10, (990, 2))  # a crowd in one corner
    sparse = rng.uniform(0, 100, (10, 2))
    points = np.concatenate([dense, sparse]).astype(np.float32)
    scores = rng.random(1000).astype(np.float32)
    chosen = spread_subset(points, scores, 50)
    assert len(chosen) == len(set(chosen.tolist())) == 50
    assert set(range(990, 1000)) <= set(chosen.tolist())  # every lonely point is kept
    assert scores[chosen[chosen < 990]].mean() > 0.9  # the crowd sends its best
    assert spread_subset(points, scores, 0).tolist() == []
    np.testing.assert_array_equal(spread_subset(points[:5], scores[:5], 9), np.arange(5))
    assert len(spread_subset(np.ones((30, 2), np.float32), scores[:30], 7)) == 7  # all at one place


def test_colours_keep_their_order_without_colour_vision():
    for name in ("score", "heat"):
        table = colour_table(name).astype(float)
        lightness = table @ [0.2126, 0.7152, 0.0722]
        assert (np.diff(lightness) >= -0.5).all()
        assert lightness[-1] - lightness[0] > 120
    np.testing.assert_array_equal(colourise(np.array([np.nan, 5.0]), 2, 4)[0], colour_table()[0])
    np.testing.assert_array_equal(colourise(np.array([3.0]), 3, 3)[0], colour_table()[255])
    corners = plane_colours(np.float32([(0, 0), (9, 0), (0, 9), (9, 9), (4.5, 4.5)]), (0, 0), (9, 9)).astype(
        int
    )
    distances = np.linalg.norm(corners[:, None] - corners[None], axis=-1)
    assert distances[~np.eye(5, dtype=bool)].min() > 80


def test_discs_are_round_and_have_the_right_area():
    cover = disc_cover(3.0, 6, (0.0, 0.0))[..., 0]
    assert cover.sum() == pytest.approx(np.pi * 9, rel=0.05)
    np.testing.assert_allclose(cover, cover.T)
    canvas = np.zeros((21, 21, 3), np.uint8)
    drawn = draw_dots(canvas, np.float32([(10, 10)]), np.uint8([(255, 255, 255)]), 3.0, rim=None)
    assert drawn[10, 10].tolist() == [255] * 3
    assert drawn[8, 12].min() > 150
    assert drawn[10, 15].max() == 0


def test_dark_photos_are_lifted_and_bright_ones_dimmed():
    night, day = np.full((4, 4, 3), 40, np.uint8), np.full((4, 4, 3), 200, np.uint8)
    assert faded(night).max() == 52  # 40 * 1.3
    assert faded(day).max() == 168  # 200 * 0.84

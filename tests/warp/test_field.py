from __future__ import annotations

import numpy as np
import pytest

import coam
from coam.errors import ConfigError
from coam.warp import Warp, WarpField
from coam.warp.field import map_positions


def shifted(map_size: tuple[int, int], size: tuple[int, int], by: tuple[float, float]) -> WarpField:
    """Every pixel moves by the same displacement; the left half is certain, the right half is not."""
    points = map_positions(map_size, size) + np.asarray(by, dtype=np.float32)
    certainty = np.full(map_size[::-1], 0.9, dtype=np.float32)
    certainty[:, map_size[0] // 2 :] = 0.1
    return WarpField(points, certainty, size, size)


def toy(map_size: tuple[int, int] = (60, 40), size: tuple[int, int] = (60, 40)) -> Warp:
    return Warp(shifted(map_size, size, (3, -2)), shifted(map_size, size, (-3, 2)), 0.8, {"model": "toy"})


def test_the_public_name() -> None:
    assert coam.Warp is Warp


def test_positions_of_a_smaller_map_are_centres_of_blocks() -> None:
    positions = map_positions((3, 2), (12, 8))
    assert positions[0, 0].tolist() == [1.5, 1.5]
    assert positions[1, 2].tolist() == [9.5, 5.5]
    np.testing.assert_array_equal(map_positions((5, 4), (5, 4))[3, 1], [1, 3])


def test_displacement_and_lookup_between_pixels() -> None:
    field = shifted((15, 10), (60, 40), (3, -2))
    np.testing.assert_allclose(field.displacement, np.broadcast_to([3, -2], (10, 15, 2)), atol=1e-5)
    places, certainty = field.at([[10.25, 7.5], [50, 30]])
    np.testing.assert_allclose(places, [[13.25, 5.5], [53, 28]], atol=1e-4)
    np.testing.assert_allclose(certainty, [0.9, 0.1], atol=1e-6)
    many, _ = field.at(np.tile([[10.25, 7.5]], (70_000, 1)))  # more than one map of OpenCV's holds
    np.testing.assert_allclose(many, np.tile([[13.25, 5.5]], (70_000, 1)), atol=1e-4)
    assert field.at(np.zeros((0, 2)))[0].shape == (0, 2)


def test_apply_draws_photo_1_in_the_frame_of_photo_0() -> None:
    photo = np.zeros((40, 60, 3), dtype=np.uint8)
    photo[..., 0] = np.arange(60)
    photo[..., 1] = np.arange(40)[:, None]
    drawn = toy().apply(photo)
    assert drawn.shape == (40, 60, 3)
    np.testing.assert_array_equal(drawn[10, 20], [23, 8, 0])  # (20, 10) of photo 0 is (23, 8) of photo 1
    hidden = toy().apply(photo, min_certainty=0.5)
    assert hidden[:, 30:].max() == 0
    np.testing.assert_array_equal(hidden[:, :30], drawn[:, :30])
    twice = photo.repeat(2, axis=0).repeat(2, axis=1)  # anything aligned with photo 1, at any size
    np.testing.assert_array_equal(toy().apply(twice)[10, 20], [23, 8, 0])
    small = toy((15, 10)).apply(photo)
    assert small.shape == (10, 15, 3)
    np.testing.assert_allclose(small[5, 5], [24.5, 19.5, 0], atol=1)  # map pixel (5, 5) is (21.5, 21.5)


def test_a_loaded_warp_holds_no_photo_to_apply() -> None:
    with pytest.raises(ConfigError, match="give photo 1"):
        toy().apply()


def test_sample_is_seeded_spread_and_sure() -> None:
    warp = toy()
    matches = warp.sample(100, seed=3)
    assert len(matches) == 100
    assert matches.overlap == 0.8
    assert matches.meta["model"] == "toy"
    np.testing.assert_allclose(matches.points1 - matches.points0, np.tile([3.0, -2.0], (100, 1)), atol=1e-5)
    assert matches.points0[:, 0].max() < 30  # only the certain half
    assert len(np.unique(matches.points0, axis=0)) == 100
    np.testing.assert_array_equal(warp.sample(100, seed=3).points0, matches.points0)
    assert not np.array_equal(warp.sample(100, seed=4).points0, matches.points0)
    # 30 x 40 pixels hold 48 blocks of 5 x 5: each of them has at least one of the 100 matches.
    blocks = {(int(x) // 5, int(y) // 5) for x, y in matches.points0}
    assert len(blocks) == 48


def test_sample_takes_what_there_is() -> None:
    assert len(toy().sample(5000)) == 30 * 40
    assert len(toy().sample(0)) == 0
    assert len(toy().sample(10, min_certainty=0.95)) == 0
    with pytest.raises(ConfigError, match="at least 0"):
        toy().sample(-1)


def test_a_warp_in_words() -> None:
    warp = toy()
    assert repr(warp) == "Warp(60 x 40 and 60 x 40, 50% of photo 0 certain)"
    assert warp.points is warp.forward.points
    assert warp.certainty is warp.forward.certainty


def test_draw_darkens_what_is_uncertain() -> None:
    picture = np.asarray(toy().draw()).astype(int)
    assert picture.shape == (40, 60, 3)
    assert picture[:, :30].max() > 5 * picture[:, 30:].max() / 2

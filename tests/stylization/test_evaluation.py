from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.images import load_image
from coam.stylization.evaluation import (
    corresponding_to,
    find_stylizer,
    load_stylization,
    mean_l1,
    sample_colours,
    score_stylization,
    transfer_colours,
    true_positions,
)
from support.megadepth_tree import write_scene
from support.simple_matchers import matches_of


def test_bilinear_colours_by_hand() -> None:
    picture = np.zeros((2, 2, 3), np.uint8)
    picture[0, 1], picture[1, 0], picture[1, 1] = 51, 102, 153
    points = np.array([[0, 0], [1, 1], [0.5, 0.5], [0.5, 0], [-3, 9.0]])
    np.testing.assert_allclose(sample_colours(picture, points)[:, 0], [0, 0.6, 0.3, 0.1, 0.4])


def test_l1_by_hand() -> None:
    assert mean_l1([[0, 0, 0], [1, 1, 1]], [[0.3, 0, 0], [1, 1, 0.4]]) == pytest.approx((0.3 + 0.6) / 6)
    assert np.isnan(mean_l1(np.zeros((0, 3)), np.zeros((0, 3))))


def test_colour_transfer_takes_over_the_brightness() -> None:
    generator = np.random.default_rng(0)
    view = generator.integers(100, 200, (40, 50, 3)).astype(np.uint8)
    dark = (view * 0.3).astype(np.uint8)
    moved = transfer_colours(view, dark)
    assert moved.mean() == pytest.approx(dark.mean(), abs=4)
    np.testing.assert_allclose(transfer_colours(view, view), view, atol=3)


class Perfect:
    """Knows the shift of the pair: its sampled image is the truth."""

    def __init__(self, shift: float) -> None:
        self.shift = shift

    def match_many(self, pairs):
        points = np.array([[10.0, 10.0], [100.0, 90.0]])
        return (matches_of(points, points + np.array([self.shift, 0]), (160, 120)) for _ in pairs)


class Halves:
    """A sparse matcher: left of the middle nothing moves, right of it by 10 px; or it finds nothing."""

    def __init__(self, empty: bool = False) -> None:
        self.empty = empty

    def match_many(self, pairs):
        points = np.array([[40.0, 60.0], [120.0, 60.0]])[: 0 if self.empty else 2]
        moved = points + np.array([[0.0, 0.0], [10.0, 0.0]])[: len(points)]
        return (matches_of(points, moved, (160, 120)) for _ in pairs)


def test_a_sparse_matcher_moves_positions_as_the_nearest_match(hpatches_root: Path) -> None:
    pair = load_hpatches(hpatches_root)[0]
    places = np.array([[0.0, 0.0], [79.0, 60.0], [81.0, 60.0], [150.0, 3.0]])
    np.testing.assert_allclose(corresponding_to(places, pair, Halves())[:, 0], [0, 79, 91, 160])
    np.testing.assert_allclose(corresponding_to(places, pair, Halves(empty=True)), places)


def test_a_perfect_warp_has_no_error_and_a_wrong_one_has(hpatches_root: Path) -> None:
    pair = load_hpatches(hpatches_root)[-1]  # the style photo is the view moved by 3 pixels
    right = score_stylization(pair, Perfect(-3))
    wrong = score_stylization(pair, Perfect(+3))
    assert right["warp_only"] == pytest.approx(0, abs=1e-6)
    assert wrong["warp_only"] > 0.01
    assert right["do_nothing"] == pytest.approx(0, abs=1e-6)  # the light is the same: the view is right
    assert np.isnan(right["stylizer"])


def test_a_darker_style_is_mended_by_colour_transfer(hpatches_root: Path) -> None:
    pair = load_hpatches(hpatches_root)[4]  # i_one, half as bright
    row = score_stylization(pair, Perfect(0))
    assert row["do_nothing"] > 0.15
    assert row["colour_transfer"] < 0.02


def give_style(view: Path, style: Path) -> Path:
    return style


def test_a_stylizer_of_ones_own(hpatches_root: Path) -> None:
    pair = load_hpatches(hpatches_root)[0]
    row = score_stylization(pair, Perfect(0), stylizer=give_style)
    assert row["stylizer"] == pytest.approx(0, abs=1e-9)
    small = np.zeros((10, 10, 3), np.uint8)
    with pytest.raises(ConfigError, match="wanted the size of the view"):
        score_stylization(pair, Perfect(0), stylizer=lambda view, style: small)


def test_mistakes() -> None:
    with pytest.raises(ConfigError, match=r"wanted package.module:function"):
        find_stylizer("nowhere:f")
    with pytest.raises(ConfigError, match="is not a function"):
        find_stylizer("math:pi")


def test_megadepth_pairs_have_the_colours_that_depth_says(tmp_path: Path) -> None:
    """The rendered views have one colour per place of the world: the true colours are those of the view."""
    write_scene(tmp_path, "0443", photo_scale=2)
    assert load_stylization(tmp_path, scenes="0443", count=1)[0].sequence == "0443"
    pairs = load_stylization(tmp_path)  # a test scene
    assert [pair.name for pair in pairs] == ["0443.0/0 1", "0443.0/1 2"]
    view, style = (load_image(path) for path in (pairs[0].image0, pairs[0].image1))
    places, there = true_positions(pairs[0], view.size, style.size)
    assert len(places) > 500
    same = mean_l1(sample_colours(view.rgb, places), sample_colours(style.rgb, there))
    shuffled = mean_l1(sample_colours(view.rgb, places), sample_colours(style.rgb, there[::-1]))
    assert same < 0.01
    assert shuffled > 0.1

    class ByDepth:
        def match_many(self, wanted):
            return (matches_of(places, there, view.size) for _ in wanted)

    row = score_stylization(pairs[0], ByDepth())
    assert row["warp_only"] < 0.001  # the true correspondences give the true colours
    assert row["do_nothing"] < 0.01
    with pytest.raises(DataError, match="no pair of the wanted scenes"):
        load_stylization(tmp_path, scenes="0001")

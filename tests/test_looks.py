"""Views of photos, and what a pair gains from being looked at more than once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.test_matcher import check_rules, needs_weights

import coam.samples
from coam import load_matcher
from coam.geometry.coordinates import rotate_points
from coam.geometry.homography import apply_homography
from coam.looks import (
    HEAD_START,
    Sighting,
    aligned_look,
    judge,
    search_looks,
    show,
    whole_view,
    with_depth,
)
from coam.types import Grid, Matches

TILTED = np.array([[0.8, 0.15, 30.0], [-0.1, 0.9, 12.0], [2e-4, -1e-4, 1.0]])


def matches_of(
    points0: np.ndarray, points1: np.ndarray, size0: tuple[int, int], size1: tuple[int, int]
) -> Matches:
    ids = np.arange(len(points0))
    scores = np.linspace(1, 0.5, len(points0), dtype=np.float32)
    return Matches(points0.astype(np.float32), points1.astype(np.float32), scores, ids, ids, size0, size1)


def planted(matrix: np.ndarray, wrong: float, count: int = 200) -> Matches:
    """Random points of a 640 x 480 photo and where `matrix` puts them; the share `wrong` anywhere else."""
    random = np.random.default_rng(0)
    points0 = random.uniform(0, 1, (count, 2)) * [640, 480]
    points1 = apply_homography(matrix, points0)
    scatter = random.permutation(count)[: round(wrong * count)]
    points1[scatter] = random.uniform(0, 1, (len(scatter), 2)) * [640, 480]
    return matches_of(points0, points1, (640, 480), (640, 480))


def gradient(width: int, height: int) -> np.ndarray:
    """Red is x, green is y."""
    x, y = np.meshgrid(np.arange(width), np.arange(height))
    return np.stack([x, y, np.zeros_like(x)], axis=-1).astype(np.uint8)


# ---- views


@pytest.mark.parametrize("turns", [0, 1, 2, 3])
def test_a_turned_view_is_what_numpy_turns(turns: int) -> None:
    photo = np.random.default_rng(1).integers(0, 255, (96, 160, 3), dtype=np.uint8)
    view = whole_view((160, 96), 160, turns)
    np.testing.assert_array_equal(show(photo, view), np.rot90(photo, turns))
    corner = np.array([[0.0, 0.0], [3.0, 7.0]])
    there = rotate_points(corner, turns, 160, 96)
    np.testing.assert_allclose(apply_homography(view.photo_from_view, there), corner, atol=1e-9)


@pytest.mark.parametrize("resolution", [64, 128, 224])
def test_a_view_shows_each_pixel_from_where_it_says(resolution: int) -> None:
    """The colours of a gradient are its positions: half as large, as large, and larger."""
    view = whole_view((224, 160), resolution)
    picture = show(gradient(224, 160), view).astype(float)
    width, height = view.size
    inner = np.array([[x, y] for x in range(4, width - 4, 7) for y in range(4, height - 4, 5)], dtype=float)
    expected = apply_homography(view.photo_from_view, inner)
    seen = np.array([picture[int(y), int(x), :2] for x, y in inner])
    assert np.abs(seen - expected).max() < 1.01  # rounded to whole colours twice; half a view pixel is 1.75


def test_beyond_the_photo_a_view_is_black() -> None:
    view = whole_view((64, 64), 64)
    shifted = type(view)(np.array([[1.0, 0, 40], [0, 1, 0], [0, 0, 1]]), view.size)
    picture = show(np.full((64, 64, 3), 200, np.uint8), shifted)
    assert picture[:, :23].min() == 200
    assert picture[:, 25:].max() == 0


def test_the_search_tries_zooms_both_ways_and_three_turns() -> None:
    looks = list(search_looks((640, 480), (480, 640), 800))
    ratios = [max(look.view0.size) / max(look.view1.size) for look in looks]
    assert sorted(round(np.log2(ratio)) for ratio in ratios) == [-2, -1, 0, 0, 0, 1, 2]
    assert all(side % 32 == 0 for look in looks for view in look for side in view.size)


# ---- the common homography


def test_a_homography_is_found_among_wrong_matches() -> None:
    sighting = judge(planted(TILTED, wrong=0.6))
    assert sighting.homography is not None
    assert 80 <= sighting.agreeing <= 90
    assert sighting.share == sighting.agreeing / 200
    corners = np.array([[0.0, 0], [639, 0], [0, 479], [639, 479]])
    error = apply_homography(sighting.homography, corners) - apply_homography(TILTED, corners)
    assert np.abs(error).max() < 0.05


def test_chance_and_mirrors_are_no_common_homography() -> None:
    assert judge(planted(np.eye(3), wrong=1.0)).homography is None
    mirror = np.array([[-1.0, 0, 639], [0, 1, 0], [0, 0, 1]])
    assert judge(planted(mirror, wrong=0.0)).homography is None
    few = judge(planted(np.eye(3), wrong=0.0, count=8))
    assert few.agreeing == 0
    assert not few.is_found


def test_the_second_look_wins_a_tie_and_loses_a_rout() -> None:
    all_agree, few_agree = judge(planted(TILTED, wrong=0.0)), judge(planted(TILTED, wrong=0.7))
    again = judge(planted(TILTED, wrong=0.0))
    assert all_agree.or_better(again, HEAD_START) is again
    assert all_agree.or_better(again) is all_agree
    assert all_agree.or_better(few_agree, HEAD_START) is all_agree
    assert all_agree.is_settled
    assert few_agree.is_found
    assert not judge(replace(few_agree.matches, overlap=0.3)).is_found
    assert not few_agree.is_settled


# ---- the aligned look


def test_an_aligned_look_cuts_both_photos_to_their_common_part() -> None:
    """Photo 1 shows the part of photo 0 from (200, 100) to (360, 220), four times as large."""
    zoom = np.array([[4.0, 0, -800], [0, 4, -400], [0, 0, 1]])
    random = np.random.default_rng(2)
    points0 = random.uniform([200, 100], [360, 220], (100, 2))
    pair = matches_of(points0, apply_homography(zoom, points0), (640, 480), (640, 480))
    look = aligned_look(judge(pair), resolution=512)
    assert look is not None
    assert look.view0.size == look.view1.size == (320, 224)  # 160 x 120 and a margin, twice as fine
    corner0 = apply_homography(look.view0.photo_from_view, [[0.0, 0.0]])[0]
    assert np.abs(corner0 - [200 - 8, 100 - 6]).max() < 12  # the common part is known to a grid of 64 x 64
    corner1 = apply_homography(look.view1.photo_from_view, [[0.0, 0.0]])[0]
    np.testing.assert_allclose(corner1, 4 * corner0 - [800, 400], atol=0.5)


def test_both_views_of_an_aligned_look_show_the_same() -> None:
    photo = np.asarray(Image.open(coam.samples.courtyard().day[0]).convert("RGB"))
    height, width = photo.shape[:2]
    other = show(photo, type(whole_view((width, height), 32))(np.linalg.inv(TILTED), (width, height)))
    random = np.random.default_rng(3)
    points0 = random.uniform(0, 1, (300, 2)) * [width, height]
    points1 = apply_homography(TILTED, points0)
    kept = ((points1 >= 0) & (points1 < [width, height])).all(axis=1)
    pair = matches_of(points0[kept], points1[kept], (width, height), (width, height))
    look = aligned_look(judge(pair), resolution=320)
    assert look is not None
    first, second = (show(p, v).astype(float) for p, v in zip((photo, other), look, strict=True))
    both = (second > 0).any(axis=-1)
    assert np.abs(first - second)[both].mean() < 6  # resampled twice; unaligned photos differ by 30 and more


def scene_with_depth(matrix: np.ndarray) -> Matches:
    """Three planes of equal share, shifted against each other by parallax, then `matrix`."""
    random = np.random.default_rng(4)
    points0 = random.uniform(0, 1, (300, 2)) * [640, 480]
    parallax = np.repeat([[-25.0, 0], [0, 0], [25, 0]], 100, axis=0)
    return matches_of(points0, apply_homography(matrix, points0 + parallax), (640, 480), (640, 480))


def test_a_scene_with_depth_is_looked_at_again_only_if_zoom_or_turn_are_large() -> None:
    assert aligned_look(judge(scene_with_depth(np.eye(3))), 512) is None
    half = np.diag([0.5, 0.5, 1.0])
    look = aligned_look(judge(scene_with_depth(half)), 512)
    assert look is not None
    between = look.view1.photo_from_view @ np.linalg.inv(look.view0.photo_from_view)
    between /= between[2, 2]
    assert np.abs(between[2, :2]).max() < 1e-9  # zoom and turn only
    assert np.sqrt(np.linalg.det(between[:2, :2])) == pytest.approx(0.5, abs=0.05)


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


def test_what_hides_the_plane_is_kept_and_look_alike_parts_of_it_are_not() -> None:
    """A plane seen from one viewpoint, shifted by 20 pixels; a post before it; windows taken for others."""
    size = (800, 600)
    x, y = (axis.ravel() for axis in np.meshgrid(np.arange(10.0, 760, 15), np.arange(10.0, 590, 15)))
    behind_post = (np.abs(x - 400) < 40) | (np.abs(x + 20 - 460) < 40)
    plane0 = np.column_stack([x, y])[~behind_post]
    post0 = np.column_stack([np.full(60, 400.0) + np.arange(60) % 7, np.linspace(20, 580, 60)])
    window0 = plane0[::20][:60]
    shift = np.array([20.0, 0.0])
    post1 = post0 + shift + np.column_stack([20.0 + np.arange(60) % 23, np.zeros(60)])
    window1 = window0 + shift + [150.0, 0.0]

    def matches(points0: np.ndarray, points1: np.ndarray) -> Matches:
        grid = Grid(100, 75, (3.5, 3.5), (8.0, 8.0))
        ids = [grid.nearest(points) for points in (points0, points1)]
        scores = np.linspace(0.9, 0.5, len(points0)).astype(np.float32)
        return Matches(
            points0.astype(np.float32), points1.astype(np.float32), scores, *ids, size, size, grid, grid, 1.0
        )

    homography = np.array([[1.0, 0, 20], [0, 1, 0], [0, 0, 1]])
    best = Sighting(matches(plane0, plane0 + shift), homography, len(plane0), is_planar=True)
    first = matches(np.concatenate([post0, window0]), np.concatenate([post1, window1]))
    both = with_depth(best, first)
    assert len(both) == len(plane0)
    moved = both.points1 - both.points0
    added = both.select(np.linalg.norm(moved - shift, axis=1) > 1)
    assert 45 <= len(added) <= 60
    assert (np.abs(added.points0[:, 0] - 403) < 5).all()  # of the post, none of the windows
    assert (np.diff(both.scores) <= 0).all()
    assert with_depth(replace(best, is_planar=False), first) is best.matches

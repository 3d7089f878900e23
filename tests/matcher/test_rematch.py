"""Which views a pair is matched again through, and which result is believed."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

import coam.samples
from coam.geometry.homography import apply_homography
from coam.matcher.rematch import (
    DominantPlane,
    RematchOptions,
    fit_dominant_plane,
    guarded,
    rematch,
    views_of_alignment,
    with_parallax,
)
from coam.matcher.views import View, ViewPair, common_part, render_view
from coam.matching.coarse import CoarseMatches
from coam.matching.settings import MatcherConfig
from coam.types import Grid, Matches

OPTIONS = RematchOptions()
TILTED = np.array([[0.8, 0.15, 30.0], [-0.1, 0.9, 12.0], [2e-4, -1e-4, 1.0]])


def judge(matches: Matches) -> DominantPlane:
    return fit_dominant_plane(matches, OPTIONS)


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


# ---- the common homography


def test_a_homography_is_found_among_wrong_matches() -> None:
    plane = judge(planted(TILTED, wrong=0.6))
    assert plane.homography is not None
    assert 80 <= plane.inliers <= 90
    assert plane.share == plane.inliers / 200
    corners = np.array([[0.0, 0], [639, 0], [0, 479], [639, 479]])
    error = apply_homography(plane.homography, corners) - apply_homography(TILTED, corners)
    assert np.abs(error).max() < 0.05


def test_chance_and_mirrors_are_no_common_homography() -> None:
    assert judge(planted(np.eye(3), wrong=1.0)).homography is None
    mirror = np.array([[-1.0, 0, 639], [0, 1, 0], [0, 0, 1]])
    assert judge(planted(mirror, wrong=0.0)).homography is None
    few = judge(planted(np.eye(3), wrong=0.0, count=8))
    assert few.inliers == 0
    assert few.share == 0.0


def test_the_second_look_wins_a_tie_and_loses_a_rout() -> None:
    all_agree, few_agree = judge(planted(TILTED, wrong=0.0)), judge(planted(TILTED, wrong=0.7))
    again = judge(planted(TILTED, wrong=0.0))
    assert all_agree.better_of(again, OPTIONS.aligned_lead) is again
    assert all_agree.better_of(again) is all_agree
    assert all_agree.better_of(few_agree, OPTIONS.aligned_lead) is all_agree
    assert all_agree.share >= OPTIONS.settled_inlier_ratio > few_agree.share >= OPTIONS.found_inlier_ratio


# ---- the aligned look


def test_an_aligned_look_cuts_both_photos_to_their_common_part() -> None:
    """Photo 1 shows the part of photo 0 from (200, 100) to (360, 220), four times as large."""
    zoom = np.array([[4.0, 0, -800], [0, 4, -400], [0, 0, 1]])
    random = np.random.default_rng(2)
    points0 = random.uniform([200, 100], [360, 220], (100, 2))
    pair = matches_of(points0, apply_homography(zoom, points0), (640, 480), (640, 480))
    look = views_of_alignment(judge(pair), 512, OPTIONS)
    assert look is not None
    assert look.view0.size == look.view1.size == (320, 224)  # 160 x 120 and a margin, twice as fine
    corner0 = apply_homography(look.view0.photo_from_view, [[0.0, 0.0]])[0]
    assert np.abs(corner0 - [200 - 8, 100 - 6]).max() < 12  # the common part is known to a grid of 64 x 64
    corner1 = apply_homography(look.view1.photo_from_view, [[0.0, 0.0]])[0]
    np.testing.assert_allclose(corner1, 4 * corner0 - [800, 400], atol=0.5)


def test_the_common_part_ends_at_the_horizon() -> None:
    """Beyond column 320 the plane is behind camera 1, though the homography maps much of it into photo 1.

    With w = 1 - x / 320: x1 = 100 + 50 / w, y1 = 240 + (y - 240) / 2 / w.
    """
    row = np.array([-1 / 320, 0, 1.0])
    horizon = np.stack([100 * row + [0, 0, 50], 240 * row + [0, 0.5, -120], row])
    behind = apply_homography(horizon, [[600.0, 240.0]])[0]
    np.testing.assert_allclose(behind, [100 - 50 / 0.875, 240])
    box = common_part(horizon, (640, 480), (640, 480), OPTIONS.views)
    assert box is not None
    assert box[0] == 0.0
    assert 280 < box[2] < 320 + 0.05 * 320


def test_both_views_of_an_aligned_look_show_the_same() -> None:
    photo = np.asarray(Image.open(coam.samples.courtyard().day[0]).convert("RGB"))
    height, width = photo.shape[:2]
    other = render_view(photo, View(np.linalg.inv(TILTED), (width, height)))
    random = np.random.default_rng(3)
    points0 = random.uniform(0, 1, (300, 2)) * [width, height]
    points1 = apply_homography(TILTED, points0)
    kept = ((points1 >= 0) & (points1 < [width, height])).all(axis=1)
    pair = matches_of(points0[kept], points1[kept], (width, height), (width, height))
    look = views_of_alignment(judge(pair), 320, OPTIONS)
    assert look is not None
    first, second = (render_view(p, v).astype(float) for p, v in zip((photo, other), look, strict=True))
    both = (second > 0).any(axis=-1)
    assert np.abs(first - second)[both].mean() < 6  # resampled twice; unaligned photos differ by 30 and more


def scene_with_depth(matrix: np.ndarray) -> Matches:
    """Three planes of equal share, shifted against each other by parallax, then `matrix`."""
    random = np.random.default_rng(4)
    points0 = random.uniform(0, 1, (300, 2)) * [640, 480]
    parallax = np.repeat([[-25.0, 0], [0, 0], [25, 0]], 100, axis=0)
    return matches_of(points0, apply_homography(matrix, points0 + parallax), (640, 480), (640, 480))


def test_a_scene_with_depth_is_looked_at_again_only_if_zoom_or_turn_are_large() -> None:
    assert views_of_alignment(judge(scene_with_depth(np.eye(3))), 512, OPTIONS) is None
    half = np.diag([0.5, 0.5, 1.0])
    look = views_of_alignment(judge(scene_with_depth(half)), 512, OPTIONS)
    assert look is not None
    between = look.view1.photo_from_view @ np.linalg.inv(look.view0.photo_from_view)
    between /= between[2, 2]
    assert np.abs(between[2, :2]).max() < 1e-9  # zoom and turn only
    assert np.sqrt(np.linalg.det(between[:2, :2])) == pytest.approx(0.5, abs=0.05)


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
    best = DominantPlane(matches(plane0, plane0 + shift), homography, len(plane0), 1.0, is_planar=True)
    first = matches(np.concatenate([post0, window0]), np.concatenate([post1, window1]))
    both = with_parallax(best, first, OPTIONS)
    assert len(both) == len(plane0)
    moved = both.points1 - both.points0
    added = both.select(np.linalg.norm(moved - shift, axis=1) > 1)
    assert 45 <= len(added) <= 60
    assert (np.abs(added.points0[:, 0] - 403) < 5).all()  # of the post, none of the windows
    assert (np.diff(both.scores) <= 0).all()
    assert with_parallax(replace(best, is_planar=False), first, OPTIONS) is best.matches


def test_a_find_with_few_inliers_is_no_surer_than_the_first_matches() -> None:
    """Of many views one seems right by chance: then the lower of the two probabilities holds."""
    weak = judge(replace(planted(TILTED, wrong=0.6, count=1000), overlap=0.9))
    strong = judge(replace(planted(TILTED, wrong=0.4, count=1000), overlap=0.9))
    assert weak.inliers < OPTIONS.sure_inliers < strong.inliers
    first = replace(planted(TILTED, wrong=1.0), overlap=0.2)
    assert guarded(weak, first, OPTIONS).matches.overlap == 0.2
    assert guarded(weak, replace(first, overlap=0.95), OPTIONS).matches.overlap == 0.9
    assert guarded(strong, first, OPTIONS) is strong
    assert guarded(weak, replace(first, overlap=float("nan")), OPTIONS) is weak


# ---- the search, from first matches to what is believed

CONFIG = MatcherConfig()


def shown_at_cells(pair: ViewPair, homography: np.ndarray) -> CoarseMatches:
    """Every cell of view 0 with where `homography`, photo 0 -> photo 1, puts it in view 1."""
    x, y = np.meshgrid(np.arange(7.5, pair.view0.size[0], 16), np.arange(7.5, pair.view0.size[1], 16))
    points = np.stack([x.ravel(), y.ravel()], axis=1)
    between = np.linalg.inv(pair.view1.photo_from_view) @ homography @ pair.view0.photo_from_view
    return CoarseMatches(points, apply_homography(between, points), np.full(len(points), 0.5))


def test_what_coarse_matches_show_is_matched_in_their_light() -> None:
    truth = np.array([[0.3, 0.0, 200.0], [0.0, 0.9, 20.0], [0, 0, 1]])
    first = replace(planted(truth, wrong=1.0), overlap=0.1)
    nothing = CoarseMatches(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0))
    matched: list[ViewPair] = []

    def look(pairs: list[ViewPair]) -> list[CoarseMatches]:
        lit = [pair.view0.light == "inverted" for pair in pairs]
        return [shown_at_cells(p, truth) if seen else nothing for p, seen in zip(pairs, lit, strict=True)]

    def match_views(pair: ViewPair) -> Matches:
        matched.append(pair)
        return replace(planted(truth, wrong=0.02, count=1000), overlap=0.95)

    found = rematch(first, match_views, look, CONFIG, OPTIONS)
    assert found.overlap == 0.95
    assert found.meta["looks"] == 1 + len(matched)
    assert {(pair.view0.light, pair.view1.light) for pair in matched} == {("inverted", "grey")}
    without = rematch(first, match_views, look, replace(CONFIG, effort=0.0), OPTIONS)
    assert without is first


def test_a_chance_find_of_a_search_is_not_believed() -> None:
    """Two places: a view seems right, but its matches hardly agree: as unsure as before the search."""
    truth = np.eye(3)
    first = replace(planted(truth, wrong=1.0), overlap=0.03)

    def look(pairs: list[ViewPair]) -> list[CoarseMatches]:
        return [shown_at_cells(pair, truth) for pair in pairs]

    def match_views(pair: ViewPair) -> Matches:
        return replace(planted(truth, wrong=0.85), overlap=0.97)

    found = rematch(first, match_views, look, CONFIG, OPTIONS)
    assert found is not first
    assert found.overlap == 0.03
    assert found.meta["looks"] > 1


def test_a_network_without_coarse_descriptors_is_shown_zooms_and_turns_blindly() -> None:
    first = replace(planted(np.eye(3), wrong=1.0), overlap=0.1)
    matched: list[ViewPair] = []

    def match_views(pair: ViewPair) -> Matches:
        matched.append(pair)
        return first

    rematch(first, match_views, lambda pairs: None, CONFIG, OPTIONS)
    assert len(matched) == 7
    ratios = [max(pair.view0.size) / max(pair.view1.size) for pair in matched]
    assert sorted(round(np.log2(ratio)) for ratio in ratios) == [-2, -1, 0, 0, 0, 1, 2]

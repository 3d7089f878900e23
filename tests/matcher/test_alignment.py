"""Matches refined in the photos: nearer to the truth of a real pair, and what must not move."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from coam import samples
from coam.images import load_image
from coam.images.patch_alignment import AlignOptions
from coam.matcher import Matcher, load_matcher
from coam.matcher.alignment import align
from coam.types import Grid, Matches
from support.match_rules import needs_weights

PAIR = samples.motorcycle()
STEP = 741 / 96  # of the grid of a photo 741 pixels wide, seen at 384
Floats = np.ndarray[Any, np.dtype[Any]]


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return load_matcher(device="cpu", resolution=384, looks="once")


def photos() -> tuple[Any, Any]:
    return load_image(PAIR.left).rgb, load_image(PAIR.right).rgb


def made_up(points0: Floats, points1: Floats) -> Matches:
    """Matches of the pair at given places, on grids."""
    ids, grid = np.arange(len(points0)), Grid(96, 64, (3.4, 3.4), (STEP, STEP))
    points = [np.asarray(p, np.float32) for p in (points0, points1)]
    scores = np.ones(len(ids), np.float32)
    return Matches(*points, scores, ids, ids, PAIR.size, PAIR.size, grid, grid)


def true_matches(off: float) -> tuple[Matches, Floats]:
    """Matches whose points in photo 1 are wrong by `off` pixels (standard deviation), and the truth."""
    rng = np.random.default_rng(0)
    points0 = rng.uniform([20, 20], [720, 480], (1500, 2))
    truth, valid = PAIR.true_points1(points0)
    return made_up(points0[valid], truth[valid] + rng.normal(0, off, truth[valid].shape)), truth[valid]


def within(matches: Matches, truth: Floats, pixels: float) -> float:
    return float((np.linalg.norm(matches.points1 - truth, axis=1) < pixels).mean())


def test_made_up_matches_of_a_real_pair_come_nearer_to_the_truth() -> None:
    rough, truth = true_matches(0.7)
    fine = align(rough, photos(), (STEP, STEP), AlignOptions())
    assert within(rough, truth, 0.5) < 0.3
    assert within(fine, truth, 0.5) > 0.6
    np.testing.assert_array_equal(fine.points0, rough.points0)
    np.testing.assert_array_equal(fine.ids1, rough.ids1)


def test_where_only_points_of_photo_1_are_given_photo_0_is_searched() -> None:
    rough, truth = true_matches(0.0)
    rng = np.random.default_rng(1)
    moved = (rough.points0 + rng.normal(0, 0.7, truth.shape)).astype(np.float32)
    given = replace(rough, points0=moved, grid1=None)
    fine = align(given, photos(), (STEP, STEP), AlignOptions())
    np.testing.assert_array_equal(fine.points1, given.points1)
    before, after = (np.linalg.norm(m.points0 - rough.points0, axis=1) for m in (given, fine))
    assert np.median(after) < 0.6 * np.median(before)


def test_nothing_leaves_a_mask() -> None:
    rough, _ = true_matches(0.7)
    usable = np.zeros((PAIR.size[1], PAIR.size[0]), bool)
    usable[:, ::2] = True  # every other column
    free, kept = (
        align(rough, photos(), (STEP, STEP), AlignOptions(), (None, mask)) for mask in (None, usable)
    )
    columns = free.points1[:, 0].round().astype(int)
    allowed = columns % 2 == 0
    assert 0.2 < allowed.mean() < 0.8
    np.testing.assert_array_equal(kept.points1[allowed], free.points1[allowed])
    np.testing.assert_array_equal(kept.points1[~allowed], rough.points1[~allowed])


def test_no_matches_are_no_matches() -> None:
    none = made_up(np.zeros((0, 2)), np.zeros((0, 2)))
    assert len(align(none, photos(), (STEP, STEP), AlignOptions())) == 0


@needs_weights
def test_the_matcher_aligns_unless_told_otherwise(matcher: Matcher) -> None:
    """Seen at half their size, 71 % of the matches lie within half a pixel, 41 % of the network's own."""
    fine = matcher.match(PAIR.left, PAIR.right)
    rough = matcher.variant(alignment="none").match(PAIR.left, PAIR.right)
    np.testing.assert_array_equal(fine.points0, rough.points0)
    np.testing.assert_array_equal(fine.ids1, rough.ids1)
    np.testing.assert_array_equal(fine.scores, rough.scores)
    truth, valid = PAIR.true_points1(rough.points0)
    shares = [within(m.select(valid), truth[valid], 0.5) for m in (rough, fine)]
    assert shares[1] > shares[0] + 0.1
    moved = np.linalg.norm(fine.points1 - rough.points1, axis=1)
    assert moved.max() < AlignOptions.max_move * STEP * 1.01


@needs_weights
def test_keypoints_that_were_given_do_not_move(matcher: Matcher) -> None:
    points0 = np.random.default_rng(0).uniform([50, 50], [700, 450], (300, 2)).astype(np.float32)
    points1, _ = PAIR.true_points1(points0)
    points1 = points1[np.isfinite(points1).all(axis=1) & (points1 >= 0).all(axis=1)]
    both = matcher.match(PAIR.left, PAIR.right, points0, points1)
    np.testing.assert_array_equal(both.points0, points0[both.ids0])
    np.testing.assert_array_equal(both.points1, points1[both.ids1])
    first = matcher.match(PAIR.left, PAIR.right, points0)
    np.testing.assert_array_equal(first.points0, points0)
    second = matcher.match(PAIR.left, PAIR.right, None, points1)
    np.testing.assert_array_equal(second.points1, points1)
    rough = matcher.variant(alignment="none")
    assert (first.points1 != rough.match(PAIR.left, PAIR.right, points0).points1).any()
    assert (second.points0 != rough.match(PAIR.left, PAIR.right, None, points1).points0).any()

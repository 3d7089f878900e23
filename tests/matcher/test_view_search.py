"""The search of views, on pairs whose coarse matches are drawn from a known homography."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from coam.geometry.homography import apply_homography
from coam.matcher.rematch import RematchOptions
from coam.matcher.view_search import (
    CoarseLook,
    SearchOptions,
    common_map,
    judged,
    likely_changes,
    search_views,
)
from coam.matcher.views import Array, Change, ViewPair, changed_view
from coam.matching.coarse import CoarseMatches

OPTIONS = SearchOptions()
SIZE = (640, 480)
EVERYTHING = len(list(likely_changes(OPTIONS)))


def scattered(count: int, pair: ViewPair, random: np.random.Generator) -> CoarseMatches:
    """Matches that agree on nothing."""
    points = [random.uniform(0, 1, (count, 2)) * view.size for view in pair]
    return CoarseMatches(*points, random.uniform(0.02, 0.3, count))


class Scene:
    """A network in miniature: it matches cells where two views differ by less than two zooms, 45 degrees and
    a tilt of three, and only in the lights that it needs."""

    def __init__(self, homography: Array | None, lights: tuple[str, str] | None = None) -> None:
        self.homography, self.lights = homography, lights
        self.looks: list[ViewPair] = []

    def __call__(self, pairs: Sequence[ViewPair]) -> list[CoarseMatches]:
        self.looks += pairs
        return [self._matches(pair) for pair in pairs]

    def _matches(self, pair: ViewPair) -> CoarseMatches:
        random = np.random.default_rng(len(self.looks))
        wrong = scattered(20, pair, random)
        lit = self.lights is None or self.lights == (pair.view0.light, pair.view1.light)
        if self.homography is None or not lit:
            return wrong
        between = np.linalg.inv(pair.view1.photo_from_view) @ self.homography @ pair.view0.photo_from_view
        x, y = np.meshgrid(np.arange(7.5, pair.view0.size[0], 16), np.arange(7.5, pair.view0.size[1], 16))
        points0 = np.stack([x.ravel(), y.ravel()], axis=1)
        points1 = apply_homography(between, points0)
        in_photo = apply_homography(pair.view0.photo_from_view, points0)
        seen = ((points1 >= 0) & (points1 < pair.view1.size)).all(axis=1)
        seen &= ((in_photo >= 0) & (in_photo < SIZE)).all(axis=1)
        if not seen.any():
            return wrong
        step = apply_homography(between, np.mean(points0[seen], axis=0) + np.eye(3, 2, k=-1))
        derivative = np.column_stack([step[1] - step[0], step[2] - step[0]])
        most, least = np.linalg.svd(derivative, compute_uv=False)
        turn = np.degrees(np.arctan2(derivative[1, 0] - derivative[0, 1], np.trace(derivative)))
        if most > 2 or least < 0.4 or most / least > 3 or abs(turn) > 45:
            return wrong
        exact = points1[seen] + random.uniform(-8, 8, (seen.sum(), 2))  # cells are 16 pixels wide
        return CoarseMatches(
            np.concatenate([points0[seen], wrong.points0]),
            np.concatenate([exact, wrong.points1]),
            np.concatenate([np.full(seen.sum(), 0.6), wrong.probability]),
        )


def between_photos(change: Change) -> Array:
    """Homography photo -> its picture under `change`, 640 x 480, its middle in the middle."""
    view = changed_view(SIZE, 640, change)
    middle = np.eye(3)
    middle[:2, 2] = (np.asarray(SIZE) - np.asarray(view.size)) / 2
    return np.asarray(middle @ np.linalg.inv(view.photo_from_view))


def search(scene: CoarseLook, most: int = EVERYTHING, options: SearchOptions = OPTIONS):
    return search_views(SIZE, SIZE, scene, options, 800, most)


@pytest.mark.parametrize(
    "change",
    [
        Change(zoom=0.3),
        Change(turn=90),
        Change(turn=200),
        Change(tilt=4.0),
        Change(tilt=4.0, direction=55.0),
        Change(tilt=3.0, direction=120.0, turn=20.0),
        Change(zoom=0.5, tilt=2.5, direction=45.0),
    ],
)
@pytest.mark.parametrize("swapped", [False, True])
def test_a_changed_photo_is_found_from_its_coarse_matches(change: Change, swapped: bool) -> None:
    """Within a cell over the middle of the photo, from either side."""
    truth = between_photos(change)
    truth = np.linalg.inv(truth) if swapped else truth
    scene = Scene(truth)
    found = search(scene)
    assert found
    points = np.array([[320.0, 240], [300, 200], [340, 280]])
    points = apply_homography(truth, points) if swapped else points
    error = apply_homography(found[0].homography, points) - apply_homography(truth, points)
    assert np.linalg.norm(error, axis=1).max() < (40 if swapped else 16)  # a cell of the smaller one is large
    assert found[0].agreement >= OPTIONS.found


@pytest.mark.parametrize(
    ("change0", "change1", "effort"),
    [
        (Change(), Change(zoom=0.3, turn=-80.0), 1),
        (Change(tilt=2.5, direction=0.0), Change(tilt=2.5, direction=90.0), 1),
        (Change(), Change(tilt=4.0, direction=10.0, turn=100.0), 2),
    ],
)
def test_two_changes_at_once_are_found(change0: Change, change1: Change, effort: int) -> None:
    """None of them is found by one change alone, which are the first eighteen views."""
    truth = between_photos(change1) @ np.linalg.inv(between_photos(change0))
    found = search(Scene(truth), most=effort * RematchOptions().searched_views)
    assert found
    points = apply_homography(between_photos(change0), [[320.0, 240], [300, 200], [340, 280]])
    error = apply_homography(found[0].homography, points) - apply_homography(truth, points)
    assert np.linalg.norm(error, axis=1).max() < 24
    assert search(Scene(truth), most=18) == []


def test_what_lies_beyond_a_photo_is_no_evidence() -> None:
    """The corners of a photo shown tilted aslant are black and alike: thirty matches there, none inside."""
    view = changed_view(SIZE, 320, Change(tilt=3.0, direction=45.0))
    pair = ViewPair(view, view)
    inside = np.asarray(view.size) / 2 + np.random.default_rng(3).uniform(-40, 40, (30, 2))
    corner = np.random.default_rng(4).uniform(0, 60, (30, 2))
    beyond = CoarseMatches(corner, corner, np.full(30, 0.9))
    assert (apply_homography(view.photo_from_view, corner) < 0).any(axis=1).all()
    assert judged(pair, beyond, (SIZE, SIZE), OPTIONS).homography is None
    within = CoarseMatches(inside, inside, beyond.probability)
    assert judged(pair, within, (SIZE, SIZE), OPTIONS).agreement == pytest.approx(27 - 3)


def test_two_places_are_not_found_and_every_view_was_tried() -> None:
    scene = Scene(None)
    assert search(scene) == []
    whole = [pair for pair in scene.looks if max(pair.view0.size) in (320, 480) or pair.view0.light]
    assert len(whole) >= EVERYTHING


def test_the_budget_is_kept_and_a_plain_find_ends_the_search() -> None:
    scene = Scene(None)
    search(scene, most=6)
    assert 6 <= len(scene.looks) <= 6 + OPTIONS.starts * OPTIONS.climbs
    easy = Scene(np.eye(3))
    assert search(easy)[0].agreement >= OPTIONS.plain
    assert len(easy.looks) <= OPTIONS.batch + OPTIONS.climbs
    assert search(Scene(np.eye(3)), most=0) == []


def test_a_light_is_a_view_and_is_kept_on_the_way_up() -> None:
    scene = Scene(between_photos(Change(zoom=0.7)), lights=("inverted", "grey"))
    found = search(scene)
    assert found
    assert (found[0].views.view0.light, found[0].views.view1.light) == ("inverted", "grey")
    assert found[0].agreement > 20


def test_climbing_gains_agreement() -> None:
    truth = between_photos(Change(tilt=4.0))
    without = search(Scene(truth), options=replace(OPTIONS, climbs=0, found=0.0))
    assert search(Scene(truth))[0].agreement > without[0].agreement


def test_a_map_is_fitted_by_hand() -> None:
    """Thirty matches of one affine map, ten of none: 30 * 0.5 - 3 agree beyond those that always would."""
    random = np.random.default_rng(1)
    points0 = random.uniform(0, 300, (40, 2))
    matrix = np.array([[0.5, 0.1, 20.0], [-0.1, 0.9, 30.0], [0, 0, 1]])
    points1 = apply_homography(matrix, points0)
    points1[30:] += 200
    coarse = CoarseMatches(points0, points1, np.full(40, 0.5))
    fitted = common_map(coarse, OPTIONS)
    assert fitted is not None
    np.testing.assert_allclose(fitted[0], matrix, atol=1e-6)
    assert fitted[1] == pytest.approx(12.0)


def test_mirrors_and_needles_are_no_views_of_one_place() -> None:
    points0 = np.random.default_rng(2).uniform(0, 300, (40, 2))
    for matrix in (np.diag([-1.0, 1.0, 1.0]), np.diag([1.0, 0.1, 1.0])):
        coarse = CoarseMatches(points0, apply_homography(matrix, points0), np.full(40, 0.5))
        fitted = common_map(coarse, OPTIONS)
        assert fitted is None or fitted[1] < 10


def test_without_coarse_descriptors_nothing_can_be_seen() -> None:
    assert search(lambda pairs: None) is None

"""Keypoints that callers give, of one photo or of both: real photos with known geometry."""

from __future__ import annotations

from typing import Any

import cv2
import numpy as np
import pytest
import torch

from coam import samples
from coam.errors import ConfigError
from coam.images import load_image
from coam.matcher import Matcher, load_matcher
from coam.types import Matches
from support.match_rules import needs_weights

PAIR = samples.motorcycle()


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return load_matcher(device="cpu", resolution=384, looks="once")


@pytest.fixture(scope="module")
def sift() -> list[np.ndarray[Any, np.dtype[np.float32]]]:
    detector = cv2.SIFT.create(nfeatures=1500)
    found = [detector.detect(load_image(path).rgb, None) for path in (PAIR.left, PAIR.right)]
    return [np.unique(np.array([k.pt for k in side], np.float32), axis=0) for side in found]


def errors(matches: Matches) -> np.ndarray[Any, Any]:
    """Distance (K,) in pixels from the truth, of the matches for which it is known."""
    truth, valid = PAIR.true_points1(matches.points0)
    return np.linalg.norm(matches.points1 - truth, axis=1)[valid]


@needs_weights
def test_sift_keypoints_of_both_photos(matcher: Matcher, sift: list[Any]) -> None:
    """Seen at half the photos' size: 512 matches, 0.93 within 3 pixels, 0.85 within 1.5."""
    found = matcher.match(PAIR.left, PAIR.right, sift[0], sift[1])
    np.testing.assert_array_equal(found.points0, sift[0][found.ids0])
    np.testing.assert_array_equal(found.points1, sift[1][found.ids1])
    assert found.grid0 is None
    assert found.grid1 is None
    assert len(set(found.ids0.tolist())) == len(set(found.ids1.tolist())) == len(found)  # mutual
    assert (np.diff(found.scores) <= 0).all()
    assert found.scores.max() <= 1
    assert len(found) > 300
    error = errors(found)
    assert len(error) > 200
    assert (error < 3).mean() > 0.85
    assert (error < 1.5).mean() > 0.7
    # What is matched well is matched surely.
    half = len(found) // 2
    assert (errors(found[:half]) < 3).mean() > 0.95


@needs_weights
def test_scores_are_on_the_scale_of_grid_matches(matcher: Matcher, sift: list[Any]) -> None:
    grid = matcher.match(PAIR.left, PAIR.right)
    sparse = matcher.match(PAIR.left, PAIR.right, *sift)
    assert np.median(sparse.scores[:200]) == pytest.approx(np.median(grid.scores[:1000]), abs=0.25)
    # Of half the keypoints those that stay matched keep their scores: competition is the grid's.
    fewer = matcher.match(PAIR.left, PAIR.right, sift[0][::2], sift[1])
    before = {(2 * i, j): score for i, j, score in zip(fewer.ids0, fewer.ids1, fewer.scores, strict=True)}
    both = [
        (s, before[i, j])
        for i, j, s in zip(sparse.ids0, sparse.ids1, sparse.scores, strict=True)
        if (i, j) in before
    ]
    assert len(both) > 100
    np.testing.assert_allclose(*np.array(both).T, rtol=1e-3)


@needs_weights
def test_keypoints_of_one_photo_are_located_in_the_other(matcher: Matcher, sift: list[Any]) -> None:
    """Either way round: each keypoint, in order."""
    forward = matcher.match(PAIR.left, PAIR.right, keypoints0=sift[0][:300])
    np.testing.assert_array_equal(forward.points0, sift[0][:300])
    np.testing.assert_array_equal(forward.ids0, np.arange(300))
    assert forward.grid0 is None
    assert forward.grid1 is not None
    assert ((forward.ids1 >= 0) & (forward.ids1 < len(forward.grid1))).all()
    back = matcher.match(PAIR.left, PAIR.right, keypoints1=sift[1][:300])
    np.testing.assert_array_equal(back.points1, sift[1][:300])
    np.testing.assert_array_equal(back.ids1, np.arange(300))
    assert back.grid1 is None
    assert back.grid0 is not None
    assert (errors(forward) < 5).mean() > 0.75
    assert (errors(back) < 5).mean() > 0.75
    turned = matcher.match(PAIR.right, PAIR.left, keypoints0=sift[1][:300])
    np.testing.assert_allclose(np.linalg.norm(turned.points1 - back.points0, axis=1).mean(), 0, atol=0.5)


@needs_weights
def test_tensors_and_other_views(sift: list[Any]) -> None:
    """Half a turn: one look finds next to nothing, the search of turns nearly all."""
    turned = np.ascontiguousarray(load_image(PAIR.left).rgb[::-1, ::-1])
    points1 = np.array(PAIR.size, np.float32) - 1 - sift[0]
    matcher = load_matcher(device="cpu", resolution=320)
    found = matcher.match(PAIR.left, turned, torch.from_numpy(sift[0]), torch.from_numpy(points1))
    assert found.meta["looks"] > 1
    assert len(found) > 300
    assert (found.ids0 == found.ids1).mean() > 0.95


def test_no_keypoints_no_matches(matcher: Matcher) -> None:
    photo = np.zeros((40, 60, 3), np.uint8)
    for keypoints in (([], [(1, 2)]), ([(1, 2)], []), ([], [])):
        assert len(matcher.match(photo, photo, *keypoints)) == 0
    assert len(matcher.match(photo, photo, keypoints1=[])) == 0


def test_keypoints_outside_name_their_photo(matcher: Matcher) -> None:
    photo = np.zeros((40, 60, 3), np.uint8)
    with pytest.raises(ConfigError, match="keypoints1 must lie inside photo 1, which is 60 x 40"):
        matcher.match(photo, photo, [(1, 2)], [(60, 2)])
    with pytest.raises(ConfigError, match=r"keypoints1 must have shape \(N, 2\), not \(1, 3\)"):
        matcher.match(photo, photo, keypoints1=[(1, 2, 3)])

"""What speaks against a registration: matches that agree among themselves on something else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coam.geometry.homography import apply_homography, fit_homography
from coam.registration.fitting import Fit, fit_transform
from coam.registration.quality import (
    DEFAULT_QUALITY,
    FARTHEST,
    FOUND,
    FOUND_BY,
    HOLDS,
    HOLDS_BY,
    Quality,
    differing,
    doubts,
    found_by,
    holds_by,
    judge,
    probability_right,
)
from coam.registration.transforms import PlaneTransform
from coam.types import Size
from support.known_registration import noisy_matches

SIZE: Size = (640, 480)


def judged(moved: np.ndarray, points: np.ndarray, same_place: float = 0.99) -> Quality:
    fit = fit_transform(points, moved, SIZE)
    assert fit is not None
    return judge(fit, points, moved, (SIZE, SIZE), same_place)


def two_depths(nearer: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Matches of a far plane, and of a near one on the right `nearer` of the picture, moved by 40 px."""
    rng = np.random.default_rng(seed)
    points = rng.uniform(0, np.array(SIZE) - 1, (1500, 2))
    moved = points + rng.normal(0, 0.5, points.shape)
    moved[points[:, 0] > (1 - nearer) * SIZE[0]] += [0, 40]
    return points, moved


def test_matches_of_another_depth_speak_against_a_plane() -> None:
    points, moved = two_depths(0.3)
    quality = judged(moved, points)
    assert quality.inlier_share == pytest.approx(0.7, abs=0.03)
    assert quality.against == pytest.approx(0.3, abs=0.05)
    assert np.nanmedian(quality.residual_map[:, -3:]) == pytest.approx(40, abs=1)
    assert np.nanmedian(quality.residual_map[:, :6]) < 1
    words = " ".join(doubts(quality))
    assert f"{quality.against:.0%} of the places" in words
    assert "depth" in words


def test_wrong_matches_that_agree_with_nobody_do_not_speak_against() -> None:
    matches = noisy_matches(lambda points: points + 5.0, SIZE, wrong=0.4)
    quality = judged(matches.points1.astype(float), matches.points0.astype(float))
    assert quality.inlier_share == pytest.approx(0.6, abs=0.05)
    assert quality.against < 0.01
    assert not any("something else" in doubt for doubt in doubts(quality))


def test_the_same_matches_are_worth_less_when_the_rest_agrees_on_something_else() -> None:
    points, moved = two_depths(0.3)
    rest = np.linalg.norm(moved - points, axis=1) > 20
    scattered = moved.copy()
    scattered[rest] = np.random.default_rng(1).uniform(0, np.array(SIZE) - 1, (int(rest.sum()), 2))
    assert judged(moved, points).confidence < judged(scattered, points).confidence - 0.2


def test_the_probability_is_of_both_that_it_was_found_and_that_it_holds() -> None:
    quality = replace(
        judged(*two_depths(0.2)[::-1]),
        coverage=0.7, against=0.0, uncertainty=1.0, inliers=1999, inlier_share=0.9, same_place=0.98,
    )  # fmt: skip
    assert found_by(quality) == pytest.approx((math.log(2000), 0.9, 0.7, math.log(49)))
    assert holds_by(quality) == pytest.approx((0.7, 0.0, 0.2))  # of 5 px, of an image of 640 x 480
    assert holds_by(replace(quality, uncertainty=1e4)) == (0.7, 0.0, FARTHEST)
    assert holds_by(replace(quality, uncertainty=math.nan)) == (0.7, 0.0, FARTHEST)
    assert (len(FOUND), len(HOLDS)) == (len(FOUND_BY) + 1, len(HOLDS_BY) + 1)
    assert probability_right(quality) > 0.9
    assert probability_right(replace(quality, against=0.4)) < 0.1
    assert probability_right(replace(quality, uncertainty=10.0)) < 0.6
    nothing = replace(quality, inliers=9, coverage=0.06, same_place=0.05)
    assert probability_right(nothing) < 0.1
    assert 0 <= probability_right(replace(nothing, inliers=0, same_place=math.nan)) < 0.1


def plane_fit(points: np.ndarray, moved: np.ndarray) -> Fit:
    """A homography that all matches (N, 2), (N, 2) agree on."""
    matrix, count = fit_homography(points, moved), len(points)
    assert matrix is not None
    agree = np.ones(count, np.bool_)
    return Fit(PlaneTransform("homography", matrix), np.zeros(count), agree, np.zeros(count), {}, "")


@pytest.mark.parametrize("shared", [False, True])
def test_uncertainty_is_how_far_fits_to_other_matches_really_lie(shared: bool) -> None:
    """Matches in the upper half alone, each with an error of its own, or one for each block of 64 px."""
    rng = np.random.default_rng(4)
    points = rng.uniform((0, 0), (639, 240), (1200, 2))
    places = np.array([[320.0, 120.0], [320.0, 470.0]])  # among the matches, and far below them
    block = (points // 64).astype(int) @ [1, 10]

    def noisy() -> np.ndarray:
        each = rng.normal(0, 0.5, (len(points), 2))
        return points + (rng.normal(0, 0.5, (50, 2))[block] if shared else each)

    real = np.stack([apply_homography(fit_homography(points, noisy()), places) for _ in range(300)]) - places
    truly = np.sqrt(np.square(real).sum(axis=2).mean(axis=0))
    told = np.mean(
        [
            differing(plane_fit(points, moved), points, moved, SIZE, places, DEFAULT_QUALITY)
            for moved in (noisy() for _ in range(20))
        ],
        axis=0,
    )
    assert truly[1] > 5 * truly[0]
    assert told == pytest.approx(truly, rel=0.25)


def test_matches_in_a_corner_are_uncertain_elsewhere() -> None:
    """By as much as they cover less: the same matches spread out, and in a quarter of the picture."""
    rng = np.random.default_rng(5)
    spread = rng.uniform(0, np.array(SIZE) - 1, (500, 2))
    found = []
    for points in (spread, spread * 0.4):
        found.append(judged(points + rng.normal(0, 1.0, points.shape), points))
    assert found[0].uncertainty < 0.5
    assert found[1].uncertainty > 5 * found[0].uncertainty
    assert found[1].bearable == 5.0
    assert "other draws of the matches differ by 2.1 px" in " ".join(
        doubts(replace(found[1], uncertainty=2.1))
    )
    assert "other draws" not in " ".join(doubts(replace(found[1], uncertainty=1.9)))


def test_matches_of_three_blocks_tell_nothing_about_the_rest() -> None:
    points = np.random.default_rng(6).uniform((0, 0), (64 * 3 - 1, 63), (100, 2))
    told = differing(
        plane_fit(points, points), points, points, SIZE, np.array([[600.0, 400]]), DEFAULT_QUALITY
    )
    assert told.tolist() == [640.0]

"""What speaks against a registration: matches that agree among themselves on something else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coam.registration.fitting import fit_transform
from coam.registration.quality import (
    FOUND,
    FOUND_BY,
    HOLDS,
    HOLDS_BY,
    Quality,
    doubts,
    found_by,
    holds_by,
    judge,
    probability_right,
)
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
        coverage=0.7, against=0.0, inliers=1999, inlier_share=0.9, same_place=0.98,
    )  # fmt: skip
    assert found_by(quality) == pytest.approx((math.log(2000), 0.9, 0.7, math.log(49)))
    assert holds_by(quality) == (0.7, 0.0)
    assert (len(FOUND), len(HOLDS)) == (len(FOUND_BY) + 1, len(HOLDS_BY) + 1)
    assert probability_right(quality) > 0.9
    assert probability_right(replace(quality, against=0.4)) < 0.1
    nothing = replace(quality, inliers=9, coverage=0.06, same_place=0.05)
    assert probability_right(nothing) < 0.1
    assert 0 <= probability_right(replace(nothing, inliers=0, same_place=math.nan)) < 0.1

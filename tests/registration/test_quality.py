"""What speaks against a registration: matches that agree among themselves on something else."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from coam.registration.fitting import fit_transform
from coam.registration.quality import FEATURES, WEIGHTS, Quality, doubts, features_of, judge
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


def test_features_are_in_their_order_and_bounded() -> None:
    quality = replace(judged(*two_depths(0.2)[::-1]), held_out_error=math.inf, same_place=math.nan, inliers=0)
    values = dict(zip(FEATURES, features_of(quality, SIZE), strict=True))
    assert len(FEATURES) == len(WEIGHTS)
    assert values["log_inliers"] == 0
    assert values["against"] == quality.against
    assert values["log_error"] == pytest.approx(math.log(100))
    assert values["same_place"] == 0

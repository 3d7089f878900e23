"""Which transform matches earn: the simplest that those left out of the fit bear out."""

from __future__ import annotations

import numpy as np
import pytest

from coam.errors import ConfigError
from coam.geometry.homography import apply_homography
from coam.registration.fitting import (
    NO_PLACES,
    Fit,
    FitOptions,
    Places,
    block_folds,
    fit_transform,
    folds_over,
)
from coam.registration.local_models import spread_points
from coam.registration.transforms import PlaneTransform
from support.known_registration import TURN, elastic, noisy_matches

SIZE = (640, 480)
GRID = np.stack(np.meshgrid(np.linspace(20, 620, 20), np.linspace(20, 460, 16)), -1).reshape(-1, 2)
TILT = np.array([[1.0, 0.05, 3.0], [0.02, 1.04, 0.0], [9e-5, -6e-5, 1]])


def fitted(move, model: str = "auto", **how) -> Fit:
    matches = noisy_matches(move, **how)
    fit = fit_transform(matches.points0, matches.points1, SIZE, FitOptions(model=model))
    assert fit is not None
    return fit


def error(fit: Fit, move) -> float:
    return float(np.linalg.norm(fit.transform.points(GRID) - move(GRID), axis=1).mean())


@pytest.mark.parametrize(
    ("kind", "matrix"),
    [
        ("translation", np.array([[1, 0, 6.5], [0, 1, -3.0], [0, 0, 1]])),
        ("similarity", TURN),
        ("affine", np.array([[1.05, 0.1, 2], [0.0, 0.95, 9], [0, 0, 1]])),
        ("homography", TILT),
    ],
)
def test_auto_takes_the_plane_motion_that_was_made(kind: str, matrix: np.ndarray) -> None:
    def move(points: np.ndarray) -> np.ndarray:
        return apply_homography(matrix, points)

    fit = fitted(move)
    assert fit.transform.kind == kind
    assert error(fit, move) < 0.15
    assert float(np.median(fit.held_out)) == pytest.approx(0.5 * 1.1774, rel=0.1)  # median of a 2-D normal


def test_elastic_deformation_needs_a_spline() -> None:
    """10 px of amplitude: a homography misses by more than 3 px, a spline by less than 1."""
    move = elastic(10.0, 320.0)
    auto, plane = fitted(move), fitted(move, "homography")
    assert auto.transform.kind == "spline"
    assert error(plane, move) > 3
    assert error(auto, move) < 0.8
    assert "spline" in auto.why


def test_a_curved_sensor_needs_a_polynomial_and_no_more() -> None:
    def move(points: np.ndarray) -> np.ndarray:
        x, y = ((points - [320, 240]) / 320).T
        return points + 8 * np.stack([y * y, x * x], axis=1)  # x (x, y) would be a homography

    fit = fitted(move)
    assert fit.transform.kind == "polynomial"
    assert error(fit, move) < 0.25


@pytest.mark.parametrize("seed", range(6))
def test_noise_alone_never_earns_a_local_model(seed: int) -> None:
    fit = fitted(lambda points: apply_homography(TURN, points), noise=1.2, seed=seed)
    assert fit.transform.kind == "similarity"


@pytest.mark.parametrize("model", ["translation", "affine", "polynomial", "spline"])
def test_a_model_that_is_asked_for_is_given(model: str) -> None:
    fit = fitted(lambda points: points + np.array([4.0, 2.0]), model)
    assert fit.transform.kind == model
    assert error(fit, lambda points: points + np.array([4.0, 2.0])) < 0.3


def test_wrong_matches_give_nothing_to_trust() -> None:
    matches = noisy_matches(lambda points: points, wrong=1.0)
    fit = fit_transform(matches.points0, matches.points1, SIZE)
    assert fit is None or fit.inliers.mean() < 0.05


@pytest.mark.parametrize("count", [0, 1, 3, 7])
def test_too_few_matches_give_nothing(count: int) -> None:
    points = np.random.default_rng(0).uniform(0, 400, (count, 2))
    assert fit_transform(points, points, SIZE) is None


def test_mirrored_matches_are_no_transform() -> None:
    points = np.random.default_rng(0).uniform(0, 400, (300, 2))
    assert fit_transform(points, points * [-1, 1] + [400, 0], SIZE) is None


def test_points_on_one_line_are_no_transform() -> None:
    points = np.stack([np.linspace(0, 400, 200), np.linspace(0, 200, 200)], axis=1)
    assert fit_transform(points, points + 2, SIZE) is None


def test_folds_are_whole_blocks_and_cover_all() -> None:
    points = np.random.default_rng(0).uniform(0, 479, (500, 2))
    folds = block_folds(points, SIZE)
    assert sorted(np.concatenate(folds).tolist()) == list(range(500))
    owner = np.empty(500, int)
    for number, fold in enumerate(folds):
        owner[fold] = number
    blocks = [tuple(block) for block in (points // 64).astype(int).tolist()]
    assert all(len({owner[i] for i in range(500) if blocks[i] == block}) == 1 for block in set(blocks))


def test_a_mirror_folds_over() -> None:
    assert folds_over(PlaneTransform("affine", np.diag([-1.0, 1, 1])), SIZE)
    assert not folds_over(PlaneTransform("similarity", TURN), SIZE)


def test_spread_points_are_far_apart() -> None:
    points = np.array([[0, 0], [0.1, 0], [10, 0], [10, 0.1], [5, 8.0]])
    chosen = spread_points(points, 3)
    assert {tuple(p) for p in chosen.round().tolist()} == {(0, 0), (10, 0), (5, 8)}


def test_an_unknown_model_is_named() -> None:
    with pytest.raises(ConfigError, match="no model 'rigid'"):
        FitOptions(model="rigid")


def test_places_hold_a_spline_where_nothing_matches() -> None:
    """A quarter of the image has no match: places with 2 px of noise there, told so, bring the error down."""
    move = elastic(10.0, 320.0)
    matches = noisy_matches(move)
    bare = (matches.points1[:, 0] > 380) & (matches.points1[:, 1] < 200)
    points0, points1 = matches.points0[~bare], matches.points1[~bare]
    x, y = np.meshgrid(np.arange(385.0, 640, 10), np.arange(5.0, 200, 10))
    moving = np.stack([x, y], axis=-1).reshape(-1, 2)
    noise = np.random.default_rng(1).normal(0, 2.0, moving.shape)
    places = Places(moving + noise, move(moving), np.full(len(moving), 1 / 16))
    errors = []
    for known in (NO_PLACES, places):
        fit = fit_transform(points0, points1, SIZE, places=known)
        assert fit is not None
        assert len(fit.residuals) == len(points0)  # places are no matches: they are not counted
        errors.append(
            float(np.linalg.norm(fit.transform.inverse_points(move(moving)) - moving, axis=1).mean())
        )
    assert errors[0] > 4
    assert errors[1] < 1


def test_a_local_model_ends_in_the_plane_beyond_its_matches() -> None:
    """Matches of the left half bend; on the right nothing says so, and the homography holds."""
    move = elastic(6.0, 320.0)
    matches = noisy_matches(move, count=3000)
    left = matches.points1[:, 0] < 320
    fit = fit_transform(matches.points0[left], matches.points1[left], SIZE)
    loose = fit_transform(matches.points0[left], matches.points1[left], SIZE, FitOptions(held_firmly=1e-9))
    assert fit is not None
    assert loose is not None
    assert fit.transform.kind == loose.transform.kind == "spline"
    right = GRID[GRID[:, 0] > 480]
    bent, held = (
        np.abs(each.transform.displacement.at(right)).max()  # type: ignore[attr-defined]
        for each in (loose, fit)
    )
    assert held < 3
    assert bent > 3 * held
    inside = GRID[(GRID[:, 0] > 40) & (GRID[:, 0] < 240)]
    assert np.linalg.norm(fit.transform.points(inside) - move(inside), axis=1).mean() < 0.8

"""Local affine maps from neighbouring matches."""

from __future__ import annotations

import numpy as np
import pytest

from coam.geometry.local_affine import AffineOptions, local_affine


def test_local_affine_finds_the_map_and_shrugs_off_outliers():
    generator = np.random.default_rng(0)
    affine = np.array([[1.3, -0.4], [0.2, 0.8]])
    points0 = generator.uniform(0, 500, (300, 2))
    points1 = points0 @ affine.T + [20, -5] + generator.normal(0, 0.2, (300, 2))
    wrong = generator.choice(300, 30, replace=False)
    points1[wrong] = generator.uniform(0, 500, (30, 2))
    found = local_affine(points0, points1)
    good = np.setdiff1d(np.arange(300), wrong)
    assert np.median(np.abs(found[good] - affine).max((1, 2))) < 0.02
    assert local_affine(points0[:4], points1[:4]).tolist() == [np.eye(2).tolist()] * 4


def test_matches_that_all_lie_on_one_point_give_finite_maps():
    points = np.full((20, 2), 7.0)
    assert np.isfinite(local_affine(points, points)).all()
    line = np.stack([np.arange(20.0), np.zeros(20)], axis=1)
    maps = local_affine(line, 2 * line)
    assert np.allclose(maps[:, 0, 0], 2, atol=0.01)  # along the line
    slanted = 1000 * line @ np.array([[0.8, 0.6], [-0.6, 0.8]])
    along = local_affine(slanted, 2 * slanted) @ [0.8, 0.6]
    assert np.allclose(along, [1.6, 1.2], atol=0.01)


def test_maps_are_bounded():
    points = np.random.default_rng(0).uniform(0, 100, (50, 2))
    for stretch, bound in ((20.0, 5.0), (0.01, 0.2)):
        values = np.linalg.svd(local_affine(points, stretch * points), compute_uv=False)
        assert np.allclose(values, bound)


def plain_weighted_map(near0, near1, weight, whole, strength):
    """The map A with the least sum of weight |near1 - A near0|^2 + strength |A - whole|^2, row by row."""
    rows = np.concatenate([np.sqrt(weight)[:, None] * near0, np.sqrt(strength) * np.eye(2)])
    return np.stack(
        [
            np.linalg.lstsq(
                rows,
                np.concatenate([np.sqrt(weight) * near1[:, k], np.sqrt(strength) * whole[k]]),
                rcond=None,
            )[0]
            for k in (0, 1)
        ]
    )


@pytest.mark.parametrize("neighbours", [5, 30])
def test_maps_are_the_weighted_least_squares_of_their_neighbours(neighbours):
    """A plain loop over matches; all neighbours (or all others) and weights as the options say."""
    generator = np.random.default_rng(3)
    points0 = generator.uniform(0, 100, (15, 2))
    points1 = points0 @ np.array([[1.1, 0.1], [-0.2, 0.9]]).T + generator.normal(0, 3, (15, 2))
    options = AffineOptions(neighbours=neighbours, rounds=2, scale=2.0, prior=0.4)

    weight, whole = np.ones(15), np.eye(2)
    for _ in range(2):
        middle0, middle1 = (np.average(p, axis=0, weights=weight) for p in (points0, points1))
        whole = plain_weighted_map(points0 - middle0, points1 - middle1, weight, whole, 0.0)
        miss = np.linalg.norm(points1 - middle1 - (points0 - middle0) @ whole.T, axis=1)
        weight = 1 / (1 + (miss / (2.0 * np.median(miss))) ** 2)

    found = local_affine(points0, points1, options)
    for k in range(15):
        distance = np.linalg.norm(points0 - points0[k], axis=1)
        nearest = np.argsort(distance)[1 : 1 + neighbours]
        near0, near1 = points0[nearest] - points0[k], points1[nearest] - points1[k]
        affine = whole
        for _ in range(2):
            miss = np.linalg.norm(near1 - near0 @ affine.T, axis=1)
            weight = 1 / (1 + (miss / (2.0 * np.median(miss))) ** 2)
            strength = 0.4 * np.mean(distance[nearest] ** 2)
            affine = plain_weighted_map(near0, near1, weight, whole, strength)
        np.testing.assert_allclose(found[k], affine, rtol=1e-6)


def test_few_matches_have_few_neighbours():
    points = np.random.default_rng(4).uniform(0, 100, (6, 2))
    np.testing.assert_allclose(local_affine(points, 2 * points), np.tile(2 * np.eye(2), (6, 1, 1)), atol=1e-6)
    assert local_affine(points[:5], 2 * points[:5]).tolist() == np.tile(np.eye(2), (5, 1, 1)).tolist()


@pytest.mark.parametrize("values", [(6.0, 1.0), (1.0, 0.1), (4.9, 0.21), (7.0, 0.1)])
def test_only_the_stretch_that_is_too_large_is_bounded(values):
    points = np.random.default_rng(5).uniform(0, 100, (40, 2))
    turn = np.array([[0.8, -0.6], [0.6, 0.8]])
    affine = turn @ np.diag(values) @ turn.T
    found = np.linalg.svd(local_affine(points, points @ affine.T), compute_uv=False)
    np.testing.assert_allclose(found, np.tile(np.clip(values, 0.2, 5.0), (40, 1)), rtol=1e-4)


def test_without_rounds_every_map_is_the_identity():
    points = np.random.default_rng(6).uniform(0, 100, (8, 2))
    assert local_affine(points, 2 * points, AffineOptions(rounds=0)).tolist() == [np.eye(2).tolist()] * 8

"""Local affine maps from neighbouring matches."""

from __future__ import annotations

import numpy as np

from coam.geometry.local_affine import local_affine


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


def test_maps_are_bounded():
    points = np.random.default_rng(0).uniform(0, 100, (50, 2))
    for stretch, bound in ((20.0, 5.0), (0.01, 0.2)):
        values = np.linalg.svd(local_affine(points, stretch * points), compute_uv=False)
        assert np.allclose(values, bound)

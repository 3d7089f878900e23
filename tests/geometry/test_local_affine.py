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

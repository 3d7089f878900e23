"""Plane motions: least squares by hand, and the choice of the simplest that left-out matches bear out."""

from __future__ import annotations

import numpy as np
import pytest

from coam.geometry.homography import apply_homography, transfer_errors
from coam.geometry.motions import FITS, fit_motion, halves, held_out_misses, simplest, simplest_motion

SQUARE = np.array([[0, 0], [2, 0], [2, 2], [0, 2.0]])


def test_fits_by_hand() -> None:
    turned = np.array(
        [[1, 0], [1, 4], [-3, 4], [-3, 0.0]]
    )  # a quarter turn, twice as large, one to the right
    similarity = FITS["similarity"](SQUARE, turned)
    assert similarity == pytest.approx(np.array([[0, -2, 1], [2, 0, 0], [0, 0, 1.0]]), abs=1e-12)
    assert FITS["translation"](SQUARE, SQUARE + np.array([3, -1])) == pytest.approx(
        np.array([[1, 0, 3], [0, 1, -1], [0, 0, 1.0]])
    )
    affine = np.array([[1, 0.5, 0], [0, 2, 1], [0, 0, 1.0]])
    assert FITS["affine"](SQUARE, SQUARE @ affine[:2, :2].T + [0, 1]) == pytest.approx(affine, abs=1e-12)


@pytest.mark.parametrize(
    ("kind", "fewest"), [("translation", 1), ("similarity", 2), ("affine", 3), ("homography", 4)]
)
def test_too_few_points_determine_nothing(kind: str, fewest: int) -> None:
    assert FITS[kind](SQUARE[: fewest - 1], SQUARE[: fewest - 1]) is None
    assert FITS[kind](SQUARE[:fewest], SQUARE[:fewest]) is not None


def test_held_out_misses_are_of_the_other_fold() -> None:
    points = np.array([[0, 0], [1, 0], [2, 0], [3, 0.0]])
    moved = points + np.array([[1, 0], [2, 0], [1, 0], [2, 0.0]])
    assert held_out_misses(FITS["translation"], points, moved, halves(4)) == pytest.approx([1, 1, 1, 1])


def test_the_simplest_within_chance_is_taken() -> None:
    missed = {"translation": 1.09, "similarity": 1.05, "affine": 1.0, "homography": 1.01}
    assert simplest(missed, 100) == "translation"  # a tenth is chance
    assert simplest(missed, 400) == "similarity"
    assert simplest(missed, 1_000_000) == "affine"


def test_only_kinds_that_are_asked_for() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 300, (200, 2))
    found = simplest_motion(points, 1.1 * points, ("affine",))
    assert found is not None
    assert found[0] == "affine"
    assert transfer_errors(points, 1.1 * points, found[1]).max() < 1e-9


def test_a_caption_that_stands_still_does_not_bend_the_motion() -> None:
    """It would in a mean: the lowest 60 of 400 points do not move, which an affine map nearly explains."""
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 300, (400, 2))
    moved = points + np.array([6, -3]) + rng.normal(0, 0.3, (400, 2))
    caption = np.argsort(points[:, 1])[-60:]
    moved[caption] = points[caption]
    found = simplest_motion(points, moved)
    assert found is not None
    assert found[0] == "translation"


def test_few_inliers_are_no_motion() -> None:
    rng = np.random.default_rng(0)
    points = rng.uniform(0, 300, (50, 2))
    assert fit_motion(points, points + 3) is None
    motion = fit_motion(points, points + 3, min_inliers=40)
    assert motion is not None
    assert (motion.kind, motion.share) == ("translation", 1.0)


def test_misses_are_distances() -> None:
    shift = np.array([[1.0, 0, 3], [0, 1, 4], [0, 0, 1]])
    assert transfer_errors(SQUARE, SQUARE, shift).tolist() == [5.0] * 4


def test_a_fold_that_determines_nothing_is_missed_by_any_distance() -> None:
    folds = halves(4)
    assert [fold.tolist() for fold in folds] == [[0, 2], [1, 3]]
    assert np.isinf(held_out_misses(FITS["affine"], SQUARE, SQUARE, folds)).all()


@pytest.mark.parametrize(
    ("kind", "matrix"),
    [
        ("similarity", [[1.1, -0.2, 5], [0.2, 1.1, -3], [0, 0, 1]]),
        ("affine", [[1.1, 0.3, 5], [0.1, 0.8, -3], [0, 0, 1]]),
        ("homography", [[1.1, 0.1, 5], [0, 1, -3], [4e-4, 0, 1]]),
    ],
)
def test_motions_with_noise_and_outliers_are_told_apart(kind: str, matrix: list[list[float]]) -> None:
    rng = np.random.default_rng(1)
    points = rng.uniform(0, 300, (300, 2))
    moved = apply_homography(matrix, points) + rng.normal(0, 0.5, points.shape)
    moved[:60] = rng.uniform(0, 300, (60, 2))
    motion = fit_motion(points, moved)
    assert motion is not None
    assert motion.kind == kind
    assert motion.share == pytest.approx(0.8, abs=0.02)
    assert motion.residual == pytest.approx(0.5 * np.sqrt(2 * np.log(2)), rel=0.15)  # median of a Rayleigh
    np.testing.assert_allclose(apply_homography(motion.matrix, points[60:]), moved[60:], atol=3)

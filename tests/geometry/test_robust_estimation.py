from importlib.util import find_spec

import numpy as np
import pytest

from coam.errors import ConfigError
from coam.geometry.homography import apply_homography, corner_error
from coam.geometry.pose import rotation_error, translation_error
from coam.geometry.robust import (
    ESTIMATORS,
    RansacOptions,
    estimate_essential,
    estimate_fundamental,
    estimate_homography,
    relative_pose,
)

INTRINSICS = np.array([[1000, 0, 500], [0, 1000, 400], [0, 0, 1.0]])
ANGLE = np.radians(17)
ROTATION = np.array([[np.cos(ANGLE), 0, np.sin(ANGLE)], [0, 1, 0], [-np.sin(ANGLE), 0, np.cos(ANGLE)]])
TRANSLATION = np.array([1.0, 0.1, 0.2]) / np.linalg.norm([1.0, 0.1, 0.2])
HOMOGRAPHY = np.array([[1, 0.1, 5], [0.02, 0.9, 3], [1e-4, 0, 1]])

without = pytest.mark.skipif(not find_spec("pysuperansac"), reason="the extra superansac is not installed")
pytestmark = pytest.mark.parametrize(
    "estimator", [pytest.param(name, marks=without if name == "superansac" else ()) for name in ESTIMATORS]
)


def two_views(outliers: int = 100) -> tuple[np.ndarray, np.ndarray]:
    """200 true matches with half a pixel of noise behind `outliers` wrong ones."""
    generator = np.random.default_rng(1)
    world = generator.uniform([-2, -2, 4], [2, 2, 8], (200, 3))
    seen0, seen1 = world @ INTRINSICS.T, (world @ ROTATION.T + TRANSLATION) @ INTRINSICS.T
    points0, points1 = seen0[:, :2] / seen0[:, 2:], seen1[:, :2] / seen1[:, 2:]
    points0, points1 = (p + generator.normal(0, 0.5, p.shape) for p in (points0, points1))
    wrong = generator.uniform(0, 1000, (2, outliers, 2))
    return np.concatenate([wrong[0], points0]), np.concatenate([wrong[1], points1])


def test_pose_with_a_third_of_outliers(estimator: str) -> None:
    points0, points1 = two_views()
    found = relative_pose(points0, points1, INTRINSICS, INTRINSICS, RansacOptions(estimator=estimator))
    assert found is not None
    assert rotation_error(found.rotation, ROTATION) < 1.0
    assert translation_error(found.translation, TRANSLATION, signed=True) < 3.0
    assert found.inliers.shape == (300,)
    assert found.inliers[100:].mean() > 0.8
    assert found.inliers[:100].mean() < 0.1


def test_essential_matrix_is_that_of_the_pose(estimator: str) -> None:
    points0, points1 = two_views()
    found = estimate_essential(points0, points1, INTRINSICS, INTRINSICS, RansacOptions(estimator=estimator))
    assert found is not None
    singular = np.linalg.svd(found.matrix)[1]
    assert singular[1] == pytest.approx(singular[0], rel=1e-3)
    assert singular[2] == pytest.approx(0, abs=1e-6)


def test_homography_with_outliers(estimator: str) -> None:
    points0, points1 = two_views(outliers=150)
    true = apply_homography(HOMOGRAPHY, points0[150:])
    found = estimate_homography(
        points0, np.concatenate([points1[:150], true]), RansacOptions(estimator=estimator)
    )
    assert found is not None
    assert corner_error(found.matrix, HOMOGRAPHY, (1000, 800)) < 0.05
    assert found.inliers[150:].all()


def test_fundamental_matrix_with_outliers(estimator: str) -> None:
    points0, points1 = two_views()
    found = estimate_fundamental(points0, points1, RansacOptions(estimator=estimator))
    assert found is not None
    assert found.inliers[100:].mean() > 0.8


def test_the_same_seed_gives_the_same_answer(estimator: str) -> None:
    points0, points1 = two_views()
    if estimator == "superansac":
        pytest.skip("it takes no seed")
    options = RansacOptions(seed=3, estimator=estimator)
    first, second = (relative_pose(points0, points1, INTRINSICS, INTRINSICS, options) for _ in range(2))
    assert first is not None
    assert second is not None
    assert np.array_equal(first.rotation, second.rotation)
    assert np.array_equal(first.inliers, second.inliers)


@pytest.mark.parametrize("count", [0, 1, 3, 4])
def test_too_few_points_are_none_not_an_error(estimator: str, count: int) -> None:
    points0, points1 = (p[:count] for p in two_views())
    assert relative_pose(points0, points1, INTRINSICS, INTRINSICS, RansacOptions(estimator=estimator)) is None
    assert estimate_fundamental(points0, points1, RansacOptions(estimator=estimator)) is None
    if count < 4:
        assert estimate_homography(points0, points1, RansacOptions(estimator=estimator)) is None


def test_one_point_repeated_is_none(estimator: str) -> None:
    points = np.full((20, 2), 7.0)
    assert estimate_homography(points, points, RansacOptions(estimator=estimator)) is None
    assert estimate_fundamental(points, points, RansacOptions(estimator=estimator)) is None
    assert relative_pose(points, points, INTRINSICS, INTRINSICS, RansacOptions(estimator=estimator)) is None


def test_a_nan_is_an_outlier_and_harms_nobody(estimator: str) -> None:
    points0, points1 = two_views()
    points1[150] = np.nan
    if estimator == "superansac":
        pytest.skip("it takes no seed: now and then its pose of few points is off")
    found = relative_pose(points0, points1, INTRINSICS, INTRINSICS, RansacOptions(estimator=estimator))
    assert found is not None
    assert not found.inliers[150]
    assert rotation_error(found.rotation, ROTATION) < 1.0


def test_unequal_lists_are_refused(estimator: str) -> None:
    with pytest.raises(ConfigError, match="5 and 6"):
        estimate_homography(np.zeros((5, 2)), np.zeros((6, 2)), RansacOptions(estimator=estimator))


def test_unknown_estimator_is_refused(estimator: str) -> None:
    with pytest.raises(ConfigError, match=estimator):
        RansacOptions(estimator="ransac")  # type: ignore[arg-type]


def test_as_few_matches_as_determine_a_model(estimator: str) -> None:
    """Eight for a fundamental matrix and five for an essential one, without noise; one fewer is too few."""
    generator = np.random.default_rng(4)
    world = generator.uniform([-2, -2, 4], [2, 2, 8], (8, 3))
    seen = world @ INTRINSICS.T, (world @ ROTATION.T + TRANSLATION) @ INTRINSICS.T
    points0, points1 = (side[:, :2] / side[:, 2:] for side in seen)
    options = RansacOptions(estimator=estimator)
    fundamental = estimate_fundamental(points0, points1, options)
    assert fundamental is not None
    assert fundamental.inliers.all()
    assert estimate_fundamental(points0[:7], points1[:7], options) is None
    essential = estimate_essential(points0[:5], points1[:5], INTRINSICS, INTRINSICS, options)
    assert essential is not None
    assert essential.inliers.all()
    assert estimate_essential(points0[:4], points1[:4], INTRINSICS, INTRINSICS, options) is None

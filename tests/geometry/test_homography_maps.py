import numpy as np
import pytest

from coam.geometry.homography import (
    _normalising,
    apply_homography,
    corner_error,
    fit_homography,
    resampled_homographies,
    scaled_homography,
    transfer_errors,
)


def test_apply_divides_by_the_third_coordinate() -> None:
    homography = [[2, 0, 1], [0, 1, 0], [0, 0, 2]]
    assert apply_homography(homography, [[3, 4]]).tolist() == [[3.5, 2.0]]


def test_a_point_sent_to_infinity_is_inf_not_nan() -> None:
    homography = [[1, 0, 0], [0, 1, 0], [1, 0, -1]]  # x = 1 goes to infinity
    mapped = apply_homography(homography, [[1, 0], [1, 1], [2, 4]])
    assert np.isinf(mapped[:2]).all()
    assert mapped[2].tolist() == [2.0, 4.0]


def test_a_point_that_one_coordinate_sends_to_infinity_is_there_as_a_whole() -> None:
    almost_flat = np.diag([1.0, 1.0, 1e-310])  # 0 / 1e-310 is 0, and 5 / 1e-310 is more than a number holds
    assert apply_homography(almost_flat, [[0, 5]]).tolist() == [[np.inf, np.inf]]


def test_no_points() -> None:
    assert apply_homography(np.eye(3), np.zeros((0, 2))).shape == (0, 2)


def test_planted_errors_are_measured_in_image_1() -> None:
    double = np.diag([2.0, 2.0, 1.0])
    points0 = np.array([[10, 10], [20, 5], [7, 7]])
    planted = np.array([[0, 0], [3, 4], [0, -2]])
    assert transfer_errors(points0, 2 * points0 + planted, double).tolist() == [0, 5, 2]


def test_nan_and_infinite_points_are_wrong_matches() -> None:
    errors = transfer_errors([[1, 1], [2, 2]], [[np.nan, 1], [np.inf, 2]], np.eye(3))
    assert np.isinf(errors).all()


def test_corner_error_of_a_shift_is_its_length() -> None:
    shift = [[1, 0, 3], [0, 1, 4], [0, 0, 1]]
    assert corner_error(shift, np.eye(3), (640, 480)) == pytest.approx(5.0)


def test_corner_error_of_a_scale_about_the_origin() -> None:
    # Corners of an 11 x 11 image are at 0 and 10: they move by 0, 10, 10 and sqrt(200).
    scale = np.diag([2.0, 2.0, 1.0])
    assert corner_error(scale, np.eye(3), (11, 11)) == pytest.approx((0 + 10 + 10 + np.sqrt(200)) / 4)


def test_no_estimate_is_an_infinite_error() -> None:
    assert corner_error(None, np.eye(3), (640, 480)) == float("inf")


def test_scaled_homography_commutes_with_our_resize() -> None:
    homography = np.array([[1.1, 0.02, 5], [-0.03, 0.95, -7], [1e-4, -2e-4, 1]])
    scale0, scale1 = (0.5, 0.25), (2.0, 3.0)
    point = np.array([[37.0, 91.0]])
    direct = (apply_homography(homography, point) + 0.5) * scale1 - 0.5
    resized = (point + 0.5) * scale0 - 0.5
    np.testing.assert_allclose(
        apply_homography(scaled_homography(homography, scale0, scale1), resized), direct
    )


def test_fit_recovers_an_exact_map() -> None:
    homography = np.array([[1.1, 0.02, 5], [-0.03, 0.95, -7], [1e-4, -2e-4, 1]])
    points = np.array([[0, 0], [600, 10], [620, 470], [5, 480], [300, 200.0]])
    fitted = fit_homography(points, apply_homography(homography, points))
    assert fitted is not None
    np.testing.assert_allclose(fitted, homography, atol=1e-6)


@pytest.mark.parametrize(
    "points", [np.zeros((5, 2)), np.array([[0, 0], [1, 1], [2, 2], [3, 3.0]]), np.zeros((3, 2))]
)
def test_fit_of_points_that_fix_nothing_is_none(points: np.ndarray) -> None:
    assert fit_homography(points, points) is None


def test_scaling_keeps_the_last_entry_one() -> None:
    homography = np.array([[1.1, 0.02, 5], [-0.03, 0.95, -7], [1e-4, -2e-4, 1]])
    scaled = scaled_homography(3 * homography, (0.5, 0.25), (2.0, 3.0))
    assert scaled[2, 2] == 1.0
    at_infinity = np.array([[1.0, 0, 0], [0, 1, 0], [1, 0, 0.5]])  # (-0.5, y), where pixels begin
    assert scaled_homography(at_infinity, (2.0, 2.0), (1.0, 1.0))[2, 2] == pytest.approx(1.0)
    through_zero = np.array([[0.0, 1, 0], [1, 0, 0], [1, 0, 0]])
    np.testing.assert_allclose(scaled_homography(through_zero, (1.0, 1.0), (1.0, 1.0)), through_zero)


def test_a_corner_sent_to_infinity_is_an_infinite_error() -> None:
    horizon = np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 639, 0, 1]])  # column 639, the last
    assert corner_error(horizon, np.eye(3), (640, 480)) == np.inf
    assert corner_error(np.eye(3), horizon, (640, 480)) == np.inf


def test_points_are_centred_and_scaled_before_a_fit() -> None:
    points = np.array([[100.0, 50], [104, 50], [104, 54], [100, 54]])
    normal = _normalising(points)
    assert normal is not None
    placed = apply_homography(normal, points)
    np.testing.assert_allclose(placed, [[-1, -1], [1, -1], [1, 1], [-1, 1]])  # at sqrt(2) from the middle
    assert _normalising(np.full((3, 2), 7.0)) is None
    assert _normalising(np.array([[np.nan, 0], [1, 1]])) is None


def test_fits_want_as_many_points_on_both_sides_and_no_infinity() -> None:
    square = np.array([[0, 0], [600, 10], [620, 470], [5, 480.0]])
    assert fit_homography(square, square[:3]) is None
    assert fit_homography(square, np.where(square > 600, np.nan, square)) is None
    shuffled = fit_homography(square, square[[1, 2, 3, 0]])
    assert shuffled is not None
    np.testing.assert_allclose(apply_homography(shuffled, square), square[[1, 2, 3, 0]], atol=1e-6)
    assert shuffled[2, 2] == 1.0


def test_draws_of_blocks_are_fits_to_their_points_as_often_as_drawn() -> None:
    rng = np.random.default_rng(3)
    points0 = rng.uniform(0, 600, (40, 2))
    points1 = apply_homography([[1, 0.1, 5], [0, 0.9, 2], [1e-4, 0, 1]], points0) + rng.normal(0, 1, (40, 2))
    block = np.arange(40) % 4
    drawn = [[1, 1, 1, 1], [2, 0, 1, 1], [0, 4, 0, 0]]
    found = resampled_homographies(points0, points1, block, drawn)
    assert found.shape == (3, 3, 3)
    for matrix, counts in zip(found, drawn, strict=True):
        rows = np.concatenate([np.flatnonzero(block == k) for k in range(4) for _ in range(counts[k])])
        wanted = fit_homography(points0[rows], points1[rows])
        assert wanted is not None
        # The points are scaled by all of them together, not by those drawn: nearly the same least squares.
        assert apply_homography(matrix, points0) == pytest.approx(apply_homography(wanted, points0), abs=0.05)


def test_points_that_define_no_homography_give_no_draws() -> None:
    assert resampled_homographies(np.zeros((0, 2)), np.zeros((0, 2)), [], np.ones((5, 0))).shape == (0, 3, 3)
    assert resampled_homographies(np.ones((9, 2)), np.ones((9, 2)), [0] * 9, [[1], [1]]).shape == (0, 3, 3)

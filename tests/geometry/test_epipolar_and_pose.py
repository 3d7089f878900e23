import numpy as np
import pytest

from coam.geometry.epipolar import (
    cheirality,
    epipolar_distances,
    epipolar_lines,
    essential_from_pose,
    fundamental_from_essential,
    fundamental_from_pose,
    sampson_distance,
    sampson_residual,
    symmetric_epipolar_distance,
)
from coam.geometry.pose import relative_pose_matrix, rotation_angle, rotation_error, translation_error


def turn_about_y(degrees: float) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    return np.array([[c, 0, s], [0, 1, 0], [-s, 0, c]])


def sideways_stereo() -> np.ndarray:
    """Fundamental matrix of two cameras side by side: epipolar lines are image rows."""
    pose = np.eye(4)
    pose[0, 3] = 1.0
    return fundamental_from_pose(np.diag([500.0, 500, 1]), np.diag([500.0, 500, 1]), pose)


def test_side_by_side_cameras_have_rows_as_epipolar_lines() -> None:
    distance0, distance1 = epipolar_distances([[10, 20], [0, 0]], [[300, 23], [50, 0]], sideways_stereo())
    np.testing.assert_allclose(distance0, [3, 0], atol=1e-9)
    np.testing.assert_allclose(distance1, [3, 0], atol=1e-9)


def test_symmetric_distance_is_the_larger_one_and_sampson_the_first_order_one() -> None:
    fundamental = sideways_stereo()
    assert symmetric_epipolar_distance([[10, 20]], [[300, 23]], fundamental)[0] == pytest.approx(3)
    # Both points move 1.5 px towards each other: the smallest joint correction is 3 / sqrt(2).
    assert sampson_distance([[10, 20]], [[300, 23]], fundamental)[0] == pytest.approx(3 / np.sqrt(2))


def test_sampson_distance_weighs_both_photos() -> None:
    """Photo 1 is twice as large: rows y1 = 2 y0. A miss of 3 is 1.5 in photo 0, 3 / sqrt(5) in both."""
    pose = np.eye(4)
    pose[0, 3] = 1.0
    fundamental = fundamental_from_pose(np.diag([500.0, 500, 1]), np.diag([1000.0, 1000, 1]), pose)
    distance0, distance1 = epipolar_distances([[10, 20]], [[300, 43]], fundamental)
    assert (distance0[0], distance1[0]) == (pytest.approx(1.5), pytest.approx(3))
    assert sampson_distance([[10, 20]], [[300, 43]], fundamental)[0] == pytest.approx(3 / np.sqrt(5))
    signed = sampson_residual([[10, 20], [10, 20]], [[300, 43], [300, 37]], fundamental)
    assert signed[0] == pytest.approx(-signed[1])


def test_epipolar_lines_of_side_by_side_cameras_are_rows() -> None:
    lines = epipolar_lines(sideways_stereo(), [[10, 20], [300, -7]])
    np.testing.assert_allclose(np.abs(lines), [[0, 1, 20], [0, 1, 7]], atol=1e-9)
    np.testing.assert_allclose(lines @ [123.0, 0, 1] + lines[:, 1] * [20, -7], 0, atol=1e-9)


@pytest.mark.parametrize(
    ("depth", "shift", "both"), [(3, -1, True), (3, -5, False), (-2, 5, False), (-3, 1, False)]
)
def test_cheirality_asks_for_both_cameras(depth: float, shift: float, both: bool) -> None:
    """A point at `depth` before camera 0 is at depth + shift before camera 1."""
    point0 = np.array([[0.5, -0.2, depth]])
    point1 = point0 + np.array([0, 0, shift])
    rays0, rays1 = point0 / depth, point1 / point1[:, 2:]
    assert cheirality(rays0, rays1, np.eye(3), np.array([0.0, 0, shift]), 0.0).tolist() == [both]


def test_nearly_parallel_rays_are_before_both_cameras() -> None:
    rays0, rays1 = np.array([[0.0, 0, 1]]), np.array([[1e-4, 0, 1.0]])
    away = np.array([-1.0, 0, 0])
    sides = [cheirality(rays0, rays1, np.eye(3), t, 1e-5)[0] for t in (away, -away)]
    assert sorted(sides) == [False, True]
    assert all(cheirality(rays0, rays1, np.eye(3), t, 1e-3)[0] for t in (away, -away))
    for length0, length1 in ((0.01, 1.0), (1.0, 100.0), (50.0, 20.0)):  # rays are directions
        scaled = length0 * rays0, length1 * rays1
        assert [cheirality(*scaled, np.eye(3), t, 1e-5)[0] for t in (away, -away)] == sides
        assert all(cheirality(*scaled, np.eye(3), t, 1e-3)[0] for t in (away, -away))


def test_projections_of_one_point_lie_on_their_epipolar_lines() -> None:
    intrinsics0 = np.array([[700, 0, 320], [0, 710, 240], [0, 0, 1.0]])
    intrinsics1 = np.array([[900, 0, 500], [0, 890, 300], [0, 0, 1.0]])
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = turn_about_y(20), [1.0, -0.2, 0.3]
    world = np.array([[0.3, -0.2, 4.0], [1.0, 0.5, 6.0]])
    seen0, seen1 = world @ intrinsics0.T, (world @ pose[:3, :3].T + pose[:3, 3]) @ intrinsics1.T
    points0, points1 = seen0[:, :2] / seen0[:, 2:], seen1[:, :2] / seen1[:, 2:]
    fundamental = fundamental_from_pose(intrinsics0, intrinsics1, pose)
    np.testing.assert_allclose(symmetric_epipolar_distance(points0, points1, fundamental), 0, atol=1e-9)


def test_no_points_give_no_distances() -> None:
    assert symmetric_epipolar_distance(np.zeros((0, 2)), np.zeros((0, 2)), np.eye(3)).shape == (0,)


def test_essential_matrix_of_a_pure_translation_is_its_cross_product() -> None:
    expected = [[0, -3, 2], [3, 0, -1], [-2, 1, 0]]
    assert essential_from_pose(np.eye(3), [1, 2, 3]).tolist() == expected


@pytest.mark.parametrize("degrees", [0.0, 1e-4, 10.0, 90.0, 179.9, 180.0])
def test_rotation_angle(degrees: float) -> None:
    assert rotation_angle(turn_about_y(degrees)) == pytest.approx(degrees, abs=1e-6)
    assert rotation_error(turn_about_y(30), turn_about_y(30 + degrees)) == pytest.approx(degrees, abs=1e-6)


def test_translation_error_ignores_length_and_sign() -> None:
    assert translation_error([0, 0, 5], [0, 0, 0.1]) == pytest.approx(0)
    assert translation_error([0, 0, -1], [0, 0, 1]) == pytest.approx(0)
    assert translation_error([1, 0, 0], [1, 1, 0]) == pytest.approx(45)
    assert translation_error([-1, 0, 0], [1, 1, 0]) == pytest.approx(45)
    assert translation_error([0, 1, 0], [1, 0, 0]) == pytest.approx(90)


def test_signed_translation_error_keeps_the_half_turn() -> None:
    assert translation_error([0, 0, -1], [0, 0, 1], signed=True) == pytest.approx(180)
    assert translation_error([-1, 0, 0], [1, 1, 0], signed=True) == pytest.approx(135)


def test_translations_without_direction() -> None:
    assert translation_error([1, 0, 0], [0, 0, 0]) == 0
    assert translation_error([0, 0, 0], [1, 0, 0]) == 90
    assert translation_error([0, 0, 0], [1, 0, 0], signed=True) == 180


def test_relative_pose_of_two_cameras() -> None:
    first, second = np.eye(4), np.eye(4)
    first[:3, 3] = [1, 2, 3]
    second[:3, :3], second[:3, 3] = turn_about_y(90), [0, 0, 1]
    point = np.array([0.5, -1, 2, 1])
    np.testing.assert_allclose(
        relative_pose_matrix(first, second) @ (first @ point), second @ point, atol=1e-12
    )


def test_fundamental_matrices_have_unit_length() -> None:
    cameras = np.diag([500.0, 500, 1]), np.diag([900.0, 900, 1])
    essential = essential_from_pose(turn_about_y(20), [1, -0.2, 0.3])
    found = fundamental_from_essential(7 * essential, *cameras)
    assert np.linalg.norm(found) == pytest.approx(1)
    expected = np.diag([1 / 900, 1 / 900, 1]) @ essential @ np.diag([1 / 500, 1 / 500, 1])
    np.testing.assert_allclose(found, expected / np.linalg.norm(expected), atol=1e-12)
    assert fundamental_from_essential(np.zeros((3, 3)), *cameras).tolist() == np.zeros((3, 3)).tolist()

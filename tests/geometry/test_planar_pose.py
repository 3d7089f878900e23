"""Pose from matches that lie nearly all on one plane."""

import numpy as np
import pytest
from scipy.optimize import minimize

from coam.geometry.correspondences import correspondences
from coam.geometry.epipolar import essential_from_pose, fundamental_from_essential, sampson_distance
from coam.geometry.planar_pose import poses_of_plane, support
from coam.geometry.pose import rotation_error, translation_error
from coam.geometry.pose_refinement import refine_pose, rotation_of
from coam.geometry.ransacs import _matrix, unit_pose
from coam.geometry.robust import RansacOptions, _decide, estimate_fundamental, relative_pose

CAMERA = np.array([[800.0, 0, 499.5], [0, 800.0, 499.5], [0, 0, 1]])
ANGLE = 0.35
ROTATION = np.array(
    [[np.cos(ANGLE), 0, np.sin(ANGLE)], [0, 1, 0], [-np.sin(ANGLE), 0, np.cos(ANGLE)]], dtype=np.float64
)
SHIFT = np.array([-1.6, 0.2, 0.5])
NORMAL = np.array([0.2, -0.1, 1.0])  # of the plane NORMAL . X = 5


def scene(on_plane: int, before: int, wrong: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    points0 = random.uniform(50, 950, (on_plane + before + wrong, 2))
    rays = np.column_stack([points0, np.ones(len(points0))]) @ np.linalg.inv(CAMERA).T
    depth = 5 / (rays @ NORMAL)
    depth[on_plane : on_plane + before] *= random.uniform(0.4, 0.8, before)
    seen = (rays * depth[:, None]) @ ROTATION.T + SHIFT
    points1 = (seen @ CAMERA.T)[:, :2] / seen[:, 2:] + random.normal(0, 0.4, points0.shape)
    points1[on_plane + before :] = random.uniform(0, 1000, (wrong, 2))
    return points0, points1


def error_of(pose) -> float:
    return max(rotation_error(pose.rotation, ROTATION), translation_error(pose.translation, SHIFT))


def test_one_of_the_plane_s_poses_is_the_true_one():
    homography = CAMERA @ (ROTATION + np.outer(SHIFT, NORMAL) / 5) @ np.linalg.inv(CAMERA)
    poses = list(poses_of_plane(homography, CAMERA, CAMERA))
    errors = [max(rotation_error(r, ROTATION), translation_error(t, SHIFT)) for r, t in poses]
    assert 2 <= len(poses) <= 4
    assert min(errors) < 1e-3
    data = correspondences(*scene(300, 40, 0), cameras=(CAMERA, CAMERA))
    fits = [support(pose, data, 1.0).sum() for pose in poses]
    assert int(np.argmax(fits)) == int(np.argmin(errors))


@pytest.mark.parametrize("seed", range(6))
def test_few_matches_off_the_plane_decide(seed):
    points0, points1 = scene(1500, 60, 100, seed)
    pose = relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator="plane"))
    assert error_of(pose) < 1.5
    assert pose.inliers[:1560].mean() > 0.95
    assert pose.inliers[1560:].mean() < 0.1


def test_a_scene_with_depth_keeps_opencv_s_pose_but_for_refinement():
    points0, points1 = scene(0, 800, 200)
    plain = relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator="opencv"))
    minding = relative_pose(points0, points1, CAMERA, CAMERA)
    assert rotation_error(plain.rotation, minding.rotation) < 0.1
    assert error_of(minding) <= error_of(plain) + 0.02
    assert error_of(minding) < 0.1


def test_too_few_matches_give_none():
    points0, points1 = scene(3, 0, 0)
    assert relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator="plane")) is None


@pytest.mark.parametrize(("depth", "shift", "fits"), [(3, -1, 1), (3, -5, 0), (-2, 5, 0), (-3, 1, 0)])
def test_a_match_supports_a_pose_only_before_both_cameras(depth, shift, fits):
    """A point at `depth` of camera 0 is at depth + shift of camera 1; the epipolar lines do not tell."""
    point0 = np.array([[0.5, -0.2, depth]])
    points0, points1 = ((p @ CAMERA.T)[:, :2] / p[:, 2:] for p in (point0, point0 + np.array([0, 0, shift])))
    data = correspondences(points0, points1, cameras=(CAMERA, CAMERA))
    pose = np.eye(3), np.array([0.0, 0, np.sign(shift)])
    assert support(pose, data, 1.0)[0] == pytest.approx(fits, abs=1e-9)


# ---- two answers


def towards_a_plane(off: int, noise: float = 0.3, seed: int = 0, moved: bool = True):
    """`off` matches before a plane towards which the camera moves, 1500 on it, 100 wrong; the true pose."""
    random = np.random.default_rng(seed)
    turn = rotation_of(np.array([0, 0.15, 0]))
    shift = np.array([-0.9, 0.2, -1.5]) if moved else np.zeros(3)
    points0 = random.uniform(300, 700, (1600 + off, 2))
    rays = np.column_stack([points0, np.ones(len(points0))]) @ np.linalg.inv(CAMERA).T
    depth = 5 / (rays @ NORMAL)
    depth[:off] *= random.uniform(0.4, 0.8, off)
    seen = (rays * depth[:, None]) @ turn.T + shift
    points1 = (seen @ CAMERA.T)[:, :2] / seen[:, 2:] + random.normal(0, noise, points0.shape)
    points1[-100:] = random.uniform(0, 1000, (100, 2))
    return points0, points1, turn, shift


@pytest.mark.parametrize("estimator", ["opencv", "poselib"])
@pytest.mark.parametrize("noise", [0.3, 1.0])
def test_a_plane_gives_both_poses_and_says_so(estimator, noise):
    points0, points1, turn, shift = towards_a_plane(0, noise)
    found = relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator=estimator, planes=True))
    assert found.degeneracy == "plane"
    assert "two answers" in found.remark
    answers = found, found.alternative
    errors = sorted(
        max(rotation_error(p.rotation, turn), translation_error(p.translation, shift, signed=True))
        for p in answers
    )
    assert errors[0] < 2.0
    assert errors[1] == pytest.approx(13.5, abs=1.5)
    for pose in answers:  # both explain what was matched
        assert pose.inliers.shape == (1600,)
        assert pose.inliers[:1500].mean() > 0.5 if noise == 1.0 else pose.inliers[:1500].mean() > 0.99
        assert pose.inliers[1500:].mean() < 0.05
        assert np.linalg.det(pose.rotation) == pytest.approx(1)
    assert found.alternative.alternative is None


@pytest.mark.parametrize("estimator", ["opencv", "poselib"])
@pytest.mark.parametrize("seed", range(3))
def test_enough_matches_off_the_plane_leave_one_answer(estimator, seed):
    points0, points1, turn, shift = towards_a_plane(40, seed=seed)
    found = relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator=estimator, planes=True))
    assert (found.degeneracy, found.alternative, found.remark) == ("", None, "")
    assert rotation_error(found.rotation, turn) < 0.2
    assert translation_error(found.translation, shift, signed=True) < 0.5


@pytest.mark.parametrize("estimator", ["opencv", "poselib"])
@pytest.mark.parametrize("seed", range(3))
def test_a_camera_that_only_turns_is_told(estimator, seed):
    points0, points1, turn, _ = towards_a_plane(0, seed=seed, moved=False)
    found = relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator=estimator, planes=True))
    assert found.degeneracy == "rotation"
    assert found.alternative is None
    assert "only turned" in found.remark
    assert rotation_error(found.rotation, turn) < 0.2


def test_a_fundamental_matrix_of_one_plane_says_so():
    options = RansacOptions(planes=True)
    flat = estimate_fundamental(*towards_a_plane(0)[:2], options)
    deep = estimate_fundamental(*towards_a_plane(200)[:2], options)
    assert (flat.degeneracy, deep.degeneracy) == ("plane", "")
    assert "one plane" in flat.remark
    assert deep.remark == ""


# ---- refinement


def test_refinement_finds_the_exact_pose_from_a_degree_away():
    points0, points1, turn, shift = towards_a_plane(600, noise=0.0)
    data = correspondences(points0[:-100], points1[:-100], cameras=(CAMERA, CAMERA))
    aside = shift / np.linalg.norm(shift) + np.array([0.01, 0.01, 0])
    start = rotation_of(np.radians([0.3, -0.2, 0.1])) @ turn, aside / np.linalg.norm(aside)
    assert rotation_error(start[0], turn) > 0.3
    assert translation_error(start[1], shift) > 0.5
    rotation, translation = refine_pose(start, data, threshold=5.0, iterations=30)
    assert rotation_error(rotation, turn) < 1e-6
    assert translation_error(translation, shift, signed=True) < 1e-5
    assert np.linalg.norm(translation) == pytest.approx(1)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-12)


def test_refinement_without_matches_near_the_pose_leaves_it():
    points0, points1, turn, shift = towards_a_plane(600, noise=0.0)
    data = correspondences(points0[:-100], points1[:-100], cameras=(CAMERA, CAMERA))
    far = rotation_of(np.radians([25.0, 0, 0])) @ turn, shift / np.linalg.norm(shift)
    rotation, translation = refine_pose(far, data, threshold=0.01)
    np.testing.assert_array_equal(rotation, far[0])
    np.testing.assert_array_equal(translation, far[1])


def test_refinement_does_not_hear_wrong_matches():
    """A third is wrong: a plain least-squares fit goes astray, the biweight stays within the noise."""
    points0, points1, turn, shift = towards_a_plane(600, noise=0.2)
    points1[:500] = np.random.default_rng(1).uniform(0, 1000, (500, 2))
    data = correspondences(points0, points1, cameras=(CAMERA, CAMERA))
    start = rotation_of(np.radians([0.05, -0.05, 0.05])) @ turn, shift / np.linalg.norm(shift)
    rotation, translation = refine_pose(start, data, threshold=1.0, iterations=30)
    assert rotation_error(rotation, turn) < 0.03
    assert translation_error(translation, shift, signed=True) < 0.15
    again, _ = refine_pose((rotation, translation), data, threshold=1.0, iterations=30)
    assert rotation_error(again, rotation) < 1e-6  # it was at the bottom


def test_rotations_about_an_axis_by_hand():
    third = rotation_of(np.array([1.0, 1, 1]) / np.sqrt(3) * np.radians(120))
    np.testing.assert_allclose(third, [[0, 0, 1], [1, 0, 0], [0, 1, 0]], atol=1e-12)  # x to y to z to x
    np.testing.assert_allclose(rotation_of(np.array([0, 0, 1e-13])) @ [1.0, 0, 0], [1, 1e-13, 0], atol=1e-20)


@pytest.mark.parametrize(("estimator", "degeneracy"), [("plane", "plane"), ("opencv", ""), ("poselib", "")])
def test_planes_are_minded_by_the_estimator_of_that_name_and_where_asked(estimator, degeneracy):
    """All matches lie on one plane: only who looks for planes can say so."""
    points0, points1, _, _ = towards_a_plane(0)
    found = relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator=estimator))
    assert found.degeneracy == degeneracy
    assert (found.alternative is not None) == (degeneracy == "plane")


@pytest.mark.parametrize("estimator", ["opencv", "poselib"])
def test_five_matches_are_the_fewest_for_a_pose(estimator):
    points0, points1, _, _ = towards_a_plane(600, noise=0.0)
    five = points0[:5], points1[:5]
    options = RansacOptions(estimator=estimator, threshold=0.5)
    found = relative_pose(*five, CAMERA, CAMERA, options)
    assert found.inliers.all()
    assert found.residuals.max() < 0.01
    assert relative_pose(*(side[:4] for side in five), CAMERA, CAMERA, options) is None


def test_a_refined_pose_costs_no_more_than_its_neighbours():
    """The cost as stated, 1 - (1 - d^2)^3 of distances in thresholds, after small turns of any kind."""
    points0, points1, turn, shift = towards_a_plane(600, noise=0.5)
    points1[:300] += np.random.default_rng(2).normal(0, 2.0, (300, 2))
    data = correspondences(points0, points1, cameras=(CAMERA, CAMERA))

    def cost(rotation, translation):
        essential = essential_from_pose(rotation, translation)
        fundamental = fundamental_from_essential(essential, CAMERA, CAMERA)
        distance = sampson_distance(points0, points1, fundamental) / 1.5
        return (1 - (1 - np.minimum(distance, 1) ** 2) ** 3).sum()

    start = rotation_of(np.radians([0.05, -0.05, 0.05])) @ turn, shift / np.linalg.norm(shift)
    rotation, translation = refine_pose(start, data, threshold=1.5, iterations=50)
    lowest = cost(rotation, translation)
    assert lowest < cost(*start)
    for axis in np.eye(3):
        for angle in (2e-4, -2e-4):
            small = rotation_of(angle * axis)
            assert cost(small @ rotation, translation) > lowest
            if abs(axis @ translation) < 0.7:
                assert cost(rotation, small @ translation) > lowest

    def cost_after(turns):  # of both, in units of 1e-4 radians
        return cost(rotation_of(1e-4 * turns[:3]) @ rotation, rotation_of(1e-4 * turns[3:]) @ translation)

    elsewhere = minimize(cost_after, np.zeros(6), method="Nelder-Mead", options={"fatol": 1e-9})
    assert lowest < elsewhere.fun + 1e-6  # there is no lower place near it


def test_how_many_missed_inliers_decide():
    """Eight, but of few inliers a quarter and of many a hundredth."""
    for count, needed in ((8, 2), (20, 5), (40, 8), (500, 8), (2000, 20)):
        missed = np.zeros(count, bool)
        missed[: needed - 1] = True
        assert not _decide(missed), count
        missed[:needed] = True
        assert _decide(missed), count


def test_what_is_no_direction_and_no_matrix():
    turn = np.eye(3)
    rotation, translation = unit_pose(turn, [[0.0], [3.0], [4.0]])
    np.testing.assert_allclose(translation, [0, 0.6, 0.8])
    assert rotation is turn
    damaged = turn.copy()
    damaged[1, 1] = np.nan
    for pose in ((turn, np.zeros(3)), (turn, [np.inf, 0, 0]), (damaged, [1, 0, 0])):
        assert unit_pose(*pose) is None
    some = np.diag([1.0, 0, 0])
    np.testing.assert_array_equal(_matrix(some), some)
    for nothing in (None, np.zeros((3, 3)), damaged, np.eye(2)):
        assert _matrix(nothing) is None


def test_support_falls_with_the_distance_in_thresholds():
    """Side by side lines are rows: 0.6 pixels off a row is a Sampson distance of 0.6 / sqrt(2)."""
    points0, points1 = np.array([[500.0, 400.0]]), np.array([[450.0, 400.6]])
    data = correspondences(points0, points1, cameras=(CAMERA, CAMERA))
    pose = np.eye(3), np.array([-1.0, 0.0, 0.0])
    for threshold in (0.5, 2.0):
        expected = 1 - (0.6 / np.sqrt(2) / (2 * threshold)) ** 2
        assert support(pose, data, threshold)[0] == pytest.approx(expected, rel=1e-6)

"""Pose from matches that lie nearly all on one plane."""

import numpy as np
import pytest

from coam.geometry.correspondences import correspondences
from coam.geometry.planar_pose import poses_of_plane, support
from coam.geometry.pose import rotation_error, translation_error
from coam.geometry.robust import RansacOptions, relative_pose

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


def test_a_scene_with_depth_keeps_opencv_s_pose():
    points0, points1 = scene(0, 800, 200)
    plain = relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator="opencv"))
    minding = relative_pose(points0, points1, CAMERA, CAMERA)
    np.testing.assert_array_equal(plain.rotation, minding.rotation)
    assert error_of(minding) < 0.5


def test_too_few_matches_give_none():
    points0, points1 = scene(3, 0, 0)
    assert relative_pose(points0, points1, CAMERA, CAMERA, RansacOptions(estimator="plane")) is None

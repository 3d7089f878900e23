"""Umeyama alignment of camera poses, and pose errors."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from coam.geometry.alignment import PoseErrors, pose_errors, robust_similarity, similarity
from support.toy_scene import Scene


def test_alignment_recovers_a_planted_similarity():
    generator = np.random.default_rng(0)
    source = generator.normal(size=(10, 3))
    turn = Rotation.random(random_state=1).as_matrix()
    scale, rotation, translation = similarity(source, 2.5 * source @ turn.T + [1, 2, 3])
    assert scale == pytest.approx(2.5)
    np.testing.assert_allclose(rotation, turn, atol=1e-9)
    np.testing.assert_allclose(translation, [1, 2, 3], atol=1e-9)


def test_wrong_cameras_do_not_spoil_the_alignment_of_the_others():
    scene = Scene(count=10)
    truth = {name: (scene.rotations[i], scene.translations[i]) for i, name in enumerate(scene.names)}
    turn = Rotation.random(random_state=2).as_matrix()
    model, shift = {}, np.array([4.0, -2.0, 7.0])
    for i, name in enumerate(scene.names):  # the same cameras in another world: X' = 0.3 turn X + shift
        rotation = scene.rotations[i] @ turn.T
        model[name] = (rotation, 0.3 * scene.translations[i] - rotation @ shift)
    flip = Rotation.from_euler("y", 100, degrees=True).as_matrix()
    for name in scene.names[:3]:
        model[name] = (model[name][0] @ flip, model[name][1] + [0.5, 0, 1.0])
    errors = pose_errors(model, truth)
    assert errors.correct() == scene.names[3:]
    assert errors.rotation[3:].max() < 1e-6
    assert errors.position[3:].max() < 1e-6


def test_cameras_in_a_row_are_aligned_by_their_own_rotations():
    generator = np.random.default_rng(0)
    truth, model = {}, {}
    turn = Rotation.random(random_state=3).as_matrix()
    for i in range(6):  # centres on a line: they say nothing about the turn around it
        rotation = Rotation.from_euler("y", generator.uniform(-20, 20), degrees=True).as_matrix()
        centre = np.array([float(i), 0.0, 0.0]) + generator.normal(0, 1e-4, 3)
        noisy = centre + generator.normal(0, 1e-3, 3)
        truth[str(i)] = (rotation, -rotation @ centre)
        model[str(i)] = (rotation @ turn.T, -rotation @ noisy)
    assert pose_errors(model, truth).rotation.max() < 0.2


def test_a_photo_is_correct_only_if_position_and_rotation_both_are():
    position, rotation = np.array([0.09, 0.11, 0.09, 0.11]), np.array([4.0, 4.0, 6.0, 6.0])
    errors = PoseErrors(("a", "b", "c", "d"), position, rotation, scene_size=2.0)
    assert errors.correct(max_position=0.05, max_rotation=5.0) == ["a"]  # 0.05 of a scene of 2 is 0.1


def test_cameras_far_from_the_origin_are_aligned_too():
    source = np.random.default_rng(0).normal((50.0, -30.0, 20.0), size=(10, 3))
    turn = Rotation.random(random_state=4).as_matrix()
    target = 0.7 * source @ turn.T + [-8.0, 1.0, 4.0]
    scale, rotation, translation = robust_similarity(source, target, np.repeat(turn[None], 10, axis=0))
    assert scale == pytest.approx(0.7)
    np.testing.assert_allclose(rotation, turn, atol=1e-9)
    np.testing.assert_allclose(translation, [-8.0, 1.0, 4.0], atol=1e-8)


def test_centres_and_rotations_of_cameras_are_weighed_as_stated():
    """Four centres say 0 degrees, the cameras' own rotations 5 about the axis on which nothing else lies.

    Centres give sum c c^T / size^2 = diag(4, 4, 0) / 8, and the rotations 0.1 for each of four cameras.
    """
    centres = np.array([[1.0, 1, 0], [-1, 1, 0], [-1, -1, 0], [1, -1, 0]])
    vote = Rotation.from_euler("z", 5, degrees=True).as_matrix()
    _, rotation, _ = robust_similarity(centres, centres, np.repeat(vote[None], 4, axis=0))
    five = np.radians(5)
    expected = np.degrees(np.arctan2(0.4 * np.sin(five), 0.5 + 0.4 * np.cos(five)))
    assert Rotation.from_matrix(rotation).as_rotvec(degrees=True) == pytest.approx([0, 0, expected], abs=1e-6)


def row_of_cameras(count=9, size=100.0, seed=0):
    """Camera centres (count, 3) of a scene of about `size`, and the rotations that all cameras vote for."""
    centres = np.random.default_rng(seed).uniform(0, size, (count, 3))
    return centres, np.repeat(np.eye(3)[None], count, axis=0)


@pytest.mark.parametrize("size", [100.0, 0.01])
def test_outliers_are_told_by_shares_of_the_scene(size):
    """Centres off by a hundredth of the scene are inliers in scenes of any size, one off by half is none."""
    centres, votes = row_of_cameras(size=size)
    noise = np.random.default_rng(1).normal(0, 0.01 * size, centres.shape)
    target = centres + noise
    target[4] += [0.5 * size, 0, 0]
    scale, rotation, translation = robust_similarity(centres, target, votes)
    kept = np.delete(np.arange(9), 4)
    expected = similarity(centres[kept], target[kept])[0]
    assert scale == pytest.approx(expected, rel=1e-9)
    placed = scale * centres @ rotation.T + translation
    assert np.linalg.norm(placed - target, axis=1)[kept].max() < 0.05 * size


def test_cameras_at_one_place_say_nothing_about_scale():
    """Twenty of 24 took photos from one spot: draws of two of these are passed over."""
    centres, votes = row_of_cameras(24)
    centres[:20] = centres[0]
    target = 3 * centres + [1, 2, 3]
    target[21] += [0, 150, 0]
    scale, rotation, translation = robust_similarity(centres, target, votes)
    assert scale == pytest.approx(3)
    np.testing.assert_allclose(rotation, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(translation, [1, 2, 3], atol=1e-6)


def test_a_mirrored_cloud_is_turned_and_not_mirrored():
    source = np.random.default_rng(2).normal(size=(20, 3)) * [3, 2, 0.1]
    scale, rotation, _ = similarity(source, source * [1, 1, -1])
    assert np.linalg.det(rotation) == pytest.approx(1)
    np.testing.assert_allclose(rotation, np.eye(3), atol=0.1)
    # The sum of what agrees less what does not, over the spread: (9 + 4 - .01) / (9 + 4 + .01), or nearly so.
    centred = source - source.mean(0)
    (xx, yy, zz) = (centred**2).sum(0)
    assert scale == pytest.approx((xx + yy - zz) / (xx + yy + zz), rel=1e-3)


def test_errors_want_three_common_photos_and_name_the_size_of_the_scene():
    scene = Scene(count=5)
    poses = {name: (scene.rotations[i], scene.translations[i]) for i, name in enumerate(scene.names)}
    few = pose_errors(dict(list(poses.items())[:2]), poses)
    assert few.names == tuple(scene.names[:2])
    assert np.isinf(few.position).all()
    assert np.isinf(few.rotation).all()
    assert few.correct() == []
    three = pose_errors(dict(list(poses.items())[:3]), poses)
    assert three.correct() == scene.names[:3]
    centres = np.array([-r.T @ t for r, t in list(poses.values())[:3]])
    assert three.scene_size == pytest.approx(np.linalg.norm(np.ptp(centres, axis=0)))
    assert pose_errors(poses, poses, scene_size=7.0).scene_size == 7.0
    assert pose_errors({}, poses).scene_size == 0.0


def test_three_cameras_that_agree_are_enough():
    centres, votes = row_of_cameras(4)
    target = 2 * centres + [0, 0, 7]
    target[2] += [0, 0, 90]
    scale, rotation, translation = robust_similarity(centres, target, votes)
    assert scale == pytest.approx(2)
    np.testing.assert_allclose(rotation, np.eye(3), atol=1e-6)
    np.testing.assert_allclose(translation, [0, 0, 7], atol=1e-6)

"""What lies off a plane, in a made-up scene whose truth is known."""

from itertools import combinations

import numpy as np
import pytest

from coam.geometry.homography import apply_homography, depth_under
from coam.geometry.parallax import _truncated_residuals, off_plane

FOCAL, SIZE = 800.0, 1000.0
OPTIONS = {"plane_tolerance": 6.0, "epipolar_tolerance": 2.0, "min_inliers": 15, "min_inlier_ratio": 0.05}


def scene(on_plane: int, before: int, wrong: int, noise: float = 0.5, seed: int = 1):
    """Matches of a plane 5 away, of points before it, and wrong ones; the homography of the plane."""
    generator = np.random.default_rng(seed)
    camera = np.array([[FOCAL, 0, SIZE / 2], [0, FOCAL, SIZE / 2], [0, 0, 1.0]])
    angle = 0.2
    rotation = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    shift = np.array([-1.0, 0.1, 0.3])
    points0 = generator.uniform(100, 900, (on_plane + before + wrong, 2))
    depth = np.full(len(points0), 5.0)
    depth[on_plane : on_plane + before] = generator.uniform(2.5, 4.0, before)
    rays = np.column_stack([points0, np.ones(len(points0))]) @ np.linalg.inv(camera).T
    seen = (rays * depth[:, None]) @ rotation.T + shift
    points1 = (seen @ camera.T)[:, :2] / seen[:, 2:] + generator.normal(0, noise, points0.shape)
    points1[on_plane + before :] = generator.uniform(0, SIZE, (wrong, 2))
    homography = camera @ (rotation + np.outer(shift, [0, 0, 1 / 5.0])) @ np.linalg.inv(camera)
    order = generator.permutation(len(points0))
    kind = np.repeat([0, 1, 2], [on_plane, before, wrong])
    return points0[order], points1[order], homography, kind[order]


def test_the_homography_is_that_of_the_plane():
    points0, points1, homography, kind = scene(50, 10, 0, noise=0.0)
    np.testing.assert_allclose(
        apply_homography(homography, points0[kind == 0]), points1[kind == 0], atol=1e-8
    )


def test_what_lies_before_the_plane_is_found_among_wrong_matches():
    points0, points1, homography, kind = scene(800, 60, 240)
    found = off_plane(points0, points1, homography, **OPTIONS)
    assert (kind[found] == 1).sum() >= 55
    assert (kind[found] != 1).sum() <= 10  # a wrong match lies near its line by chance
    assert (np.diff(found) > 0).all()


def test_nothing_is_found_where_all_is_one_plane():
    for wrong in (0, 200, 600):
        points0, points1, homography, _ = scene(800, 0, wrong)
        assert len(off_plane(points0, points1, homography, **OPTIONS)) == 0


def test_few_points_are_not_enough():
    points0, points1, homography, _ = scene(800, 14, 0)
    assert len(off_plane(points0, points1, homography, **OPTIONS)) == 0
    for before in (0, 1):  # one match gives no epipole, whoever would be content with it
        points0, points1, homography, _ = scene(30, before, 0)
        assert len(off_plane(points0, points1, homography, **OPTIONS | {"min_inliers": 1})) == 0


def test_what_lies_beyond_the_horizon_of_the_plane_is_left_out():
    """A ground plane below a camera that moves backwards: where it would be behind, nothing is claimed."""
    generator = np.random.default_rng(3)
    camera = np.array([[FOCAL, 0, SIZE / 2], [0, FOCAL, SIZE / 2], [0, 0, 1.0]])
    shift = np.array([-0.4, 0.1, 4.0])
    homography = camera @ (np.eye(3) + np.outer(shift, [0, 1.0, 0])) @ np.linalg.inv(camera)
    low = generator.uniform([100, 600], [900, 950], (60, 2))
    high = generator.uniform([100, 20], [900, 250], (60, 2))
    points0 = np.concatenate([low, high])
    rays = np.column_stack([points0, np.ones(120)]) @ np.linalg.inv(camera).T
    depth = np.concatenate(
        [0.5 / rays[:60, 1], generator.uniform(2, 4, 60)]
    )  # low: half as far as the ground
    seen = rays * depth[:, None] + shift
    points1 = (seen @ camera.T)[:, :2] / seen[:, 2:]
    assert ((depth_under(homography, points0) > 0) == np.repeat([True, False], 60)).all()
    assert off_plane(points0, points1, homography, **OPTIONS).tolist() == list(range(60))


def test_residuals_are_distances_to_the_line_of_the_epipole():
    """The lines of (1, 3) and (0, 0) to the epipole (5, 3) are y = 3 and y = 0.6 x."""
    epipole, start = np.array([[5.0, 3.0, 1.0]]), np.array([[1.0, 3, 1], [0, 0, 1], [1, 3, 1]])
    end = np.array([[9.0, 3.5, 1], [10, 5, 1], [2, 40, 1]])
    expected = [0.5 / 2, 1 / np.sqrt(1 + 0.6**2) / 2, 1.0]
    np.testing.assert_allclose(_truncated_residuals(epipole, start, end, 2.0), [expected])


@pytest.mark.parametrize("seed", [5, 33, 36])
def test_of_two_epipoles_the_one_of_lower_cost_counts(seed):
    """So few points that any two of them are tried; all that agree give another epipole, if it is better."""
    points0, points1, homography, _ = scene(30, 8, 10, seed=seed)
    options = OPTIONS | {"min_inliers": 2}
    plane = apply_homography(homography, points0)
    off = np.flatnonzero(np.linalg.norm(plane - points1, axis=1) > 6)
    start, end = (np.column_stack([xy[off] / SIZE, np.ones(len(off))]) for xy in (plane, points1))
    lines = np.cross(start, end)
    lines /= np.linalg.norm(lines[:, :2], axis=1, keepdims=True)

    def residuals(epipole):
        return _truncated_residuals(epipole[None], start, end, 2 / SIZE)[0]

    best = min((residuals(np.cross(a, b)) for a, b in combinations(lines, 2)), key=np.sum)
    for _ in range(3):
        polished = residuals(np.linalg.svd(lines[best < 1])[2][2])
        if polished.sum() >= best.sum():
            break
        best = polished
    assert off_plane(points0, points1, homography, **options).tolist() == off[best < 1].tolist()

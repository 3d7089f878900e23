"""Correspondence by depth on a rendered world whose truth is known."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from coam.data.depth import DepthOptions, DepthViews, dense_correspondences
from coam.data.sample import Draw
from coam.data.windows import square_window
from coam.geometry.depth import back_project, project, project_by_depth, relative_pose, sample_depth
from support.rendered_world import batched, camera_pose, render, true_projection

CAMERA = np.array([[150.0, 0, 99.5], [0, 150.0, 79.5], [0, 0, 1]])
WIDTH, HEIGHT = 200, 160
POSE0, POSE1 = camera_pose((-0.6, 0.05, 0), 4.0), camera_pose((0.7, 0, 0.3), -9.0)


def run(pixels: np.ndarray) -> tuple[torch.Tensor, ...]:
    (_, depth0), (_, depth1) = render(POSE0, CAMERA, WIDTH, HEIGHT), render(POSE1, CAMERA, WIDTH, HEIGHT)
    return project_by_depth(
        batched(pixels),
        batched(depth0),
        batched(CAMERA),
        batched(depth1),
        batched(CAMERA),
        relative_pose(batched(POSE0), batched(POSE1)),
    )


@pytest.fixture(scope="module")
def pixels() -> np.ndarray:
    return np.random.default_rng(0).uniform(0, (WIDTH - 1, HEIGHT - 1), (4000, 2))


def test_visible_points_land_within_a_tenth_of_a_pixel(pixels: np.ndarray) -> None:
    found = run(pixels)
    landed, visible = true_projection(POSE0, POSE1, CAMERA, pixels)
    valid = found.valid[0].numpy()
    assert valid.sum() > 1500
    error = np.linalg.norm(found.points1[0].numpy() - landed, axis=1)
    assert error[valid].max() < 0.5  # the bound asked for; the ball's rim is the worst place
    assert np.median(error[valid]) < 0.01
    assert visible[valid].mean() > 0.999


def test_hidden_points_are_rejected_and_named(pixels: np.ndarray) -> None:
    found = run(pixels)
    landed, visible = true_projection(POSE0, POSE1, CAMERA, pixels)
    inside = ((landed > 1) & (landed < [WIDTH - 2, HEIGHT - 2])).all(1)
    hidden = inside & ~visible
    assert hidden.sum() > 100  # the ball hides a piece of the wall, and its own far side
    assert not found.valid[0].numpy()[hidden].any()
    behind_ball = found.occluded[0].numpy()
    assert behind_ball.sum() > 60
    assert not visible[behind_ball].any()


def test_points_beyond_the_frame_are_outside_and_behind_is_not_known() -> None:
    depth = torch.full((1, 10, 10), 2.0)
    camera = batched(np.array([[10.0, 0, 4.5], [0, 10, 4.5], [0, 0, 1]]))
    point = torch.tensor([[[4.5, 4.5]]])
    shift = torch.eye(4)[None].clone()
    shift[0, 0, 3] = 2.0  # the point moves to x = 2, z = 2: pixel 14.5, beyond a width of 10
    found = project_by_depth(point, depth, camera, depth, camera, shift)
    assert found.points1[0, 0].tolist() == [14.5, 4.5]
    assert (bool(found.outside), bool(found.valid), bool(found.known)) == (True, False, True)
    shift[0, 0, 3], shift[0, 2, 3] = 0.0, -5.0  # now it is behind camera 1
    found = project_by_depth(point, depth, camera, depth, camera, shift)
    assert (bool(found.outside), bool(found.known)) == (True, False)


def test_inverse_depth_is_exact_on_a_slanted_plane() -> None:
    x = torch.arange(20.0).expand(16, 20)
    depth = 1.0 / (0.5 + 0.01 * x)  # a plane: inverse depth is linear in the image
    sampled = sample_depth(depth[None], torch.tensor([[[3.25, 7.5], [11.9, 0.1]]]))
    torch.testing.assert_close(sampled.depth[0], 1 / (0.5 + 0.01 * torch.tensor([3.25, 11.9])))


def test_depth_edges_holes_and_outside_are_unknown() -> None:
    depth = torch.full((1, 8, 8), 2.0)
    depth[0, :, 4:] = 3.0  # an edge between columns 3 and 4
    depth[0, 6, 1] = 0.0  # a hole
    depth[0, 1, 1] = float("nan")
    at = torch.tensor([[[3.5, 2.5], [2.5, 2.5], [1.5, 5.5], [0.5, 0.5], [-0.1, 3.0], [7.0, 7.0]]])
    assert sample_depth(depth, at).known[0].tolist() == [False, True, False, False, False, True]
    assert sample_depth(depth, at).complete[0].tolist() == [True, True, False, False, False, True]


def test_nothing_is_claimed_about_points_at_a_depth_edge_of_the_other_image() -> None:
    depth0, depth1 = torch.full((1, 8, 8), 3.0), torch.full((1, 8, 8), 3.0)
    depth1[0, :, :4] = 1.0
    camera = batched(np.array([[8.0, 0, 3.5], [0, 8, 3.5], [0, 0, 1]]))
    points = torch.tensor([[[3.5, 4.0], [1.5, 4.0], [5.5, 4.0]]])  # on the edge, behind the near part, free
    found = project_by_depth(points, depth0, camera, depth1, camera, torch.eye(4)[None])
    assert found.valid[0].tolist() == [False, False, True]
    assert found.occluded[0].tolist() == [False, True, False]


def test_projection_undoes_back_projection_with_skew() -> None:
    camera = torch.tensor([[[120.0, 3.0, 50.0], [0.0, 110.0, 40.0], [0.0, 0.0, 1.0]]])
    points = torch.tensor([[[10.0, 20.0], [77.5, 3.25]]])
    space = back_project(points, torch.tensor([[2.0, 5.0]]), camera)
    torch.testing.assert_close(project(space, camera), points)
    assert float(space[0, 1, 2]) == 5.0


def test_crops_get_true_pairs_and_true_strangers() -> None:
    (_, depth0), (_, depth1) = render(POSE0, CAMERA, WIDTH, HEIGHT), render(POSE1, CAMERA, WIDTH, HEIGHT)
    size = 96
    maps = (
        square_window(torch.tensor([[95.0, 80.0]]), torch.tensor([120.0]), torch.tensor([0.2]), size),
        square_window(torch.tensor([[90.0, 75.0]]), torch.tensor([100.0]), torch.tensor([-0.1]), size),
    )
    view0, view1 = (
        DepthViews(batched(depth), batched(CAMERA), batched(pose))
        for depth, pose in ((depth0, POSE0), (depth1, POSE1))
    )
    draw = Draw(torch.Generator().manual_seed(0), 1)
    options = DepthOptions(margin=2.0)
    found = dense_correspondences(view0, view1, maps, size, 400, draw, options)
    assert found.points0.shape == (1, 400, 2)
    assert found.valid.sum() == 300  # enough candidates: every row reserved for a pair holds one
    assert not (found.valid & (found.unmatched0 | found.unmatched1)).any()
    to_photo = [m[0].numpy() for m in maps]

    def photo(points: torch.Tensor, k: int) -> np.ndarray:
        return points.numpy() @ to_photo[k][:, :2].T + to_photo[k][:, 2]

    truth, visible = true_projection(POSE0, POSE1, CAMERA, photo(found.points0[0][found.valid[0]], 0))
    error = np.linalg.norm(photo(found.points1[0][found.valid[0]], 1) - truth, axis=1)
    assert error.max() < 0.5
    assert visible.mean() > 0.99
    for k, (points, mask, here, there) in enumerate(
        [(found.points0, found.unmatched0, POSE0, POSE1), (found.points1, found.unmatched1, POSE1, POSE0)]
    ):
        assert mask.sum() > 40
        landed, visible = true_projection(here, there, CAMERA, photo(points[0][mask[0]], k))
        inverse = np.linalg.inv(np.vstack([to_photo[1 - k], [0, 0, 1]]))
        in_crop = landed @ inverse[:2, :2].T + inverse[:2, 2]
        shown = visible & ((in_crop >= 0) & (in_crop <= size - 1)).all(1)
        assert not shown.any()

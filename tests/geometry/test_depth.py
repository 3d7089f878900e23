"""Depth between pixels and projection by hand; on a rendered world: tests/data/test_depth.py."""

from __future__ import annotations

import pytest
import torch

from coam.geometry.depth import (
    back_project,
    intrinsics_matrix,
    project,
    project_by_depth,
    relative_pose,
    sample_depth,
)

CAMERA = intrinsics_matrix(torch.tensor([[10.0, 10.0, 4.5, 4.5]]))


def test_camera_matrices_by_hand() -> None:
    found = intrinsics_matrix(torch.tensor([[500.0, 510.0, 320.0, 240.0], [1.0, 2.0, 3.0, 4.0]]))
    assert found.tolist() == [[[500, 0, 320], [0, 510, 240], [0, 0, 1]], [[1, 0, 3], [0, 2, 4], [0, 0, 1]]]


def test_relative_pose_takes_camera_0_to_camera_1() -> None:
    quarter = torch.tensor([[0.0, -1, 0], [1, 0, 0], [0, 0, 1]])
    pose0 = torch.cat([torch.eye(3), torch.tensor([[1.0], [2], [3]])], dim=1)[None]
    pose1 = torch.cat([quarter, torch.tensor([[0.0], [0], [5]])], dim=1)[None]
    point = torch.tensor([0.5, -1.0, 2.0])
    at0, at1 = point + torch.tensor([1.0, 2, 3]), quarter @ point + torch.tensor([0.0, 0, 5])
    found = relative_pose(pose0, pose1)
    assert found.shape == (1, 4, 4)
    torch.testing.assert_close(found[0] @ torch.cat([at0, torch.ones(1)]), torch.cat([at1, torch.ones(1)]))


def test_inverse_depth_between_four_neighbours_by_hand() -> None:
    depth = torch.tensor([[[1.0, 1.02], [1.03, 1.04]]])
    found = sample_depth(
        depth, torch.tensor([[[0.25, 0.75], [0.0, 0.0], [1.0, 1.0], [1.01, 0.5], [0.5, 1.01]]])
    )
    inverse = 0.75 * 0.25 / 1 + 0.25 * 0.25 / 1.02 + 0.75 * 0.75 / 1.03 + 0.25 * 0.75 / 1.04
    assert found.depth[0].tolist() == pytest.approx([1 / inverse, 1.0, 1.04, 0, 0])
    assert found.known[0].tolist() == [True, True, True, False, False]  # the last two are beyond the map
    assert found.nearest[0, :3].tolist() == pytest.approx([1.0] * 3)
    assert found.farthest[0, :3].tolist() == pytest.approx([1.04] * 3)


def test_the_largest_step_that_is_no_edge() -> None:
    depth = torch.tensor([[[2.0, 2.2, 2.5]]])
    points = torch.tensor([[[0.5, 0.0], [1.5, 0.0]]])  # one row: its neighbours above and below are itself
    assert sample_depth(depth, points, edge=0.11).known[0].tolist() == [True, False]
    assert sample_depth(depth, points, edge=0.09).known[0].tolist() == [False, False]
    assert sample_depth(depth, points, edge=0.14).known[0].tolist() == [True, True]
    upright = sample_depth(depth.transpose(1, 2), torch.tensor([[[0.0, 0.5], [0.0, 2.0]]]), edge=0.14)
    assert upright.depth[0].tolist() == pytest.approx([2 / (1 / 2.0 + 1 / 2.2), 2.5])
    one = sample_depth(torch.tensor([[[3.0]]]), torch.tensor([[[0.0, 0.0]]]))
    assert (one.depth.item(), one.known.item()) == (3.0, True)


def test_points_on_the_plane_of_the_camera_have_finite_pixels() -> None:
    found = project(torch.tensor([[[1.0, 1.0, 0.0], [1.0, 2.0, 4.0]]]), CAMERA)
    assert torch.isfinite(found).all()
    assert found[0, 1].tolist() == [7.0, 9.5]
    space = back_project(torch.tensor([[[7.0, 9.5]]]), torch.tensor([[4.0]]), CAMERA)
    assert space[0, 0].tolist() == [1.0, 2.0, 4.0]


@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize(("shift", "seen"), [(-0.99, True), (-1.01, False), (0.99, True), (1.01, False)])
def test_the_frame_ends_half_a_pixel_beyond_the_outermost_centres(axis, shift, seen) -> None:
    """The middle of 10 x 10 pixels at depth 2 and focal length 10: a shift of 1 is 5 pixels, to the edge."""
    depth, transform = torch.full((1, 10, 10), 2.0), torch.eye(4)[None].clone()
    transform[0, axis, 3] = shift
    found = project_by_depth(torch.tensor([[[4.5, 4.5]]]), depth, CAMERA, depth, CAMERA, transform)
    assert bool(found.outside) is not seen
    assert bool(found.known)


@pytest.mark.parametrize(
    ("depth1", "valid", "occluded"),
    [(2.05, True, False), (2.07, False, False), (1.95, True, False), (1.93, False, True)],
)
def test_agreement_within_three_percent(depth1: float, valid: bool, occluded: bool) -> None:
    depth0, other = torch.full((1, 10, 10), 2.0), torch.full((1, 10, 10), depth1)
    found = project_by_depth(torch.tensor([[[4.5, 4.5]]]), depth0, CAMERA, other, CAMERA, torch.eye(4)[None])
    assert (bool(found.valid), bool(found.occluded)) == (valid, occluded)


def test_a_point_without_depth_is_seen_nowhere() -> None:
    """Its place in space would be camera 0 itself, which photo 1 shows at just that depth."""
    depth0, depth1 = torch.zeros(1, 10, 10), torch.full((1, 10, 10), 2.0)
    transform = torch.eye(4)[None].clone()
    transform[0, 2, 3] = 2.0
    found = project_by_depth(torch.tensor([[[4.5, 4.5]]]), depth0, CAMERA, depth1, CAMERA, transform)
    assert not any(bool(flag) for flag in (found.valid, found.occluded, found.outside, found.known))

"""Losses from camera poses: zero at the truth, growing with the error, and with correct gradients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from coam.capsnet import losses as epi
from coam.geometry.epipolar import epipolar_distances, fundamental_from_pose

CAMERA = np.array([[80.0, 0, 31.5], [0, 80.0, 31.5], [0, 0, 1]])


def two_views() -> tuple[Tensor, Tensor, Tensor]:
    """Projections (1, L, 2), (1, L, 2) of random points in two cameras, and F (1, 3, 3)."""
    rng = np.random.default_rng(3)
    world = np.c_[rng.uniform(-1, 1, (40, 2)), rng.uniform(3, 6, 40)]
    angle = 0.2
    rotation = np.array([[np.cos(angle), 0, np.sin(angle)], [0, 1, 0], [-np.sin(angle), 0, np.cos(angle)]])
    pose = np.eye(4)
    pose[:3, :3], pose[:3, 3] = rotation, (-0.8, 0.1, 0.2)
    moved = world @ rotation.T + pose[:3, 3]
    points0, points1 = ((p / p[:, 2:]) @ CAMERA.T for p in (world, moved))
    fundamental = fundamental_from_pose(CAMERA, CAMERA, pose)
    tensors = [torch.from_numpy(np.asarray(a))[None] for a in (points0[:, :2], points1[:, :2], fundamental)]
    return tensors[0], tensors[1], tensors[2]


def test_true_matches_lie_on_their_lines_and_shifted_ones_as_far_off_as_geometry_says() -> None:
    points0, points1, fundamental = two_views()
    assert epi.epipolar_distance(points0, points1, fundamental).max() < 1e-9
    shifted = points1 + torch.tensor([1.5, -2.0], dtype=torch.float64)
    expected = epipolar_distances(points0[0].numpy(), shifted[0].numpy(), fundamental[0].numpy())[1]
    found = epi.epipolar_distance(points0, shifted, fundamental)[0].numpy()
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    back = epi.epipolar_distance(points1, points0, fundamental.transpose(1, 2))
    assert back.max() < 1e-9


def test_distance_by_hand() -> None:
    """A camera that moves along x: lines are rows, and the distance is the difference of y."""
    fundamental = torch.tensor([[[0.0, 0, 0], [0, 0, -1], [0, 1, 0]]])
    points0, points1 = torch.tensor([[[10.0, 20.0]]]), torch.tensor([[[70.0, 23.5]]])
    assert epi.epipolar_distance(points0, points1, fundamental).item() == pytest.approx(3.5)


def test_losses_are_zero_at_the_truth_and_grow_with_planted_error() -> None:
    points0, points1, fundamental = two_views()
    across = torch.tensor([0.0, 1.0], dtype=torch.float64)  # the camera moves mostly along x
    mask, spread = torch.ones(1, 40, dtype=torch.bool), torch.ones(1, 40, dtype=torch.float64)
    losses = []
    for shift in (0.0, 1.0, 2.0, 4.0):
        distance = epi.epipolar_distance(points0, points1 + shift * across, fundamental)
        cycle = epi.cycle_loss(points0, points0 + shift * across, spread, mask, 64.0)
        assert cycle.item() == pytest.approx(shift / 64, abs=1e-5)
        losses.append(epi.epipolar_loss(distance, spread, mask, 64.0).item())
    assert losses[0] < 1e-9
    assert losses[0] < losses[1] < losses[2] < losses[3]
    assert losses[2] == pytest.approx(2 * losses[1], rel=1e-6)


def test_outliers_and_masked_points_do_not_count() -> None:
    distance, spread = torch.tensor([[1.0, 3.0, 40.0, 5.0]]), torch.ones(1, 4)
    mask = torch.tensor([[True, True, True, False]])
    assert epi.epipolar_loss(distance, spread, mask, 100.0).item() == pytest.approx(0.02)  # 40 > 0.3 * 100
    assert epi.epipolar_loss(distance, spread, torch.zeros_like(mask), 100.0).item() == 0.0
    points = torch.zeros(1, 2, 2)
    returned = torch.tensor([[[3.0, 4.0], [30.0, 40.0]]])
    cycle = epi.cycle_loss(points, returned, torch.ones(1, 2), torch.ones(1, 2, dtype=torch.bool), 100.0)
    assert cycle.item() == pytest.approx(0.025)  # the second, 50 px off, counts as zero: (5 + 0) / 2 / 100


def test_sure_points_weigh_more_and_the_weights_carry_no_gradient() -> None:
    cost = torch.tensor([[1.0, 4.0]], requires_grad=True)
    spread = torch.tensor([[1.0, 3.0]], requires_grad=True)
    mean = epi.sure_mean(cost, spread, torch.ones(1, 2, dtype=torch.bool))
    assert mean.item() == pytest.approx((1.0 * 1 + 4.0 / 3) / (1 + 1 / 3))
    mean.backward()
    assert spread.grad is None
    assert cost.grad is not None
    np.testing.assert_allclose(cost.grad.numpy(), [[0.75, 0.25]], rtol=1e-6)


def test_expected_position_by_hand() -> None:
    """Half the weight each on the cells (row 1, column 0) and (row 1, column 2) of a map of stride 4."""
    logits = torch.full((1, 1, 3, 4), -1e4)
    logits[0, 0, 1, 0] = logits[0, 0, 1, 2] = 5.0
    mean, spread = epi.expected_position(logits, 4)
    assert mean[0, 0].tolist() == pytest.approx([5.5, 5.5])  # x: (1.5 + 9.5) / 2, y: centre of row 1
    assert spread.item() == pytest.approx(4.0, abs=1e-3)  # 4 in x, 0 in y
    assert epi.best_position(logits, 4)[0, 0].tolist() == [1.5, 5.5]


def test_expected_position_of_a_uniform_map_is_its_middle() -> None:
    mean, spread = epi.expected_position(torch.zeros(1, 1, 6, 8), 16)
    assert mean[0, 0].tolist() == pytest.approx([63.5, 47.5])
    x, y = ((np.arange(n) + 0.5) * 16 for n in (8, 6))
    assert spread.item() == pytest.approx(float(x.std() + y.std()), rel=1e-5)


def test_the_window_keeps_exactly_the_near_cells() -> None:
    logits = torch.zeros(1, 3, 8, 8)
    centre = torch.tensor([[[15.5, 15.5], [0.0, 0.0], [100.0, 15.5]]])
    kept = epi.keep_window(logits, centre, 4, 8.0) == 0
    assert kept[0, 0].sum() == 16  # centres 9.5, 13.5, 17.5, 21.5 both ways
    assert kept[0, 1, :3, :3].all()
    assert kept[0, 1].sum() == 9  # 1.5, 5.5, 9.5: as near to the corner cell's centre
    assert kept[0, 2, :, :5].sum() == 0  # a centre outside the image takes the border's window
    assert kept[0, 2].any()
    tight = epi.keep_window(logits, centre, 4, 0.1) == 0
    assert tight.flatten(2).any(dim=-1).all()  # never empty


def test_gradients_of_the_whole_chain() -> None:
    """From features over expected position and back to both losses, against finite differences."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.rand(*shape, generator=generator, dtype=torch.float64)  # noqa: E731
    query = draw(2, 5, 4).requires_grad_()
    feature_map = draw(2, 4, 3, 4).requires_grad_()
    points, fundamental = draw(2, 5, 2) * 16, draw(2, 3, 3)
    mask = torch.ones(2, 5, dtype=torch.bool)

    weight = torch.ones(2, 5, dtype=torch.float64)  # the weights are detached, so they must not vary here

    def both(query: Tensor, feature_map: Tensor) -> Tensor:
        found, spread = epi.expected_position(epi.similarities(query, feature_map, 2.0), 4)
        distance = epi.epipolar_distance(points, found, fundamental)
        cycle = epi.cycle_loss(points, found, weight, mask, 16.0, limit=100.0)
        return epi.epipolar_loss(distance, weight, mask, 16.0, limit=100.0) + cycle + spread.mean()

    assert torch.autograd.gradcheck(both, (query, feature_map))


def test_gradients_stay_finite_where_everything_is_perfect() -> None:
    logits = torch.full((1, 2, 4, 4), -1e4)
    logits[0, :, 1, 1] = 1e4  # no spread at all
    logits.requires_grad_()
    found, spread = epi.expected_position(logits, 4)
    mask = torch.ones(1, 2, dtype=torch.bool)
    loss = epi.cycle_loss(found.detach(), found, spread, mask, 16.0) + spread.sum()
    loss.backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()

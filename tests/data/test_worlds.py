"""Planar worlds: correspondences against geometry computed another way, and against the rendered colours."""

from __future__ import annotations

import math

import cv2
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from coam.data.photo_bank import BankPart, PhotoBank, pack_bank
from coam.data.sample import Draw, PairBatch
from coam.data.worlds import (
    World,
    WorldConfig,
    WorldPairs,
    _camera_around,
    _image_from_plane,
    _looking_at,
    follow,
    inverse,
    random_cells,
    render,
    rotation,
)
from coam.losses.correspondence import sample as sample_map

SIZE = 96


@pytest.fixture(scope="module")
def bank() -> PhotoBank:
    """Smooth random textures with detail at several scales."""
    generator = torch.Generator().manual_seed(0)
    photos = torch.zeros(6, 3, 128, 128)
    for cells in (4, 8, 16):
        noise = torch.rand(6, 3, cells, cells, generator=generator)
        photos += F.interpolate(noise, size=(128, 128), mode="bicubic", align_corners=False)
    photos = (photos / 3).clamp(0, 1) * 255
    return pack_bank([BankPart(photos.to(torch.uint8), [[i] for i in range(6)])])


def draw(bank: PhotoBank, seed: int = 0, batch: int = 4, **config: object) -> PairBatch:
    pairs = WorldPairs(bank, WorldConfig(**config))  # type: ignore[arg-type]
    return pairs.sample(batch, SIZE, 256, torch.Generator().manual_seed(seed))


def build(bank: PhotoBank, seed: int, batch: int, **config: object) -> World:
    pairs = WorldPairs(bank, WorldConfig(**config))  # type: ignore[arg-type]
    return pairs.build(batch, SIZE, torch.Generator().manual_seed(seed))[0]


def test_inverse_agrees_with_the_library() -> None:
    matrices = torch.randn(50, 2, 3, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    assert torch.allclose(inverse(matrices), torch.linalg.inv(matrices), rtol=1e-7, atol=1e-9)


def test_rotation_is_a_rotation_with_the_angles_in_order() -> None:
    yaw, pitch, roll = torch.tensor([0.3]), torch.tensor([-0.5]), torch.tensor([1.1])
    turn = rotation(yaw, pitch, roll)
    assert torch.allclose(turn @ turn.mT, torch.eye(3).unsqueeze(0), atol=1e-6)
    assert float(torch.linalg.det(turn)) == pytest.approx(1.0, abs=1e-6)
    quarter = rotation(torch.tensor([math.pi / 2]), torch.zeros(1), torch.zeros(1))
    assert torch.allclose(
        quarter[0] @ torch.tensor([0.0, 0.0, 1.0]), torch.tensor([1.0, 0.0, 0.0]), atol=1e-6
    )


def test_a_camera_sees_its_target_in_the_middle_and_down_is_down() -> None:
    centre, target = torch.tensor([[1.0, -2.0, -3.0]]), torch.tensor([[0.5, 0.2, 4.0]])
    camera = _looking_at(centre, target, torch.zeros(1), torch.tensor([70.0]), SIZE)

    def project(point: Tensor) -> Tensor:
        ray = camera.intrinsics[0] @ camera.rotation[0] @ (point - camera.centre[0])
        assert ray[2] > 0
        return ray[:2] / ray[2]

    assert torch.allclose(project(target[0]), torch.full((2,), (SIZE - 1) / 2), atol=1e-3)
    assert project(target[0] + torch.tensor([0.0, 0.5, 0.0]))[1] > (SIZE - 1) / 2 + 2


def test_plane_points_are_projected_like_any_3d_point() -> None:
    draws = Draw(torch.Generator().manual_seed(3), 2)
    camera = _camera_around(draws, WorldConfig(scene="world"), SIZE)
    origin, u, v = (draws.normal(1, 3) for _ in range(3))
    matrix = _image_from_plane(camera, origin, u, v)
    a, b = 0.3, -0.7
    for pair in range(2):
        point = (origin + a * u + b * v)[pair, 0].double()
        ray = camera.rotation[pair].double() @ (point - camera.centre[pair].double())
        expected = camera.intrinsics[pair].double() @ ray
        got = matrix[pair, 0].double() @ torch.tensor([a, b, 1.0], dtype=torch.float64)
        assert torch.allclose(got, expected, atol=1e-3)


def test_a_plane_is_a_homography(bank: PhotoBank) -> None:
    batch = draw(bank, seed=2, elastic_share=0.0)
    assert batch.valid.float().mean() > 0.15
    for pair in range(4):
        valid = batch.valid[pair]
        source, target = batch.points0[pair][valid].numpy(), batch.points1[pair][valid].numpy()
        assert len(source) >= 20
        # Fitted to one half of the points, it must predict the other half.
        matrix, _ = cv2.findHomography(source[::2].astype(np.float64), target[::2].astype(np.float64), 0)
        predicted = cv2.perspectiveTransform(source[1::2].astype(np.float64).reshape(-1, 1, 2), matrix)
        assert np.abs(predicted.reshape(-1, 2) - target[1::2]).max() < 0.02


def test_the_rendered_views_follow_that_homography(bank: PhotoBank) -> None:
    world = build(bank, seed=4, batch=2, elastic_share=0.0)
    views = [render(world, bank, SIZE, view) for view in (0, 1)]
    for pair in range(2):
        forward = world.image_from_plane[:, pair, 0].double()
        matrix = (forward[1] @ torch.linalg.inv(forward[0])).numpy()
        image = views[0][pair].permute(1, 2, 0).numpy()
        warped = cv2.warpPerspective(image, matrix, (SIZE, SIZE), borderValue=(-9, -9, -9))
        common = cv2.erode((warped.min(axis=2) >= 0).astype(np.uint8), np.ones((7, 7))) > 0
        truth = views[1][pair].permute(1, 2, 0).numpy()
        assert common.mean() > 0.1
        assert np.abs(warped - truth)[common].mean() < 0.02
        shifted = np.roll(warped, 4, axis=1)
        assert np.abs(shifted - truth)[common].mean() > 3 * np.abs(warped - truth)[common].mean()


@pytest.mark.parametrize("elastic_share", [0.0, 1.0])
def test_visible_points_have_one_colour(bank: PhotoBank, elastic_share: float) -> None:
    batch = draw(bank, seed=5, batch=6, scene="world", elastic_share=elastic_share)
    assert batch.valid.float().mean() > 0.1

    def difference(shift: float) -> float:
        colour0 = sample_map(batch.image0, batch.points0, 1)
        colour1 = sample_map(batch.image1, batch.points1 + torch.tensor([shift, 0.0]), 1)
        return float((colour0 - colour1).abs().mean(dim=-1)[batch.valid].mean())

    assert difference(0.0) < 0.025
    assert difference(6.0) > 3 * difference(0.0)
    assert difference(-6.0) > 3 * difference(0.0)


def nearest_plane(world: World, view: int, pair: int, pixel: np.ndarray) -> tuple[int, float]:
    """The plane that a pixel shows and its depth, by solving for every plane in float64."""
    best = (-1, np.inf)
    for plane in range(world.reach.shape[1]):
        matrix = world.image_from_plane[view, pair, plane].double().numpy()
        a, b, scale = np.linalg.solve(matrix, [*pixel, 1.0])
        if scale > 0 and max(abs(a / scale), abs(b / scale)) <= float(world.reach[pair, plane]):
            depth = 1.0 / scale
            if depth < best[1]:
                best = (plane, depth)
    return best


def test_gone_points_are_hidden_or_outside_and_visible_ones_are_not(bank: PhotoBank) -> None:
    world = build(bank, seed=6, batch=2, scene="world", elastic_share=0.0)
    points = random_cells(2, SIZE, 150, torch.Generator().manual_seed(7))
    positions, visible, gone = follow(world, points, SIZE, 0)
    assert not (visible & gone).any()
    hidden = outside = seen = 0
    for pair in range(2):
        for k in range(points.shape[1]):
            if not (visible[pair, k] or gone[pair, k]):
                continue
            pixel = points[pair, k].double().numpy()
            plane, _ = nearest_plane(world, 0, pair, pixel)
            matrices = world.image_from_plane[:, pair, plane].double().numpy()
            x, y, depth = matrices[1] @ np.linalg.solve(matrices[0], [*pixel, 1.0])
            other = np.array([x, y]) / depth
            behind = depth * (1.0 / np.linalg.solve(matrices[0], [*pixel, 1.0])[2]) < 0
            in_frame = not behind and (other >= 0).all() and (other <= SIZE - 1).all()
            first, _ = nearest_plane(world, 1, pair, other) if in_frame else (-1, 0.0)
            if visible[pair, k]:
                assert np.abs(positions[pair, k].numpy() - other).max() < 0.05
                assert in_frame
                assert first == plane
                seen += 1
            elif in_frame:
                assert first != plane
                hidden += 1
            else:
                outside += 1
    assert min(seen, hidden, outside) >= 3


def test_there_and_back_again_through_a_bent_view(bank: PhotoBank) -> None:
    world = build(bank, seed=8, batch=3, scene="world", elastic_share=1.0)
    points = random_cells(3, SIZE, 200, torch.Generator().manual_seed(9))
    found, visible, _ = follow(world, points, SIZE, 0)
    back, visible_back, _ = follow(world, found, SIZE, 1)
    both = visible & visible_back
    assert both.float().mean() > 0.1
    assert (back - points).abs().amax(dim=-1)[both].quantile(0.99) < 0.05


def test_points_are_different_grid_positions(bank: PhotoBank) -> None:
    points = random_cells(2, 32, 100, torch.Generator().manual_seed(0))
    assert points.shape == (2, 100, 2)
    assert ((points - 1.5) % 4 == 0).all()
    assert len({tuple(p) for p in points[0, :64].tolist()}) == 64  # there are no more, so they come again
    assert torch.equal(points[:, 64:], points[:, :36])


def test_one_seed_one_batch(bank: PhotoBank) -> None:
    first, second, third = (draw(bank, seed=s, batch=2, scene="world") for s in (1, 1, 2))
    for name in ("image0", "image1", "points0", "points1", "valid", "unmatched0", "unmatched1"):
        assert torch.equal(getattr(first, name), getattr(second, name))
    assert not torch.equal(first.image0, third.image0)


def test_groups_are_shown_to_the_two_cameras_and_chosen_by_weight() -> None:
    colours = torch.tensor([[10, 10, 10], [90, 90, 90], [170, 170, 170]], dtype=torch.uint8)
    photos = colours.view(3, 3, 1, 1).expand(3, 3, 16, 16).contiguous()
    parts = [BankPart(photos[:2], [[0, 1]], tolerance=0.01, light=0.3), BankPart(photos[2:], [[0]])]
    pairs = WorldPairs(pack_bank(parts), WorldConfig(), torch.tensor([1.0, 0.0]))
    batch = pairs.sample(8, 32, 16, torch.Generator().manual_seed(0))
    values = torch.stack([batch.image0, batch.image1]).mean(dim=(2, 3, 4)) * 255
    assert torch.allclose(values.sum(dim=0), torch.full((8,), 100.0), atol=0.5)  # one member each, never two
    assert batch.tolerance.tolist() == pytest.approx([0.32] * 8)
    assert batch.light is not None
    assert batch.light.tolist() == pytest.approx([0.3] * 8)

"""Posed pairs: what the cameras say must hold for what the pictures show."""

from __future__ import annotations

import cv2
import numpy as np
import pytest
import torch

from coam import samples
from coam.capsnet.losses import epipolar_distance
from coam.capsnet.pairs import (
    QueryOptions,
    Views,
    WorldPoses,
    can_be_seen,
    draw_queries,
    fundamental_matrix,
    keypoint_response,
)
from coam.data.photo_bank import BankPart, PhotoBank, pack_bank
from coam.data.worlds import WorldConfig, WorldPairs, follow, random_cells
from coam.geometry.epipolar import fundamental_from_pose
from coam.geometry.pose import relative_pose_matrix
from coam.tensors import times
from support.posed_views import CAMERA, HEIGHT, POSE0, POSE1, WIDTH, generator
from support.rendered_world import camera_pose, true_projection


def views(pose0: np.ndarray = POSE0, pose1: np.ndarray = POSE1) -> Views:
    matrix = torch.from_numpy(CAMERA).float()[None]
    transform = torch.from_numpy(relative_pose_matrix(pose0, pose1)).float()[None]
    return Views(matrix, matrix, transform)


# ---- geometry


def test_fundamental_matrix_agrees_with_numpy_and_swapping_transposes_it() -> None:
    found = fundamental_matrix(views())[0].double().numpy()
    expected = fundamental_from_pose(CAMERA, CAMERA, relative_pose_matrix(POSE0, POSE1))
    sign = np.sign((found * expected).sum())
    np.testing.assert_allclose(found * sign, expected, atol=1e-6)
    back = fundamental_matrix(views().swapped())[0].double().numpy()
    sign = np.sign((back * expected.T).sum())
    np.testing.assert_allclose(back * sign, expected.T, atol=1e-6)


def test_written_out_products_are_products() -> None:
    first, second = torch.randn(4, 2, 3, 3), torch.randn(4, 1, 3, 5)
    assert torch.allclose(times(first, second), first @ second, atol=1e-5)


def test_every_truly_visible_point_is_thought_possible() -> None:
    x, y = np.meshgrid(np.arange(5.0, WIDTH, 10), np.arange(5.0, HEIGHT, 10))
    pixels = np.stack([x.ravel(), y.ravel()], axis=-1)
    landed, seen = true_projection(POSE0, POSE1, CAMERA, pixels)
    size = 160  # a square picture: of the frame, what is left of x = 160
    inside = seen & (landed >= 0).all(1) & (landed <= size - 1).all(1)
    possible = can_be_seen(torch.from_numpy(pixels).float()[None], views(), size)[0].numpy()
    assert inside.sum() > 100
    assert possible[inside].all()


def test_points_that_no_depth_brings_into_the_picture_are_pruned() -> None:
    """A camera that moves right by 1: a point moves left along its row, from its own place at infinity."""
    moved = camera_pose((1.0, 0, 0), 0.0)
    geometry = views(camera_pose((0, 0, 0), 0.0), moved)
    points = torch.tensor([[[100.0, 50.0], [100.0, 150.0], [10.0, 50.0], [300.0, 50.0], [500.0, 50.0]]])
    # Picture 1 ends at 127. Row 150 is outside; 300 comes in at 150 / depth > 173; 500 would need depth 0.4.
    assert can_be_seen(points, geometry, 128)[0].tolist() == [True, False, True, True, False]
    turned = views(camera_pose((0, 0, 0), 0.0), camera_pose((0.1, 0, 0), 170.0))
    assert not can_be_seen(points, turned, 128).any()  # it looks the other way


# ---- queries


def test_keypoints_are_where_sift_would_find_blobs() -> None:
    image = torch.zeros(1, 3, 64, 64)
    yy, xx = torch.meshgrid(torch.arange(64.0), torch.arange(64.0), indexing="ij")
    for x, y in ((20, 30), (45, 12)):
        image += torch.exp(-((xx - x) ** 2 + (yy - y) ** 2) / (2 * 1.6**2))
    response = keypoint_response(image)[0]
    strongest = response.flatten().topk(2).indices
    assert {(int(i) % 64, int(i) // 64) for i in strongest} == {(20, 30), (45, 12)}
    queries = draw_queries(image, 60, generator(), QueryOptions(keypoints=0.5))[0]
    assert len(queries) == 60
    near = [(queries[:30] - torch.tensor(p)).abs().amax(dim=1).min() for p in ([20.0, 30.0], [45.0, 12.0])]
    assert max(near) == 0


def test_queries_prefer_keypoints_and_are_all_different() -> None:
    photo = torch.from_numpy(cv2.imread(str(samples.courtyard().image("day_04")))[None, ..., ::-1].copy())
    image = photo.permute(0, 3, 1, 2)[..., :384, :384].float() / 255
    queries = draw_queries(image, 400, generator())
    keypoints = queries[0, :360]
    assert len({tuple(p) for p in keypoints.tolist()}) == 360
    response = keypoint_response(image)[0]
    strength = response[keypoints[:, 1].long(), keypoints[:, 0].long()]
    assert (strength > 0).float().mean() > 0.98
    assert float(queries.min()) >= 0
    assert float(queries.max()) <= 383
    flat = draw_queries(torch.full((1, 3, 32, 32), 0.5), 100, generator())  # no keypoint at all
    assert flat.shape == (1, 100, 2)
    assert flat[0, :90].std(dim=0).min() > 6  # spread over the picture


# ---- sources


@pytest.fixture(scope="module")
def bank() -> PhotoBank:
    photos = torch.randint(0, 256, (3, 3, 64, 64), generator=generator(), dtype=torch.uint8)
    return pack_bank([BankPart(photos, [[0], [1], [2]], light=0.25)])


@pytest.mark.parametrize("scene", ["plane", "world"])
def test_true_matches_of_worlds_lie_on_their_epipolar_lines(bank: PhotoBank, scene: str) -> None:
    config = WorldConfig(scene=scene, elastic_share=1.0)  # type: ignore[arg-type]
    source = WorldPoses(bank, config)
    batch = source.sample(6, 96, 64, generator(4))
    # The same draw again, for what the world itself knows.
    straight = WorldPairs(bank, WorldConfig(scene=scene, elastic_share=0.0))  # type: ignore[arg-type]
    world, _ = straight.build(6, 96, generator(4))
    points0 = random_cells(6, 96, 200, generator(5))
    points1, visible, _ = follow(world, points0, 96, 0)
    distance = epipolar_distance(points0, points1, batch.fundamental)
    assert visible.float().mean() > 0.2
    assert distance[visible].max() < 0.05
    geometry = source_views(world)
    assert can_be_seen(points0, geometry, 96)[visible].all()
    assert batch.light is not None
    assert batch.light.tolist() == [0.25] * 6
    assert batch.valid0.float().mean() > 0.4


def source_views(world: object) -> Views:
    first, second = world.cameras  # type: ignore[attr-defined]
    transform = torch.eye(4).repeat(len(first.centre), 1, 1)
    transform[:, :3, :3] = second.rotation @ first.rotation.mT
    transform[:, :3, 3:] = second.rotation @ (first.centre - second.centre).unsqueeze(-1)
    return Views(first.intrinsics, second.intrinsics, transform)

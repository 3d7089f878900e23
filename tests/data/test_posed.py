"""Posed pairs: what the cameras say must hold for what the pictures show."""

from __future__ import annotations

import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image
from rendered_world import camera_pose, cast, true_projection
from test_megadepth import CAMERA as MEGADEPTH_CAMERA
from test_megadepth import POSES as MEGADEPTH_POSES
from test_megadepth import write_scene
from torch import Tensor

from coam import samples
from coam.data.bank import BankPart, PhotoBank, pack_bank
from coam.data.posed import (
    PosedBatch,
    PosedIngredient,
    PosedMixture,
    QueryOptions,
    Views,
    WorldPoses,
    can_be_seen,
    draw_queries,
    fundamental_matrix,
    keypoint_response,
    times,
)
from coam.data.posed_photos import (
    MegaDepthPoses,
    PosedChoice,
    PosedPairList,
    PosedPhotos,
    pairs_from_colmap,
    pairs_from_list,
)
from coam.data.windows import CropOptions
from coam.data.worlds import WorldConfig, WorldPairs, follow, random_cells
from coam.errors import ConfigError, DataError
from coam.geometry.epipolar import fundamental_from_pose
from coam.geometry.pose import relative_pose_matrix
from coam.losses.epipolar import epipolar_distance

CAMERA = np.array([[150.0, 0, 99.5], [0, 150.0, 79.5], [0, 0, 1]])
WIDTH, HEIGHT = 200, 160
POSE0, POSE1 = camera_pose((-0.4, 0, 0), 3.0), camera_pose((0.5, 0.1, 0.1), -6.0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def views(pose0: np.ndarray = POSE0, pose1: np.ndarray = POSE1) -> Views:
    matrix = torch.from_numpy(CAMERA).float()[None]
    transform = torch.from_numpy(relative_pose_matrix(pose0, pose1)).float()[None]
    return Views(matrix, matrix, transform)


def paint(pose: np.ndarray) -> np.ndarray:
    """A photo (HEIGHT, WIDTH, 3) uint8 whose colour says which place of the world a pixel shows."""
    x, y = np.meshgrid(np.arange(WIDTH), np.arange(HEIGHT))
    places, _ = cast(pose, CAMERA, np.stack([x, y], axis=-1).reshape(-1, 2).astype(np.float64))
    colour = np.clip((places - [-4.0, -3.0, 1.0]) / [8.0, 6.0, 4.0], 0, 1) * 250 + 5
    return colour.round().reshape(HEIGHT, WIDTH, 3).astype(np.uint8)


def listed(**changes: object) -> PosedPairList:
    """Two rendered views as photos."""
    photos = [paint(pose) for pose in (POSE0, POSE1)]
    fields: dict[str, object] = {
        "photo": lambda index: photos[index],
        "pairs": np.array([[0, 1]]),
        "cameras0": CAMERA[None],
        "cameras1": CAMERA[None],
        "transforms": relative_pose_matrix(POSE0, POSE1)[None],
        "weights": np.ones(1),
        **changes,
    }
    return PosedPairList(**fields)  # type: ignore[arg-type]


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


def same_colour_distance(batch: PosedBatch) -> Tensor:
    """Epipolar distance of pixels of the first pair that show the same place: those of the same colour."""
    size = batch.image0.shape[-1]
    colours0 = batch.image0[0].permute(1, 2, 0).reshape(-1, 3)
    colours1 = batch.image1[0].permute(1, 2, 0).reshape(-1, 3)
    index = torch.arange(0, size * size, 37)
    index = index[colours0[index].sum(dim=1) > 0.05]
    nearest = torch.cdist(colours0[index], colours1).min(dim=1)
    sure = nearest.values < 0.003
    points0 = torch.stack([index % size, index // size], dim=-1)[sure].float()[None]
    points1 = torch.stack([nearest.indices % size, nearest.indices // size], dim=-1)[sure].float()[None]
    assert sure.sum() > 50
    return epipolar_distance(points0, points1, batch.fundamental)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_crops_of_photos_keep_their_epipolar_geometry(seed: int) -> None:
    """Turned, shifted and scaled windows: pixels of one colour lie on each other's lines."""
    source = PosedPhotos(listed(), crop=CropOptions(zoom=(0.7, 1.1), max_rotation=30))
    batch = source.sample(1, 128, 100, generator(seed))
    assert batch.image0.shape == (1, 3, 128, 128)
    distance = same_colour_distance(batch)
    assert distance.median() < 1.2  # whole pixels, and colours repeat here and there
    wrong = epipolar_distance(batch.points0, batch.points1, batch.fundamental)
    assert wrong.median() > 5  # queries of the two pictures do not correspond


def test_queries_in_the_black_border_are_not_valid() -> None:
    wide = PosedPhotos(listed(), crop=CropOptions(zoom=(2.0, 2.0), max_rotation=0, shift=0.0))
    batch = wide.sample(2, 96, 200, generator())
    column, row = batch.points0[..., 0].round().long(), batch.points0[..., 1].round().long()
    black = torch.stack([batch.image0[k].sum(dim=0)[row[k], column[k]] == 0 for k in range(2)])
    assert black.any()
    assert not (batch.valid0 & black).any()
    assert batch.valid0.any()


def test_the_scale_of_a_model_does_not_matter() -> None:
    larger = relative_pose_matrix(POSE0, POSE1)[None].copy()
    larger[:, :3, 3] *= 1000
    one, two = (PosedPhotos(listed(transforms=t)) for t in (relative_pose_matrix(POSE0, POSE1)[None], larger))
    first, second = (source.sample(2, 64, 50, generator(1)) for source in (one, two))
    assert torch.allclose(first.fundamental, second.fundamental, atol=1e-6)
    assert torch.equal(first.valid0, second.valid0)
    with pytest.raises(DataError, match="stand at one place"):
        PosedPhotos(listed(transforms=np.eye(4)[None]))


def test_a_colmap_model_gives_its_pairs() -> None:
    courtyard = samples.courtyard()
    found = pairs_from_colmap(courtyard.model_dir, courtyard.image_dir, PosedChoice(max_rotation=40))
    names = sorted(path.name for path in courtyard.image_dir.glob("*.jpg"))
    assert len(found.pairs) > 20
    first = int(
        np.flatnonzero((found.pairs == [names.index("day_04.jpg"), names.index("day_06.jpg")]).all(1))[0]
    )
    points0 = np.stack(np.meshgrid(np.arange(50.0, 600, 37), np.arange(50.0, 400, 31)), axis=-1).reshape(
        -1, 2
    )
    points1, valid = courtyard.true_points1("day_04", "day_06", points0)
    fundamental = fundamental_from_pose(found.cameras0[first], found.cameras1[first], found.transforms[first])
    lines = torch.from_numpy(fundamental)[None]
    distance = epipolar_distance(
        torch.from_numpy(points0[valid])[None], torch.from_numpy(points1[valid]).double()[None], lines
    )
    assert valid.sum() > 50
    assert distance.max() < 0.1
    assert found.common is not None
    with pytest.raises(DataError, match="add photos that overlap"):
        pairs_from_colmap(courtyard.model_dir, courtyard.image_dir, PosedChoice(max_rotation=0.01))


def write_list(root: Path, line_change: str = "") -> Path:
    for index, pose in enumerate((POSE0, POSE1)):
        Image.fromarray(paint(pose)).save(root / f"{index}.png")
    numbers = np.concatenate([CAMERA.ravel(), CAMERA.ravel(), relative_pose_matrix(POSE0, POSE1).ravel()])
    line = "0.png 1.png 0 0 " + " ".join(map(str, numbers)) + line_change
    (root / "pairs_with_gt.txt").write_text(f"# comment\n\n{line}\n")
    return root


def test_a_list_of_pairs(tmp_path: Path) -> None:
    found = pairs_from_list(write_list(tmp_path))
    np.testing.assert_allclose(found.transforms[0], relative_pose_matrix(POSE0, POSE1))
    np.testing.assert_allclose(found.cameras1[0], CAMERA)
    batch = PosedPhotos(found).sample(1, 128, 50, generator())
    assert same_colour_distance(batch).median() < 1.2


def test_mistakes_in_a_list_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="holds 0 files"):
        pairs_from_list(tmp_path)
    write_list(tmp_path, " 7")
    with pytest.raises(DataError, match=r"line 3 has 39 entries, wanted 38"):
        pairs_from_list(tmp_path)
    write_list(tmp_path, "x")
    with pytest.raises(DataError, match=r"line 3 holds something that is not a number"):
        pairs_from_list(tmp_path)
    write_list(tmp_path)
    (tmp_path / "1.png").unlink()
    with pytest.raises(DataError, match=r"line 3: the photo 1.png is missing"):
        pairs_from_list(tmp_path)
    write_list(tmp_path)
    with pytest.raises(DataError, match="lists no pair within 1 degrees"):
        pairs_from_list(tmp_path, PosedChoice(max_rotation=1.0))


def test_megadepth_without_its_depth(tmp_path: Path) -> None:
    """The same rendered world in MegaDepth's layout; the depth files are gone."""
    write_scene(tmp_path, "0001")
    shutil.rmtree(tmp_path / "phoenix")
    for index, pose in enumerate(MEGADEPTH_POSES):
        Image.fromarray(paint(pose)).save(tmp_path / f"Undistorted_SfM/0001/images/{index}.png")
    assert np.array_equal(MEGADEPTH_CAMERA, CAMERA)
    source = MegaDepthPoses(tmp_path, workers=2)
    batch = source.sample(3, 128, 60, generator(2))
    assert batch.points0.shape == (3, 60, 2)
    for k in range(3):
        single = PosedBatch(**{n: v[k : k + 1] for n, v in vars(batch).items() if v is not None})
        assert same_colour_distance(single).median() < 1.2
    again = MegaDepthPoses(tmp_path, workers=1).sample(3, 128, 60, generator(2))
    assert torch.equal(batch.image1, again.image1)
    assert torch.equal(batch.points1, again.points1)


def test_a_mixture_takes_its_shares_and_changes_the_light(bank: PhotoBank) -> None:
    mixture = PosedMixture(
        [PosedIngredient(PosedPhotos(listed()), 3.0, 0.0), PosedIngredient(WorldPoses(bank), 1.0)]
    )
    assert mixture.recordable
    batch = mixture.sample(8, 64, 40, generator())
    assert batch.light is not None
    assert batch.light.tolist() == [0.0] * 6 + [0.25] * 2
    plain = PosedPhotos(listed()).sample(6, 64, 40, generator())
    assert torch.equal(batch.image0[:6], plain.image0)  # light 0: unchanged
    assert torch.equal(batch.fundamental[:6], plain.fundamental)


def test_unknown_scenes_are_refused() -> None:
    from test_track_pairs import make_packed

    from coam.data.posed_photos import pairs_from_tracks

    rng = np.random.default_rng(0)
    packed = make_packed([rng.uniform(40, 160, (50, 2))] * 2, [(0, 1)], [20.0], [0, 0])
    with pytest.raises(ConfigError, match="no scene 'moon'; the file has: s0"):
        pairs_from_tracks(packed, ["moon"])
    with pytest.raises(DataError, match="add photos that overlap"):
        pairs_from_tracks(packed)  # both cameras stand at one place

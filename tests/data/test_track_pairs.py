"""Pairs from tracks: crops and points must agree to a fraction of a pixel."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from coam.data.device_photos import DevicePhotos
from coam.data.packed import PackedTracks, PairWeights, pair_weights
from coam.data.photo_pairs import PairChoice, TrackPairs
from coam.data.windows import CropOptions, apply_affine, invert_affine, keep_in_photo, square_window
from coam.errors import ConfigError, DataError
from support.packed_tracks import gradient_photo, make_packed


@pytest.fixture(scope="module")
def shifted() -> PackedTracks:
    """Two photos; point k of the second lies at (x + 20, y - 10) of the first."""
    random = np.random.default_rng(1)
    first = random.uniform((40, 60), (200, 180), (300, 2))
    return make_packed([first, first + np.array([20, -10])], [(0, 1)], [20.0], [0, 0])


def read_colour(image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    """Colours (n, 3), 0..255, of one crop (3, S, S) at points (n, 2)."""
    grid = ((points + 0.5) * 2 / image.shape[-1] - 1).view(1, 1, -1, 2)
    colour = torch.nn.functional.grid_sample(image[None], grid, align_corners=False, padding_mode="border")
    return colour[0, :, 0].T * 255


def test_points_sit_on_the_pixels_they_name(shifted: PackedTracks) -> None:
    source = TrackPairs(shifted, crop=CropOptions(max_rotation=30))
    batch = source.sample(16, 96, 128, torch.Generator().manual_seed(3))
    assert batch.valid.sum() > 500
    checked = 0
    for k in range(16):
        p0, p1 = batch.points0[k][batch.valid[k]], batch.points1[k][batch.valid[k]]
        # Away from the crop's border and the black outside, colours tell the photo position of a crop pixel.
        inner = ((p0 > 3) & (p0 < 92) & (p1 > 3) & (p1 < 92)).all(-1)
        c0, c1 = read_colour(batch.image0[k], p0[inner]), read_colour(batch.image1[k], p1[inner])
        whole = (c0[:, 2] > 254.9) & (c1[:, 2] > 254.9)
        difference = (c1 - c0)[whole][:, :2]
        sign = torch.sign(difference[:, 0].median())  # the pair may be handed out in either order
        assert (difference * sign - torch.tensor([20.0, -10.0])).abs().max() < 0.75
        checked += int(whole.sum())
    assert checked > 400


def test_crops_are_exact_where_nothing_is_turned_or_scaled() -> None:
    photos = DevicePhotos([gradient_photo(60, 50), gradient_photo(31, 77)])
    window = square_window(
        torch.tensor([[24.5, 20.5], [15.5, 40.5]]), torch.tensor([16.0, 16.0]), torch.zeros(2), 16
    )
    crop = photos.crop(torch.tensor([0, 1]), window, 16) * 255
    assert torch.equal(crop[0, 0, 0].round(), torch.arange(17.0, 33.0))  # centre 24.5: pixels 17..32
    assert torch.equal(crop[1, 1, :, 0].round(), torch.arange(33.0, 49.0))


def test_a_quarter_turn_turns_x_towards_y() -> None:
    photos = DevicePhotos([gradient_photo(64, 64)])
    window = square_window(
        torch.tensor([[31.5, 31.5]]), torch.tensor([32.0]), torch.tensor([math.pi / 2]), 32
    )
    crop = photos.crop(torch.tensor([0]), window, 32)[0] * 255
    # Crop x runs along photo y: green grows along crop columns from 16 to 47, red falls along crop rows.
    torch.testing.assert_close(crop[1, 5], torch.arange(16.0, 48.0), atol=1e-2, rtol=0)
    torch.testing.assert_close(crop[0, :, 5], torch.arange(47.0, 15.0, -1.0), atol=1e-2, rtol=0)


def test_shrinking_reads_a_smaller_level_at_the_right_place() -> None:
    photos = DevicePhotos([gradient_photo(256, 256)])
    window = square_window(torch.tensor([[127.5, 127.5]]), torch.tensor([256.0]), torch.zeros(1), 64)
    crop = photos.crop(torch.tensor([0]), window, 64)[0] * 255
    expected = (torch.arange(64.0) + 0.5) * 4 - 0.5
    torch.testing.assert_close(
        crop[0, 30, 1:-1], expected[1:-1], atol=1.0, rtol=0
    )  # levels are rounded to bytes


def test_shrinking_a_checkerboard_gives_grey_not_aliasing() -> None:
    x, y = np.meshgrid(np.arange(128), np.arange(128))
    board = np.repeat((((x + y) % 2) * 255).astype(np.uint8)[..., None], 3, axis=2)
    window = square_window(torch.tensor([[63.5, 63.5]]), torch.tensor([128.0]), torch.zeros(1), 48)
    crop = DevicePhotos([board]).crop(torch.tensor([0]), window, 48)
    assert (crop - 0.5).abs().max() < 0.02


def test_outside_the_photo_is_black() -> None:
    photos = DevicePhotos([np.full((20, 20, 3), 200, dtype=np.uint8)])
    window = square_window(torch.tensor([[9.5, 9.5]]), torch.tensor([40.0]), torch.zeros(1), 40)
    crop = photos.crop(torch.tensor([0]), window, 40)[0, 0]
    assert crop[10:30, 10:30].min() > 0.78
    assert crop[:9].max() == 0
    assert crop[:, 31:].max() == 0


def test_affine_and_its_inverse_cancel() -> None:
    window = square_window(torch.tensor([[70.0, 31.0]]), torch.tensor([55.0]), torch.tensor([0.3]), 48)
    points = torch.tensor([[[0.0, 0.0], [47.0, 3.0], [23.5, 23.5]]])
    there = apply_affine(window, points)
    torch.testing.assert_close(
        there[0, 2], torch.tensor([70.0, 31.0])
    )  # the crop's middle is the window's centre
    torch.testing.assert_close(apply_affine(invert_affine(window), there), points, atol=1e-4, rtol=0)


def test_windows_stay_in_the_photo() -> None:
    centre = torch.tensor([[[-50.0, 10.0], [500.0, 90.0]]])
    moved = keep_in_photo(centre, torch.tensor([120.0]), torch.tensor([[200.0, 100.0]]))
    # Width 200 holds the window: centres go to 59.5 .. 139.5. Height 100 does not: the middle, 49.5.
    assert moved.tolist() == [[[59.5, 49.5], [139.5, 49.5]]]


def test_every_sample_shows_common_points_and_its_tolerance(shifted: PackedTracks) -> None:
    source = TrackPairs(shifted)
    batch = source.sample(32, 64, 400, torch.Generator().manual_seed(0))
    assert batch.image0.shape == (32, 3, 64, 64)
    assert batch.points0.shape == (32, 400, 2)
    assert batch.valid.sum(1).min() >= 10
    assert not batch.valid[:, 300:].any()  # there are only 300 points: the rest is padding
    assert not batch.unmatched0.any()
    assert not batch.unmatched1.any()
    assert batch.points0.min() >= 0
    assert batch.points0.max() <= 63
    # Windows are 0.5 .. 1.25 times 200 px wide, so one photo pixel is 64 / side crop pixels.
    assert batch.tolerance.min() >= 64 / 250 - 1e-4
    assert batch.tolerance.max() <= 64 / 100 + 1e-4


def test_the_same_seed_gives_the_same_batch(shifted: PackedTracks) -> None:
    one, two = (TrackPairs(shifted).sample(4, 32, 16, torch.Generator().manual_seed(5)) for _ in range(2))
    other = TrackPairs(shifted).sample(4, 32, 16, torch.Generator().manual_seed(6))
    assert torch.equal(one.image0, two.image0)
    assert torch.equal(one.points1, two.points1)
    assert not torch.equal(one.image0, other.image0)


def test_scales_of_the_two_crops_differ_up_to_two_and_a_half(shifted: PackedTracks) -> None:
    batch = TrackPairs(shifted, crop=CropOptions(max_rotation=0)).sample(
        64, 64, 300, torch.Generator().manual_seed(0)
    )
    ratios = []
    for k in range(64):
        a, b = batch.points0[k][batch.valid[k]], batch.points1[k][batch.valid[k]]
        ratios.append(float(((b - b.mean(0)).norm() / (a - a.mean(0)).norm()).log2().abs()))
    assert max(ratios) > 0.9
    assert max(ratios) <= math.log2(2.5) + 1e-3


def test_scenes_are_balanced_and_wide_pairs_preferred() -> None:
    angle, scene = np.array([0.0, 10.0, 40.0, 20.0, 3.0]), np.array([0, 0, 0, 0, 1])
    weights = pair_weights(angle, scene, PairWeights(0.5, 0.0))
    assert weights[4] == pytest.approx(0.5)  # one pair of its own scene: half of all draws
    np.testing.assert_allclose(weights[:4], 0.5 * np.array([0.5, 1, 1, 1]) / 3.5)
    assert pair_weights(angle, scene, PairWeights(0.5, 1.0))[4] == pytest.approx(0.2)


def test_scene_and_angle_filters(shifted: PackedTracks) -> None:
    with pytest.raises(ConfigError, match="no scene 'moon'"):
        TrackPairs(shifted, scenes=["moon"])
    with pytest.raises(DataError, match="no pair shares"):
        TrackPairs(shifted, choice=PairChoice(min_shared=1000))
    with pytest.raises(ConfigError, match="zoom"):
        CropOptions(zoom=(1.0, 0.5))


@pytest.mark.slow
def test_a_real_reconstruction(tmp_path: Path) -> None:
    """Points of a SIFT model of real photos have like colours in both crops; at wrong places not."""
    pytest.importorskip("pycolmap")
    archive = Path(__file__).parents[2].parent / "shared" / "data" / "multiview" / "sceaux.tar"
    if not archive.is_file():
        pytest.skip("shared photo sets are not here")
    import tarfile

    from coam.data.pack_tracks import TrackScene, pack_tracks
    from coam.sfm.colmap_model import read_model
    from coam.sfm.photos import read_photo_folder
    from coam.sfm.sift import SiftOptions, build_sift_models, photos_by_camera

    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path / "photos", filter="data")
    photos = next(p.parent for p in sorted((tmp_path / "photos").rglob("*.jpg")))
    for extra in sorted(photos.glob("*.jpg"))[4:]:
        extra.unlink()
    stages: list[str] = []
    options = SiftOptions(max_features=1200, max_image_size=640, threads=1)
    folder = read_photo_folder(photos)

    def build() -> list[Path]:
        groups = photos_by_camera(folder.photos)
        return build_sift_models(folder, tmp_path / "out", groups, options, lambda *a: stages.append(a[0]))

    models = build()
    model = read_model(models[0])
    assert model.num_reg_images() == 4
    assert model.num_points3D() > 200
    assert model.compute_mean_reprojection_error() < 1.5
    assert list(dict.fromkeys(stages)) == ["features", "matching", "reconstruction"]
    stages.clear()
    assert build() == models
    assert stages == []  # a finished model is not computed again
    packed = pack_tracks([TrackScene("s", models[0], photos)], tmp_path / "s.safetensors")
    batch = TrackPairs(packed, crop=CropOptions(max_rotation=0, zoom=(0.9, 0.9))).sample(
        8, 256, 128, torch.Generator().manual_seed(0)
    )
    grey0, grey1 = batch.image0.mean(1, keepdim=True), batch.image1.mean(1, keepdim=True)
    right, wrong = [], []
    for k in range(8):
        a = read_colour(grey0[k], batch.points0[k][batch.valid[k]])[:, 0]
        b = read_colour(grey1[k], batch.points1[k][batch.valid[k]])[:, 0]
        right.append(float((a - b).abs().mean()))
        wrong.append(float((a - b.roll(7)).abs().mean()))
    assert np.mean(right) < 0.5 * np.mean(wrong)


def test_a_changed_copy_is_the_same_view_in_other_colours() -> None:
    photos = DevicePhotos([gradient_photo(60, 50), gradient_photo(31, 77)])
    photos.add_copies(lambda picture: 1.0 - picture, share=0.5)
    assert len(photos) == 2
    index = photos.original_or_copy(torch.tensor([0, 1, 1]), torch.tensor([0.6, 0.6, 0.4]))
    window = square_window(torch.full((3, 2), 15.0), torch.full((3,), 16.0), torch.full((3,), 0.3), 16)
    original, same, copy = photos.crop(index, window, 16)
    torch.testing.assert_close(copy, 1.0 - same, atol=1e-6, rtol=0)
    torch.testing.assert_close(original, same)  # both gradients start at the same corner

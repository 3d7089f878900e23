"""RGB-D frames: a rendered folder with known truth, packed and sampled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coam.data.pack_rgbd import pack_rgbd, register_depth
from coam.data.packed import PackedRgbd
from coam.data.photo_pairs import RgbdChoice, RgbdPairs
from coam.data.windows import CropOptions
from coam.errors import CoamError, DataError
from support.rendered_world import render, true_projection
from support.rgbd_frames import CAMERA, HEIGHT, POSES, WIDTH, write_frames


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> PackedRgbd:
    folder = tmp_path_factory.mktemp("rgbd")
    write_frames(folder / "frames")
    pack_rgbd(folder / "frames", folder / "x.safetensors", "toy")
    return PackedRgbd.load(folder / "x.safetensors")


def test_packing_keeps_cameras_depth_and_overlapping_pairs(packed: PackedRgbd) -> None:
    assert packed.names == ("0", "1", "2", "3")
    assert packed.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]  # frame 3 sees nothing of the others
    np.testing.assert_allclose(packed.poses[1], POSES[1], atol=1e-12)
    np.testing.assert_allclose(packed.intrinsics[0], [150, 150, 99.5, 79.5])
    _, depth = render(POSES[0], CAMERA, WIDTH, HEIGHT)
    assert np.abs(packed.depth(0) - depth).max() < 0.00051  # half a millimetre: the unit of the PNG
    assert packed.depth(3).min() == 0  # the part that looks away has none
    # Cameras 0 and 2 stand 1.3 apart and look at a wall 4 away.
    assert packed.pair_angle[1] == pytest.approx(np.degrees(2 * np.arctan(0.65 / 4)), abs=3)


def test_points_agree_with_ray_casting(packed: PackedRgbd) -> None:
    plain = CropOptions(zoom=(1.0, 1.0), max_rotation=0, shift=0)
    source = RgbdPairs(packed, crop=plain, choice=RgbdChoice(easy_weight=1.0))
    batch = source.sample(4, 160, 256, torch.Generator().manual_seed(0))
    assert batch.valid.sum(1).min() > 100
    assert batch.unmatched0.sum() > 40
    # With windows of the photo's full height a crop differs from its photo by a shift in x alone. Which pair
    # it was is not told: the truth of each candidate pair is tried, and the right one must fit all points.
    for k in range(4):
        shown = batch.valid[k].nonzero()[:60, 0]
        p0, p1 = batch.points0[k][shown].numpy(), batch.points1[k][shown].numpy()
        best = np.inf
        for i, j in [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)]:
            for shift0 in np.arange(0, 40.5, 0.5):
                landed, _ = true_projection(POSES[i], POSES[j], CAMERA, p0 + np.array([shift0, 0]))
                error = landed - p1
                error[:, 0] -= np.median(error[:, 0])
                best = min(best, float(np.percentile(np.linalg.norm(error, axis=1), 95)))
        assert best < 0.5


def test_tolerance_and_choice(packed: PackedRgbd) -> None:
    source = RgbdPairs(packed, tolerance=3.0, crop=CropOptions(zoom=(0.8, 0.8)))
    batch = source.sample(2, 64, 16, torch.Generator().manual_seed(0))
    torch.testing.assert_close(batch.tolerance, torch.full((2,), 3.0 * 64 / (0.8 * 160)))
    with pytest.raises(DataError, match="no two frames share"):
        RgbdPairs(packed, choice=RgbdChoice(min_shared=1.5))


def test_depth_moves_to_the_colour_camera() -> None:
    depth = np.zeros((40, 60), dtype=np.float32)
    depth[20, 30] = 2.0
    depth[20, 33] = 1.0
    camera = np.array([[40.0, 0, 30], [0, 40, 20], [0, 0, 1]])
    shift = np.eye(4)
    shift[0, 3] = 0.1  # 40 * 0.1 / 2 = 2 pixels at 2 m, 4 pixels at 1 m
    moved = register_depth(depth, camera, camera, shift, (60, 40))
    assert np.argwhere(moved > 0).tolist() == [[20, 32], [20, 37]]
    assert moved[20, 32] == 2.0
    depth[20, 32] = 1.0  # lands on 36; the far point below lands there too and must not win
    depth[20, 34] = 2.0
    assert register_depth(depth, camera, camera, shift, (60, 40))[20, 36] == 1.0


def test_two_cameras_in_the_folder_give_depth_in_the_colour_camera(tmp_path: Path) -> None:
    write_frames(tmp_path / "frames")
    offset = np.eye(4)
    offset[0, 3] = -0.03
    np.savetxt(tmp_path / "frames" / "color_intrinsics.txt", CAMERA * [[0.9], [0.9], [1]])
    np.savetxt(tmp_path / "frames" / "color_from_depth.txt", offset)
    packed = pack_rgbd(tmp_path / "frames", tmp_path / "x.safetensors")
    assert packed.intrinsics[0, 0] == 135
    np.testing.assert_allclose(packed.poses[0], (offset @ np.vstack([POSES[0], [0, 0, 0, 1]]))[:3], atol=1e-9)
    colour_camera = CAMERA * [[0.9], [0.9], [1]]
    _, truth = render(packed.poses[0], colour_camera, WIDTH, HEIGHT)
    found = packed.depth(0)
    both = found > 0
    assert both.mean() > 0.6
    assert np.median(np.abs(found - truth)[both]) < 0.01


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("intrinsics.txt", "1 2 3", "3 x 3"),
        ("1.pose.txt", "a b", "4 x 4"),
        ("1.pose.txt", "nan 0 0 0\n0 1 0 0\n0 0 1 0\n0 0 0 1", "finite"),
        ("0.depth.png", "no png", "is not a picture"),
    ],
)
def test_damaged_folders_are_named(tmp_path: Path, name: str, content: str, message: str) -> None:
    write_frames(tmp_path / "frames")
    (tmp_path / "frames" / name).write_text(content)
    with pytest.raises(CoamError, match=message):
        pack_rgbd(tmp_path / "frames", tmp_path / "x.safetensors")


def test_an_empty_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no NAME\.color\.jpg"):
        pack_rgbd(tmp_path, tmp_path / "x.safetensors")

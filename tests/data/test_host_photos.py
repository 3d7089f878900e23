"""Crops of photos in host memory are those of `DevicePhotos`; the cache gives back what was decoded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coam.data.device_photos import DevicePhotos
from coam.data.host_photos import HostPhotos
from coam.data.megadepth import DEFAULT_CHOICE, MegaDepthPairs, read_scenes, read_view
from coam.data.view_cache import DecodedView, ViewCache, shrink
from coam.data.windows import CropOptions, apply_affine, square_window, whole_photo
from coam.errors import ConfigError
from support.megadepth_tree import write_scene
from support.simple_matchers import textured


@pytest.mark.parametrize("side", [30.0, 60.0, 110.0, 240.0])
def test_crops_are_those_of_the_device(side: float) -> None:
    """Two ways of one crop, at every level of the pyramid, turned and partly outside the photo."""
    photos = [textured(1, (201, 153)), textured(2, (160, 120))]
    centre, angle = torch.tensor([[90.0, 70.0], [12.0, 100.0]]), torch.tensor([0.3, -0.2])
    maps = square_window(centre, torch.full((2,), side), angle, 32)
    index = torch.tensor([0, 1])
    mine, other = (kind(photos).crop(index, maps, 32) for kind in (HostPhotos, DevicePhotos))
    assert mine.shape == other.shape == (2, 3, 32, 32)
    source = apply_affine(
        maps, torch.cartesian_prod(torch.arange(32.0), torch.arange(32.0)).flip(-1).expand(2, -1, -1)
    )
    sizes = torch.tensor([[201.0, 153.0], [160.0, 120.0]]).unsqueeze(1)
    reach = side / 32 + 1  # pixels next to the border differ: one blends with black, the other repeats
    inner = ((source > reach) & (source < sizes - 1 - reach)).all(-1).view(2, 1, 32, 32).expand_as(mine)
    assert inner.float().mean() > 0.2
    assert (mine - other)[inner].abs().max() < 4 / 255
    assert (mine - other)[inner].abs().mean() < 1 / 255


def test_the_whole_photo_squashed() -> None:
    matrix = whole_photo(torch.tensor([[512.0, 384.0]]), 256)
    corners = apply_affine(matrix, torch.tensor([[[-0.5, -0.5], [255.5, 255.5], [0.0, 0.0]]]))
    assert corners[0].tolist() == [[-0.5, -0.5], [511.5, 383.5], [0.5, 0.25]]


def test_a_view_keeps_its_camera_when_it_shrinks(tmp_path: Path) -> None:
    write_scene(tmp_path, "0001")
    scene = read_scenes(tmp_path / "scene_info", ["0001"], DEFAULT_CHOICE)[0]
    _, whole = read_view(tmp_path, scene, 0)
    photo, small = read_view(tmp_path, scene, 0, ViewCache(tmp_path / "cache", 100))
    assert photo.shape == (80, 100, 3)  # of 160 x 200
    assert small.depth.shape == (1, 80, 100)
    # COLMAP's principal point halves, ours is COLMAP's - 0.5.
    wanted = whole.intrinsics[0].clone()
    wanted[:2] /= 2
    wanted[:2, 2] = (whole.intrinsics[0][:2, 2] + 0.5) / 2 - 0.5
    torch.testing.assert_close(small.intrinsics[0], wanted)


def test_the_cache_decodes_once_and_mends_itself(tmp_path: Path) -> None:
    depth = np.linspace(1.0, 900.0, 64 * 48, dtype=np.float32).reshape(48, 64)
    depth[0, :5] = [0, np.nan, np.inf, -0.0, 3]
    asked = []

    def read() -> DecodedView:
        asked.append(1)
        return DecodedView(textured(0, (64, 48)), depth)

    cache = ViewCache(tmp_path, 64)
    first, again = cache.get("a/b.jpg", read), cache.get("a/b.jpg", read)
    assert len(asked) == 1
    assert (again.photo == first.photo).all()
    assert (again.depth == first.depth).all()
    assert again.depth[0, :3].tolist() == [0, 0, 0]
    np.testing.assert_allclose(again.depth[1:], depth[1:], rtol=1e-3)  # float16
    (kept,) = tmp_path.rglob("*.safetensors")
    kept.write_bytes(kept.read_bytes()[:-9])
    assert (cache.get("a/b.jpg", read).photo == first.photo).all()
    assert len(asked) == 2
    assert shrink(read(), 32).scale == (0.5, 0.5)
    with pytest.raises(ConfigError, match="at least 32"):
        ViewCache(tmp_path, 8)


def test_pairs_from_the_cache_correspond(tmp_path: Path) -> None:
    """Points of squashed photos, from the cache, have the colour of one place (as without it)."""
    write_scene(tmp_path, "0001")
    source = MegaDepthPairs(tmp_path, crop=CropOptions(squash=True), cache="cache", cache_side=160, workers=2)
    for seed in (0, 0):
        batch = source.sample(4, 96, 128, torch.Generator().manual_seed(seed))
        assert batch.valid.sum(1).min() > 30
        for k in range(4):
            both = []
            for image, points in ((batch.image0, batch.points0), (batch.image1, batch.points1)):
                grid = ((points[k][batch.valid[k]] + 0.5) * 2 / 96 - 1).view(1, 1, -1, 2)
                both.append(
                    torch.nn.functional.grid_sample(image[k : k + 1], grid, align_corners=False)[0, :, 0]
                )
            assert (both[0] - both[1]).abs().median() < 0.02
    assert len(list((tmp_path / "cache" / "160").rglob("*.safetensors"))) <= 3

"""MegaDepth in its exact published layout, made of rendered views, and files that must not run code."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from coam.data.megadepth import MegaDepthChoice, MegaDepthPairs, read_split
from coam.data.windows import CropOptions
from coam.errors import ConfigError, DataError, ImageError
from support.megadepth_tree import write_scene


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("megadepth")
    write_scene(folder, "0001")
    write_scene(folder, "0015")
    return folder


def colours(image: torch.Tensor, points: torch.Tensor) -> torch.Tensor:
    grid = ((points + 0.5) * 2 / image.shape[-1] - 1).view(1, 1, -1, 2)
    return torch.nn.functional.grid_sample(image[None], grid, align_corners=False, mode="bilinear")[0, :, 0].T


def test_pairs_are_those_with_depth_and_enough_overlap(root: Path) -> None:
    source = MegaDepthPairs(root, workers=1)
    assert [scene.name for scene in source.scenes] == ["0001.0"]  # 0015 is a test scene
    assert source.scenes[0].pairs.tolist() == [[0, 1], [1, 2]]
    assert len(MegaDepthPairs(root, choice=MegaDepthChoice(min_overlap=0.1), workers=1)) == 3
    assert len(MegaDepthPairs(root, scenes=["0001", "0015"], workers=1)) == 4


@pytest.mark.parametrize(("angle", "most", "pairs"), [(80.0, 80.0, 2), (80.1, 80.0, 0), (80.1, 81.0, 2)])
def test_views_that_look_in_other_directions_are_left_out(
    tmp_path: Path, angle: float, most: float, pairs: int
) -> None:
    write_scene(tmp_path, "0001", angle=angle)
    assert MegaDepthChoice().max_angle == 80.0  # as the paper's data were made
    choice = MegaDepthChoice(max_angle=most)
    if pairs:
        assert len(MegaDepthPairs(tmp_path, choice=choice, workers=1)) == pairs
    else:
        with pytest.raises(DataError, match="holds no pair of the wanted scenes"):
            MegaDepthPairs(tmp_path, choice=choice, workers=1)


def test_corresponding_points_have_the_colour_of_one_place(root: Path) -> None:
    batch = MegaDepthPairs(root, workers=2).sample(6, 128, 256, torch.Generator().manual_seed(0))
    assert batch.image0.shape == (6, 3, 128, 128)
    assert batch.valid.sum(1).min() > 60
    for k in range(6):
        inner = batch.valid[k] & ((batch.points0[k] > 2) & (batch.points0[k] < 125)).all(-1)
        inner &= ((batch.points1[k] > 2) & (batch.points1[k] < 125)).all(-1)
        first = colours(batch.image0[k], batch.points0[k][inner])
        second = colours(batch.image1[k], batch.points1[k][inner])
        # Colour changes by up to 5 grey levels of 255 per pixel: 0.012 is about half a pixel.
        assert (first - second).abs().median() < 0.012
        assert (first - second.roll(9, 0)).abs().median() > 0.03
    assert (batch.unmatched0.sum() > 0) & (batch.unmatched1.sum() > 0)


def test_result_does_not_depend_on_the_number_of_workers(root: Path) -> None:
    one, four = (
        MegaDepthPairs(root, workers=n).sample(4, 64, 32, torch.Generator().manual_seed(7)) for n in (1, 4)
    )
    assert torch.equal(one.image1, four.image1)
    assert torch.equal(one.points1, four.points1)
    assert len({float(image.mean()) for image in one.image0}) == 4  # no two workers drew the same


def test_larger_photos_are_brought_to_the_size_of_their_depth(tmp_path: Path) -> None:
    write_scene(tmp_path, "0001", photo_scale=2)
    plain = CropOptions(zoom=(0.8, 0.8), max_rotation=0)
    batch = MegaDepthPairs(tmp_path, crop=plain, workers=1).sample(
        2, 128, 128, torch.Generator().manual_seed(1)
    )
    for k in range(2):
        first = colours(batch.image0[k], batch.points0[k][batch.valid[k]])
        second = colours(batch.image1[k], batch.points1[k][batch.valid[k]])
        assert (first - second).abs().median() < 0.015


def test_missing_and_damaged_files_are_named(tmp_path: Path, root: Path) -> None:
    with pytest.raises(DataError, match="scene_info"):
        MegaDepthPairs(tmp_path)
    (tmp_path / "scene_info").mkdir()
    with pytest.raises(DataError, match="no pair"):
        MegaDepthPairs(tmp_path)
    (tmp_path / "scene_info" / "0001.0.npz").write_bytes(b"PK nonsense")
    with pytest.raises(DataError, match="damaged"):
        MegaDepthPairs(tmp_path)
    np.savez(tmp_path / "scene_info" / "0001.0.npz", image_paths=np.zeros(2))
    with pytest.raises(DataError, match="lacks 'depth_paths'"):
        MegaDepthPairs(tmp_path)
    write_scene(tmp_path, "0001")
    for photo in (tmp_path / "Undistorted_SfM").rglob("*.png"):
        photo.unlink()
    with pytest.raises(ImageError, match="cannot be read as a picture"):
        MegaDepthPairs(tmp_path).sample(1, 32, 8, torch.Generator())


def test_splits_are_clean() -> None:
    train = read_split("train")
    held_out = {scene for name in ("valid", "test", "imc") for scene in read_split(name)}
    assert len(train) == 136
    assert len(set(train)) == 136
    assert not set(train) & held_out
    assert {"0015", "0022", "5017", "1589", "0008"} <= held_out
    assert len(read_split("test")) == 39
    with pytest.raises(ConfigError, match="no MegaDepth split"):
        read_split("all")

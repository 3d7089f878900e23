"""Sources of posed pairs from photos: every kind in a recipe, crops, MegaDepth."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from coam.capsnet.losses import epipolar_distance
from coam.capsnet.pairs import PosedBatch, WorldPoses
from coam.capsnet.photos import MegaDepthPoses, PosedPhotos, pairs_from_rgbd, pairs_from_tracks
from coam.data.device_photos import DevicePhotos
from coam.data.mixture import Ingredient, Mixture
from coam.data.photo_bank import BankPart, pack_bank
from coam.data.windows import CropOptions
from coam.errors import ConfigError, DataError
from coam.geometry.pose import relative_pose_matrix
from coam.training.config import LossSpec, ModelSpec, Phase, Recipe, SourceSpec
from coam.training.objective import build_source
from support.megadepth_tree import CAMERA as MEGADEPTH_CAMERA
from support.megadepth_tree import POSES as MEGADEPTH_POSES
from support.megadepth_tree import write_scene
from support.posed_views import CAMERA, POSE0, POSE1, generator, listed, paint, same_colour_distance

CPU = torch.device("cpu")


def recipe(*sources: SourceSpec) -> Recipe:
    return Recipe(
        name="posed",
        model=ModelSpec("capsnet"),
        sources=sources,
        phases=(Phase(1, 64, 4, 32),),
        loss=LossSpec(kind="epipolar"),
    )


def test_all_kinds_in_one_mixture(posed_root: Path) -> None:
    wanted = recipe(
        SourceSpec("tracks", "tracks.safetensors", 0.5, light=0.0, options={"scenes": ["court"]}),
        SourceSpec("rgbd", "rgbd.safetensors", 0.25, light=0.0),
        SourceSpec("pairs", "listed", 0.25, light=0.0, options={"crop": {"zoom": [0.9, 1.0]}}),
    )
    mixture = build_source(wanted, posed_root, CPU)
    assert mixture.recordable
    batch = mixture.sample(4, 96, 40, torch.Generator().manual_seed(1))
    assert isinstance(batch, PosedBatch)
    assert batch.image0.shape == (4, 3, 96, 96)
    last = PosedBatch(**{name: value[3:] for name, value in batch.tensors().items()})
    assert same_colour_distance(last).median() < 1.2  # the listed pair


def test_windows_are_cut_where_photos_overlap(posed_root: Path) -> None:
    """Around common points, so that most queries of the first picture may be in the second."""
    source = PosedPhotos(pairs_from_tracks(posed_root / "tracks.safetensors"))
    batch = source.sample(24, 96, 64, torch.Generator().manual_seed(0))
    assert batch.valid0.float().mean() > 0.6
    assert batch.valid1.float().mean() > 0.6


def test_styled_copies_are_shown_as_often_as_asked(posed_root: Path) -> None:
    source = PosedPhotos(pairs_from_rgbd(posed_root / "rgbd.safetensors"))
    assert isinstance(source.photos, DevicePhotos)
    source.photos.add_copies(lambda picture: picture * 0 + 0.5, share=0.5)
    batch = source.sample(64, 32, 8, torch.Generator().manual_seed(0))
    images = torch.cat([batch.image0, batch.image1])
    flat = ((images - 0.5).abs() < 0.01).all(dim=1).float().mean(dim=(1, 2)) > 0.3  # the rest may be border
    assert 0.35 < float(flat.float().mean()) < 0.65


def test_styles_need_their_weights(posed_root: Path) -> None:
    with pytest.raises(ConfigError, match="stylize but gives no"):
        build_source(recipe(SourceSpec("rgbd", "rgbd.safetensors", stylize=0.5)), posed_root, CPU)


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
        single = PosedBatch(**{n: v[k : k + 1] for n, v in batch.tensors().items()})
        assert same_colour_distance(single).median() < 1.2
    again = MegaDepthPoses(tmp_path, workers=1).sample(3, 128, 60, generator(2))
    assert torch.equal(batch.image1, again.image1)
    assert torch.equal(batch.points1, again.points1)


def test_a_mixture_takes_its_shares_and_changes_the_light() -> None:
    photos = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8)
    bank = pack_bank([BankPart(photos, [[0], [1], [2]], light=0.25)])
    mixture = Mixture([Ingredient(PosedPhotos(listed()), 3.0, 0.0), Ingredient(WorldPoses(bank), 1.0)])
    assert mixture.recordable
    batch = mixture.sample(8, 64, 40, generator())
    assert batch.light is not None
    assert batch.light.tolist() == [0.0] * 6 + [0.25] * 2
    plain = PosedPhotos(listed()).sample(6, 64, 40, generator())
    assert torch.equal(batch.image0[:6], plain.image0)  # light 0: unchanged
    assert torch.equal(batch.fundamental[:6], plain.fundamental)

"""Each kind of posed source named in a recipe: packed tracks, packed RGB-D frames, a list of pairs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from test_posed import CAMERA, same_colour_distance, write_list
from test_rgbd import write_frames

from coam import samples
from coam.data.pack_rgbd import pack_rgbd
from coam.data.pack_tracks import TrackScene, pack_tracks
from coam.data.posed import PosedBatch
from coam.data.posed_photos import PosedChoice, PosedPhotos, pairs_from_rgbd, pairs_from_tracks
from coam.data.resident import ResidentPhotos
from coam.errors import ConfigError
from coam.training.config import LossSpec, ModelSpec, Phase, Recipe, SourceSpec
from coam.training.sources import build_source

CPU = torch.device("cpu")


def recipe(*sources: SourceSpec) -> Recipe:
    return Recipe(
        name="posed",
        model=ModelSpec("capsnet"),
        sources=sources,
        phases=(Phase(1, 64, 4, 32),),
        loss=LossSpec(kind="epipolar"),
    )


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("posed")
    write_frames(folder / "frames")
    pack_rgbd(folder / "frames", folder / "rgbd.safetensors", "toy")
    courtyard = samples.courtyard()
    scene = TrackScene("court", courtyard.model_dir, courtyard.image_dir)
    pack_tracks([scene], folder / "tracks.safetensors", max_side=320)
    (folder / "listed").mkdir()
    write_list(folder / "listed")
    return folder


def test_all_kinds_in_one_mixture(root: Path) -> None:
    wanted = recipe(
        SourceSpec("tracks", "tracks.safetensors", 0.5, light=0.0, options={"scenes": ["court"]}),
        SourceSpec("rgbd", "rgbd.safetensors", 0.25, light=0.0),
        SourceSpec("pairs", "listed", 0.25, light=0.0, options={"crop": {"zoom": [0.9, 1.0]}}),
    )
    mixture = build_source(wanted, root, CPU)
    assert mixture.recordable
    batch = mixture.sample(4, 96, 40, torch.Generator().manual_seed(1))
    assert isinstance(batch, PosedBatch)
    assert batch.image0.shape == (4, 3, 96, 96)
    last = PosedBatch(**{name: value[3:] for name, value in vars(batch).items() if value is not None})
    assert same_colour_distance(last).median() < 1.2  # the listed pair


def test_tracks_lose_the_pairs_whose_points_miss_their_lines(root: Path) -> None:
    """A wrong focal length in one photo: its pairs are left out, the others stay."""
    from dataclasses import replace

    from coam.data.packed import PackedTracks

    packed = PackedTracks.load(root / "tracks.safetensors")
    whole = pairs_from_tracks(packed)
    wrong = packed.intrinsics.copy()
    wrong[0, :2] *= 1.4
    left = pairs_from_tracks(replace(packed, intrinsics=wrong))
    with_first = int((whole.pairs == 0).any(axis=1).sum())
    assert with_first > 3
    assert int((left.pairs == 0).any(axis=1).sum()) < 0.3 * with_first
    assert int((left.pairs != 0).all(axis=1).sum()) == len(whole.pairs) - with_first
    assert len(pairs_from_tracks(packed, choice=PosedChoice(max_rotation=15.0)).pairs) < len(whole.pairs)


def test_windows_are_cut_where_photos_overlap(root: Path) -> None:
    """Around common points, so that most queries of the first picture may be in the second."""
    source = PosedPhotos(pairs_from_tracks(root / "tracks.safetensors"))
    batch = source.sample(24, 96, 64, torch.Generator().manual_seed(0))
    assert batch.valid0.float().mean() > 0.6
    assert batch.valid1.float().mean() > 0.6


def test_rgbd_cameras_are_taken_as_they_are(root: Path) -> None:
    found = pairs_from_rgbd(root / "rgbd.safetensors")
    np.testing.assert_allclose(found.cameras0[0], CAMERA)
    assert found.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]


def test_styled_copies_are_shown_as_often_as_asked(root: Path) -> None:
    source = PosedPhotos(pairs_from_rgbd(root / "rgbd.safetensors"))
    assert isinstance(source.photos, ResidentPhotos)
    source.photos.add_copies(lambda picture: picture * 0 + 0.5, share=0.5)
    batch = source.sample(64, 32, 8, torch.Generator().manual_seed(0))
    images = torch.cat([batch.image0, batch.image1])
    flat = ((images - 0.5).abs() < 0.01).all(dim=1).float().mean(dim=(1, 2)) > 0.3  # the rest may be border
    assert 0.35 < float(flat.float().mean()) < 0.65


def test_styles_need_their_weights(root: Path) -> None:
    with pytest.raises(ConfigError, match="stylize but gives no"):
        build_source(recipe(SourceSpec("rgbd", "rgbd.safetensors", stylize=0.5)), root, CPU)

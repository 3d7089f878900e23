"""Lists of posed pairs: from packed files, a COLMAP model, a text file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from coam import samples
from coam.capsnet.losses import epipolar_distance
from coam.capsnet.photos import (
    PosedChoice,
    PosedPhotos,
    pairs_from_colmap,
    pairs_from_list,
    pairs_from_rgbd,
    pairs_from_tracks,
)
from coam.data.packed import PackedTracks
from coam.errors import ConfigError, DataError
from coam.geometry.epipolar import fundamental_from_pose
from coam.geometry.pose import relative_pose_matrix
from support.packed_tracks import make_packed
from support.posed_views import CAMERA, POSE0, POSE1, generator, same_colour_distance, write_list


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


def test_a_list_of_pairs(tmp_path: Path) -> None:
    found = pairs_from_list(write_list(tmp_path))
    np.testing.assert_allclose(found.transforms[0], relative_pose_matrix(POSE0, POSE1))
    np.testing.assert_allclose(found.cameras1[0], CAMERA)
    batch = PosedPhotos(found).sample(1, 128, 50, generator())
    assert same_colour_distance(batch).median() < 1.2


def test_mistakes_in_a_list_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no \*pairs_with_gt.txt in"):
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


def test_tracks_lose_the_pairs_whose_points_miss_their_lines(posed_root: Path) -> None:
    """A wrong focal length in one photo: its pairs are left out, the others stay."""
    packed = PackedTracks.load(posed_root / "tracks.safetensors")
    whole = pairs_from_tracks(packed)
    wrong = packed.intrinsics.copy()
    wrong[0, :2] *= 1.4
    left = pairs_from_tracks(replace(packed, intrinsics=wrong))
    with_first = int((whole.pairs == 0).any(axis=1).sum())
    assert with_first > 3
    assert int((left.pairs == 0).any(axis=1).sum()) < 0.3 * with_first
    assert int((left.pairs != 0).all(axis=1).sum()) == len(whole.pairs) - with_first
    assert len(pairs_from_tracks(packed, choice=PosedChoice(max_rotation=15.0)).pairs) < len(whole.pairs)


def test_rgbd_cameras_are_taken_as_they_are(posed_root: Path) -> None:
    found = pairs_from_rgbd(posed_root / "rgbd.safetensors")
    np.testing.assert_allclose(found.cameras0[0], CAMERA)
    assert found.pairs.tolist() == [[0, 1], [0, 2], [1, 2]]


def test_unknown_scenes_are_refused() -> None:
    rng = np.random.default_rng(0)
    packed = make_packed([rng.uniform(40, 160, (50, 2))] * 2, [(0, 1)], [20.0], [0, 0])
    with pytest.raises(ConfigError, match="no scene 'moon'; the file has: s0"):
        pairs_from_tracks(packed, scenes=["moon"])
    with pytest.raises(DataError, match="add photos that overlap"):
        pairs_from_tracks(packed)  # both cameras stand at one place

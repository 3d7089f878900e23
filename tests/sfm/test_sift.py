"""COLMAP models by SIFT: pairs, shared cameras, and a run that was stopped."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from coam.sfm.photos import read_photo_folder
from coam.sfm.sift import SiftOptions, _camera_of, build_sift_models, photos_by_camera, sift_pairs

pycolmap = pytest.importorskip("pycolmap")


def test_many_photos_are_matched_with_neighbours_and_some_others():
    names = [f"{i:02d}" for i in range(30)]
    assert len(sift_pairs(names, SiftOptions())) == 435
    pairs = sift_pairs(names, SiftOptions(all_pairs_up_to=20, neighbours=3))
    near = {(a, b) for a, b in pairs if int(b) - int(a) <= 3}
    assert len(near) >= 3 * 30 - 6
    assert len(pairs) == 2 * (3 * 30 - 6)
    assert all(a < b for a, b in pairs)


@pytest.fixture
def folder(tmp_path):
    """Three views of a plane of blobs by one camera, and one larger photo of another."""
    rng = np.random.default_rng(0)
    blobs = Image.fromarray(rng.integers(0, 255, (40, 60, 3), np.uint8))
    plane = np.asarray(blobs.resize((480, 320), Image.Resampling.BICUBIC))
    (tmp_path / "photos").mkdir()
    for index in range(3):
        shifted = np.roll(plane, 15 * index, axis=1)[:240, :320]
        Image.fromarray(shifted).save(tmp_path / "photos" / f"IMG_{index}.png")
    Image.fromarray(plane).save(tmp_path / "photos" / "IMG_3.png")
    return read_photo_folder(tmp_path / "photos")


def test_photos_of_a_group_share_a_camera_also_after_a_stop(folder, tmp_path):
    groups = photos_by_camera(folder.photos, "all")
    assert groups == [["IMG_0.png", "IMG_1.png", "IMG_2.png"], ["IMG_3.png"]]
    done = []

    def stop(stage, count, total):
        done.append((stage, count, total))
        raise KeyboardInterrupt

    first = read_photo_folder(tmp_path / "photos")
    with pytest.raises(KeyboardInterrupt):
        build_sift_models(first, tmp_path / "out", [groups[0][:2]], SiftOptions(max_features=300), stop)
    assert done == [("features", 2, 4)]
    stages = []
    build_sift_models(
        folder, tmp_path / "out", groups, SiftOptions(max_features=300), lambda *a: stages.append(a)
    )
    assert stages[:2] == [("features", 3, 4), ("features", 4, 4)]
    assert ("matching", 6, 6) in stages
    with pycolmap.Database.open(tmp_path / "out" / "database.db") as database:
        camera = {image.name: image.camera_id for image in database.read_all_images()}
        assert len(database.read_all_cameras()) == 2
    assert camera["IMG_0.png"] == camera["IMG_1.png"] == camera["IMG_2.png"] != camera["IMG_3.png"]
    assert _camera_of(tmp_path / "out" / "database.db", ["IMG_2.png"]) == camera["IMG_2.png"]
    assert _camera_of(tmp_path / "out" / "database.db", ["other.png"]) == -1

"""What localization reads of a model's files, against what pycolmap reads of them."""

from __future__ import annotations

import shutil
from dataclasses import replace

import numpy as np
import pytest

from coam.errors import DataError
from coam.sfm.cameras import camera_spec
from coam.sfm.colmap_binaries import image_places, point_positions, stored_cameras
from coam.sfm.colmap_model import registered_images
from coam.sfm.localization.known_photos import KnownPhotos
from coam.sfm.model_folder import ModelFolder
from coam.sfm.tracks.match_graph import load_keypoints, save_keypoints
from coam.sfm.workspace import load_model


@pytest.fixture
def known(built):
    return KnownPhotos(ModelFolder(built[0]), {"view03.png": 1})


def test_points_of_keypoints_are_those_of_pycolmap(built, known):
    model, keypoints = load_model(built[0])
    registered = registered_images(model)
    assert known.names == sorted(registered)
    assert known.numbered == keypoints.names
    for name, image in registered.items():
        photo = known[name]
        expected = np.full((image.num_points2D(), 3), np.nan)
        for index in image.get_observation_point2D_idxs():
            expected[index] = model.point3D(image.points2D[index].point3D_id).xyz
        np.testing.assert_array_equal(photo.world, expected)
        assert 50 < np.isfinite(expected[:, 0]).sum() < len(expected)
        own = keypoints.of(keypoints.names.index(name))
        np.testing.assert_array_equal(photo.ids, keypoints.ids[own])
        np.testing.assert_array_equal(photo.positions, keypoints.positions[own])
        assert photo.grid == keypoints.grids[photo.number]
        assert photo.turn == (1 if name == "view03.png" else 0)


def test_keypoints_of_another_model_are_refused(built, tmp_path):
    folder = tmp_path / "model"
    shutil.copytree(built[0] / "sparse", folder / "sparse")
    own = load_keypoints(built[0] / "keypoints.h5")
    shorter = {name: getattr(own, name)[:-1] for name in ("ids", "positions", "tracks")}
    fewer = replace(own, start=np.minimum(own.start, len(own.ids) - 1), **shorter)
    save_keypoints(fewer, folder / "keypoints.h5")
    known = KnownPhotos(ModelFolder(folder), {})
    assert len(known["view00.png"].ids) == len(known["view00.png"].world)
    with pytest.raises(DataError, match=r"keypoints\.h5: is of another model than .*images\.bin; make both"):
        known["view06.png"]


def test_cameras_most_used_first(built, known):
    model, _ = load_model(built[0])
    assert known.cameras == [camera_spec(camera) for camera in model.cameras.values()]


def test_cameras_of_many_kinds(tmp_path):
    import pycolmap

    model = pycolmap.Reconstruction()
    kinds = [("SIMPLE_PINHOLE", 3), ("OPENCV", 8), ("SIMPLE_RADIAL", 4)]
    for number, (kind, count) in enumerate(kinds, 7):
        parameters = [500.5 + number, *(0.25 * i for i in range(count - 1))]
        camera = pycolmap.Camera(model=kind, width=640, height=480 + number, params=parameters)
        camera.camera_id = number
        model.add_camera(camera)
    model.write(tmp_path)
    found = stored_cameras(tmp_path / "cameras.bin")
    assert found == {
        number: (kind, 640, 480 + number, [500.5 + number, *(0.25 * i for i in range(count - 1))])
        for number, (kind, count) in enumerate(kinds, 7)
    }
    ids, positions = point_positions(tmp_path / "points3D.bin")
    assert (ids.shape, positions.shape) == ((0,), (0, 3))
    assert image_places(tmp_path / "images.bin") == []


@pytest.mark.parametrize("keep", [0, 5, 30, 0.5, -1])
@pytest.mark.parametrize("name", ["images.bin", "points3D.bin", "cameras.bin"])
def test_a_file_that_was_cut_is_one_line(built, tmp_path, name, keep):
    folder = tmp_path / "model"
    (folder / "sparse").mkdir(parents=True)
    shutil.copytree(built[0] / "sparse" / "0", folder / "sparse" / "0")
    shutil.copy(built[0] / "keypoints.h5", folder)  # no summary, so no checksums
    path = folder / "sparse" / "0" / name
    content = path.read_bytes()
    path.write_bytes(content[: int(keep * len(content)) if isinstance(keep, float) else keep])
    with pytest.raises(DataError, match="holds no COLMAP model") as raised:
        KnownPhotos(ModelFolder(folder), {})
    assert "\n" not in str(raised.value)


def test_a_count_beyond_the_file_allocates_nothing(tmp_path):
    path = tmp_path / "points3D.bin"
    path.write_bytes(np.uint64(1 << 60).tobytes() + bytes(51))
    with pytest.raises(ValueError, match="ends too early"):
        point_positions(path)

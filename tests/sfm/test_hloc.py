"""hloc files, COLMAP databases, and triangulation with known poses."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from coam.errors import DataError
from coam.sfm.alignment import model_poses
from coam.sfm.database import read_database, write_database
from coam.sfm.hloc import (
    database_to_hloc,
    pair_key,
    read_features,
    read_matches,
    triangulate,
    write_features,
    write_matches,
)
from coam.sfm.intrinsics import CameraChoice, camera_from_spec, make_cameras
from coam.sfm.journal import PairJournal
from coam.sfm.keypoints import collect_keypoints, load_keypoints, place_keypoints, save_keypoints
from coam.sfm.localize import localize
from coam.sfm.pairs import read_pairs, reference_pairs
from coam.sfm.photos import read_photo_folder
from coam.sfm.pipeline import SfmOptions, load_model
from coam.sfm.verify import verify_pairs


@pytest.fixture(scope="module")
def tracks(built, photos, tmp_path_factory):
    folder = read_photo_folder(photos)
    cameras, camera_of = make_cameras(folder.photos, CameraChoice())
    matched = PairJournal(built[0] / "matches.h5")
    work = tmp_path_factory.mktemp("hloc")
    by_name = {photo.name: cameras[camera_of[i]] for i, photo in enumerate(folder.photos)}
    verified = verify_pairs(matched, by_name, work / "v.h5")
    keypoints, links = place_keypoints(*collect_keypoints(folder.names, matched, verified))
    return folder, cameras, camera_of, verified, keypoints, links


def test_hloc_files_say_what_the_database_says(tracks, tmp_path):
    folder, cameras, camera_of, verified, keypoints, links = tracks
    write_database(tmp_path / "d.db", keypoints, links, verified, cameras, camera_of)
    write_features(tmp_path / "f.h5", keypoints, {photo.name: photo.size for photo in folder.photos})
    write_matches(tmp_path / "m.h5", keypoints, links)
    points, pairs = read_database(tmp_path / "d.db")
    features = read_features(tmp_path / "f.h5")
    matches = read_matches(tmp_path / "m.h5", links.pairs)
    assert set(features) == set(points) == set(folder.names)
    for name in folder.names:  # +0.5 on the way in, -0.5 on the way out
        np.testing.assert_allclose(points[name], features[name], atol=1e-4)
    assert set(matches) == set(pairs)
    for pair, (index, scores) in matches.items():
        assert sorted(map(tuple, index)) == sorted(map(tuple, pairs[pair]))
        assert len(scores) == len(index) > 50
        assert (scores > 0.1).all()
    backwards = read_matches(tmp_path / "m.h5", [links.pairs[0][::-1]])[links.pairs[0][::-1]][0]
    np.testing.assert_array_equal(backwards[:, ::-1], matches[links.pairs[0]][0])


def test_what_a_killed_run_left_beside_the_database_does_no_harm(tracks, tmp_path):
    """SQLite plays a stale write-ahead log into whatever file lies beside it."""
    _, cameras, camera_of, verified, keypoints, links = tracks
    path, log = tmp_path / "d.db", tmp_path / "d.db-wal"
    write_database(path, keypoints, links, verified, cameras, camera_of)
    killed = sqlite3.connect(path)
    killed.execute("PRAGMA journal_mode=WAL")
    killed.execute("PRAGMA wal_autocheckpoint=0")
    killed.execute("UPDATE keypoints SET data = zeroblob(100000)")
    killed.commit()
    left = log.read_bytes()
    killed.close()
    log.write_bytes(left)
    write_database(path, keypoints, links, verified, cameras, camera_of)
    points, _ = read_database(path)
    number = keypoints.names.index(sorted(points)[0])
    assert np.allclose(points[sorted(points)[0]], keypoints.positions[keypoints.of(number)], atol=1e-3)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_any_colmap_database_can_go_to_hloc(tracks, tmp_path):
    _, cameras, camera_of, verified, keypoints, links = tracks
    write_database(tmp_path / "d.db", keypoints, links, verified, cameras, camera_of)
    features, matches, pairs = database_to_hloc(tmp_path / "d.db", tmp_path / "hloc")
    points, stored = read_database(tmp_path / "d.db")
    listed = read_pairs(pairs)
    assert sorted(stored) == listed
    for name, own in read_features(features).items():
        np.testing.assert_array_equal(own, points[name])
    for pair, (index, _) in read_matches(matches, listed).items():
        assert sorted(map(tuple, index)) == sorted(map(tuple, stored[pair]))


def test_database_holds_half_a_pixel_more(tracks, tmp_path):
    import pycolmap

    _, cameras, camera_of, verified, keypoints, links = tracks
    write_database(tmp_path / "d.db", keypoints, links, verified, cameras, camera_of)
    database = pycolmap.Database.open(tmp_path / "d.db")
    raw = np.asarray(database.read_keypoints(1))[:, :2]
    database.close()
    np.testing.assert_allclose(raw, keypoints.positions[keypoints.of(0)] + 0.5, atol=1e-4)


def test_keypoints_round_trip(tracks, tmp_path):
    keypoints = tracks[4]
    again = load_keypoints(save_keypoints(keypoints, tmp_path / "k.h5"))
    assert again.names == keypoints.names
    assert again.grids == keypoints.grids
    for name in ("start", "ids", "positions", "tracks"):
        np.testing.assert_array_equal(getattr(again, name), getattr(keypoints, name))


def test_pair_key_is_hlocs():
    assert pair_key("db/1.jpg", "query/night/2.jpg") == "db-1.jpg/query-night-2.jpg"


def test_files_that_are_not_hlocs(tmp_path):
    (tmp_path / "x.h5").write_bytes(b"no")
    with pytest.raises(DataError, match="written by hloc or coam"):
        read_features(tmp_path / "x.h5")
    with pytest.raises(DataError, match="no such file"):
        read_database(tmp_path / "none.db")


def test_triangulation_keeps_known_poses_and_locates(built, photos, queries, matcher, truth, tmp_path):
    """The poses of a finished model are taken as known; its points are made anew."""
    summary = triangulate(built[0] / "sparse" / "0", photos, tmp_path, matcher)
    assert summary["registered_images"] == 5
    assert summary["sparse_points"] > 700
    assert summary["mean_reprojection_error"] < 0.5
    assert summary["warnings"] == []
    assert (tmp_path / "refined.h5").is_file()  # the default tracks, as everywhere
    before, after = model_poses(load_model(built[0])[0]), model_poses(load_model(tmp_path)[0])
    for name in before:
        np.testing.assert_allclose(before[name][0], after[name][0], atol=1e-9)
        np.testing.assert_allclose(before[name][1], after[name][1], atol=1e-9)
    located = localize(tmp_path, queries / "view02.png", matcher)[0]
    reference = localize(built[0], queries / "view02.png", matcher)[0]
    np.testing.assert_allclose(located.centre, reference.centre, atol=0.02)


def test_refined_tracks_bring_triangulated_points_nearer_to_the_truth(
    photos, matcher, truth, tmp_path, scene
):
    """Into the true poses: a point of the room lies on one of its surfaces."""
    reference = true_model(scene, photos, truth, tmp_path / "true")
    error = {}
    for tracks in ("quantised", "merged", "refined"):
        triangulate(reference, photos, tmp_path / "out", matcher, options=SfmOptions(tracks=tracks))
        model, _ = load_model(tmp_path / "out")
        distances = []
        for image_id in model.reg_image_ids():
            image = model.image(image_id)
            world = np.array([model.point3D(p.point3D_id).xyz for p in image.get_observation_points2D()])
            number = scene.names.index(image.name)
            true = scene.surface(number, scene.project(number, world))
            distances.append(np.linalg.norm(true - world, axis=1))
        error[tracks] = float(np.nanmedian(np.concatenate(distances)))
    assert error["refined"] < 0.6 * error["merged"] < 0.6 * error["quantised"]
    assert error["refined"] < 0.004  # the room is some 6 wide


def true_model(scene, photos, truth, folder, points=()):
    """A COLMAP model of the photos with the true poses, and points seen by the photos that `points` name."""
    import pycolmap

    model = pycolmap.Reconstruction()
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 380 200 152")
    camera.camera_id = 1
    model.add_camera_with_trivial_rig(camera)
    names = sorted(path.name for path in photos.iterdir())
    for number, name in enumerate(names, 1):
        pose = pycolmap.Rigid3d(pycolmap.Rotation3d(truth[name][0]), truth[name][1])
        image = pycolmap.Image(name=name, camera_id=1, image_id=number, keypoints=np.full((9, 2), 150.0))
        model.add_image_with_trivial_frame(image, pose)
    for number, seen in enumerate(points):
        track = pycolmap.Track()
        for name in seen:
            track.add_element(names.index(name) + 1, number)
        model.add_point3D(np.array([0.0, 0.0, 1.0]), track, np.zeros(3, np.uint8))
    folder.mkdir()
    model.write(folder)
    return folder


def test_pairs_of_a_model_by_points_and_by_poses(scene, photos, truth, tmp_path):
    import pycolmap

    seen = [("view00.png", "view01.png"), ("view00.png", "view01.png", "view06.png")]
    known = pycolmap.Reconstruction(true_model(scene, photos, truth, tmp_path / "m", seen))
    names = sorted(truth)
    by_points, how = reference_pairs(known, names, "auto", 1)
    assert by_points == [("view00.png", "view01.png"), ("view00.png", "view06.png")]
    assert how == "1 with most common points each"
    assert reference_pairs(known, ["view00.png", "view06.png"], "model")[0] == [("view00.png", "view06.png")]
    by_poses, _ = reference_pairs(known, names, "poses", 1)  # on an arc, so the nearest is the next
    assert by_poses == [
        ("view00.png", "view01.png"),
        ("view03.png", "view04.png"),
        ("view04.png", "view06.png"),
    ]
    empty = pycolmap.Reconstruction(true_model(scene, photos, truth, tmp_path / "n"))
    assert reference_pairs(empty, names, "auto", 1)[0] == by_poses
    assert reference_pairs(empty, names, "model", 1)[0] == []

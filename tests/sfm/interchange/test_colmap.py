"""COLMAP databases."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from itertools import combinations

import numpy as np
import pytest

import coam
from coam import samples
from coam.errors import DataError
from coam.geometry.pose import rotation_error
from coam.sfm.cameras import CameraChoice
from coam.sfm.colmap_model import model_poses
from coam.sfm.interchange.colmap import merge_keypoints, read_database, write_matches
from coam.types import Grid, Matches


def test_what_a_killed_run_left_beside_the_database_does_no_harm(tracks, tmp_path):
    """SQLite plays a stale write-ahead log into whatever file lies beside it."""
    keypoints, path, log = tracks.keypoints, tmp_path / "d.db", tmp_path / "d.db-wal"
    tracks.write_database(path)
    killed = sqlite3.connect(path)
    killed.execute("PRAGMA journal_mode=WAL")
    killed.execute("PRAGMA wal_autocheckpoint=0")
    killed.execute("UPDATE keypoints SET data = zeroblob(100000)")
    killed.commit()
    left = log.read_bytes()
    killed.close()
    log.write_bytes(left)
    tracks.write_database(path)
    points, _ = read_database(path)
    number = keypoints.names.index(sorted(points)[0])
    assert np.allclose(points[sorted(points)[0]], keypoints.positions[keypoints.of(number)], atol=1e-3)
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_database_holds_half_a_pixel_more(tracks, tmp_path):
    import pycolmap

    keypoints = tracks.keypoints
    database = pycolmap.Database.open(tracks.write_database(tmp_path / "d.db"))
    raw = np.asarray(database.read_keypoints(1))[:, :2]
    database.close()
    np.testing.assert_allclose(raw, keypoints.positions[keypoints.of(0)] + 0.5, atol=1e-4)


def test_a_database_that_is_not_there(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_database(tmp_path / "none.db")


def grid_matches(points0, points1, ids0, ids1, scores, looks=1):
    """Matches by hand between photos of 64 x 48 with grids of 8 x 6 cells."""
    grid = Grid(8, 6, (3.5, 3.5), (8.0, 8.0))
    arrays = [np.float32(points0), np.float32(points1), np.float32(scores), np.int64(ids0), np.int64(ids1)]
    return Matches(*arrays, (64, 48), (64, 48), grid, grid, meta={"looks": looks})


def test_matches_of_pairs_share_keypoints_by_grid_id(tmp_path):
    """a-b and b-c meet in grid position 9 of b, seen at (12, 12) with weight 3, at (14, 12) with 1."""
    import pycolmap

    first = grid_matches([[3.5, 3.5], [11.5, 3.5]], [[12, 12], [30, 20]], [0, 1], [9, 19], [0.75, 0.5])
    second = grid_matches([[14, 12], [20, 20]], [[5, 5], [6, 6]], [9, 18], [0, 0], [0.25, 0.125])
    write_matches(tmp_path / "d.db", {("a", "b"): first, ("b", "c"): second}, verify=False)
    points, index = read_database(tmp_path / "d.db")
    assert {name: len(own) for name, own in points.items()} == {"a": 2, "b": 3, "c": 1}
    np.testing.assert_allclose(points["b"][0], [12.5, 12], atol=1e-5)  # (3 * 12 + 1 * 14) / 4
    assert index["a", "b"].tolist() == [[0, 0], [1, 1]]
    assert index["b", "c"].tolist() == [[0, 0]]  # c's keypoint is taken: the better match keeps it
    with pycolmap.Database.open(tmp_path / "d.db") as database:
        raw = np.asarray(database.read_keypoints(1))[:, :2]
        np.testing.assert_allclose(raw, [[4, 4], [12, 4]])  # COLMAP's pixels are half a pixel further
        assert {image.name: image.image_id for image in database.read_all_images()} == {
            "a": 1,
            "b": 2,
            "c": 3,
        }


def test_matches_of_several_looks_share_keypoints_by_position():
    twice = grid_matches([[3.4, 3.6], [4.4, 3.6]], [[12, 12], [13, 12]], [0, 0], [9, 9], [0.75, 0.5], looks=2)
    merged = merge_keypoints({("a", "b"): twice})
    assert merged.index["a", "b"].tolist() == [[0, 0], [1, 1]]  # two matches in one grid cell stay two
    np.testing.assert_allclose(merged.positions["a"], [[3.4, 3.6], [4.4, 3.6]], atol=1e-6)


def test_a_mapper_goes_on_from_matches_of_the_network(tmp_path):
    """Five views of the courtyard, matched pair by pair: COLMAP's own mapper places them all."""
    import pycolmap

    yard, views = samples.courtyard(), [f"day_{number:02d}" for number in range(3, 8)]
    matcher = coam.load_matcher(device="cpu", resolution=320, looks="once", max_matches=1000)
    pairs = list(combinations(views, 2))
    found = matcher.match_many([(yard.image(a), yard.image(b)) for a, b in pairs])
    named = {(f"{a}.jpg", f"{b}.jpg"): matches for (a, b), matches in zip(pairs, found, strict=True)}
    camera = yard.camera(views[0])
    spec = f"PINHOLE {camera.width} {camera.height} {camera.focal[0]} {camera.focal[1]} "
    spec += f"{camera.principal[0] + 0.5} {camera.principal[1] + 0.5}"
    write_matches(tmp_path / "d.db", named, CameraChoice(given={"*": spec}))
    options = pycolmap.IncrementalPipelineOptions()
    options.random_seed = 0
    options.ba_refine_focal_length = options.ba_refine_extra_params = False
    models = pycolmap.incremental_mapping(tmp_path / "d.db", yard.image_dir, tmp_path / "sparse", options)
    model = models[0]
    assert model.num_reg_images() == 5
    assert model.num_points3D() > 800
    poses = model_poses(model)
    for a, b in pairs:
        relative = [
            poses[f"{b}.jpg"][0] @ poses[f"{a}.jpg"][0].T,
            yard.pose(b).rotation @ yard.pose(a).rotation.T,
        ]
        assert rotation_error(*relative) < 1.0  # degrees


def test_one_name_is_one_photo(tmp_path):
    one = grid_matches([[1, 1]], [[2, 2]], [0], [0], [1])
    other = replace(one, size1=(32, 48))
    with pytest.raises(DataError, match="b: has several sizes"):
        write_matches(tmp_path / "d.db", {("a", "b"): one, ("c", "b"): other})
    assert not (tmp_path / "d.db").exists()

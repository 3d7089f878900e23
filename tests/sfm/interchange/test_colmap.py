"""COLMAP databases."""

from __future__ import annotations

import sqlite3

import numpy as np
import pytest

from coam.errors import DataError
from coam.sfm.interchange.colmap import read_database


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

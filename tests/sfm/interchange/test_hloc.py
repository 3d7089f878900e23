"""hloc's files."""

from __future__ import annotations

import numpy as np
import pytest

from coam.errors import DataError
from coam.sfm.interchange.colmap import read_database
from coam.sfm.interchange.hloc import database_to_hloc, pair_key, read_features, read_matches
from coam.sfm.pairs import read_pairs


def test_hloc_files_say_what_the_database_says(tracks, tmp_path):
    database = tracks.write_database(tmp_path / "d.db")
    features_path, matches_path, pairs_path = database_to_hloc(database, tmp_path / "hloc")
    points, stored = read_database(database)
    listed = read_pairs(pairs_path)
    assert listed == sorted(stored) == sorted(tracks.graph.pairs)
    features, matches = read_features(features_path), read_matches(matches_path, listed)
    assert set(features) == set(points) == set(tracks.folder.names)
    for number, name in enumerate(tracks.keypoints.names):  # +0.5 on the way in, -0.5 on the way out
        np.testing.assert_array_equal(features[name], points[name])
        own = tracks.keypoints.positions[tracks.keypoints.of(number)]
        np.testing.assert_allclose(own, features[name], atol=1e-4)
    for pair, (index, scores) in matches.items():
        assert sorted(map(tuple, index)) == sorted(map(tuple, stored[pair]))
        assert len(scores) == len(index) > 50
        assert (scores > 0.1).all()
    turned = listed[0][::-1]
    backwards = read_matches(matches_path, [turned])[turned][0]
    np.testing.assert_array_equal(backwards[:, ::-1], matches[listed[0]][0])


def test_pair_key_is_hlocs():
    assert pair_key("db/1.jpg", "query/night/2.jpg") == "db-1.jpg/query-night-2.jpg"


def test_files_that_are_not_hlocs(tracks, tmp_path):
    (tmp_path / "x.h5").write_bytes(b"no")
    with pytest.raises(DataError, match="written by hloc or coam"):
        read_features(tmp_path / "x.h5")
    features, matches, _ = database_to_hloc(tracks.write_database(tmp_path / "d.db"), tmp_path / "hloc")
    with pytest.raises(DataError, match="holds no keypoints"):
        read_features(matches)
    with pytest.raises(DataError, match="has no matches of a and b"):
        read_matches(features, [("a", "b")])

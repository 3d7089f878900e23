"""Pair proposal: exhaustive, sequential, retrieval, covisibility, poses."""

from __future__ import annotations

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.sfm.pairs import (
    choose_pairs,
    covisible_pairs,
    exhaustive_pairs,
    nearest,
    pose_pairs,
    read_pairs,
    reference_pairs,
    retrieval_pairs,
    sequential_pairs,
    unit_rows,
    write_pairs,
)
from coam.sfm.workspace import load_model
from support.toy_scene import true_model


def test_exhaustive():
    assert exhaustive_pairs(["c", "a", "b"]) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert exhaustive_pairs(["a"]) == []


def test_sequential_counts_numbers_not_letters():
    pairs = sequential_pairs([f"f{i}.jpg" for i in range(12)], window=1, jumps=False)
    assert ("f10.jpg", "f9.jpg") in pairs
    assert ("f1.jpg", "f10.jpg") not in pairs
    assert len(pairs) == 11
    with_jumps = sequential_pairs([f"f{i}.jpg" for i in range(12)], window=1)
    assert ("f0.jpg", "f8.jpg") in with_jumps


def test_retrieval_finds_clusters():
    generator = np.random.default_rng(0)
    place = np.repeat(np.eye(3, 16), 4, axis=0)
    vectors = unit_rows(
        place + 5 + generator.normal(0, 0.05, (12, 16))
    )  # a large common part hides the places
    names = [f"{i:02d}" for i in range(12)]
    pairs = retrieval_pairs(names, vectors, count=3)
    assert len(pairs) == 18
    assert all(int(a) // 4 == int(b) // 4 for a, b in pairs)


def test_nearest_against_a_full_sort():
    generator = np.random.default_rng(1)
    queries, base = unit_rows(generator.normal(size=(30, 8))), unit_rows(generator.normal(size=(50, 8)))
    expected = np.argsort(-(queries @ base.T), axis=1)[:, :7]
    np.testing.assert_array_equal(nearest(queries, base, 7, block=11), expected)
    assert nearest(queries, base, 99).shape == (30, 50)


def test_choice_follows_the_number_of_photos(tmp_path):
    few, how = choose_pairs({name: tmp_path / name for name in "abc"})
    assert len(few) == 3
    assert how == "all pairs of 3 photos"
    names = [f"{i * 977:06d}.jpg" for i in range(50)]  # numbers of a photo site, not of a camera
    photos = {name: tmp_path / name for name in names}
    with pytest.raises(ConfigError, match="give pairs with --pairs"):
        choose_pairs(photos)
    vectors = {tmp_path / name: np.random.default_rng(i).normal(size=8) for i, name in enumerate(names)}
    many, how = choose_pairs(photos, lambda named: np.stack([vectors[p] for p in named.values()]), count=4)
    assert 100 <= len(many) <= 200
    assert how == "4 most similar photos each"


def test_list_file_round_trip_and_mistakes(tmp_path):
    path = write_pairs([("b", "a"), ("a", "c")], tmp_path / "pairs.txt")
    assert read_pairs(path) == [("b", "a"), ("a", "c")]
    with pytest.raises(DataError, match="line 2: there is no photo c"):
        read_pairs(path, ["a", "b"])
    path.write_text("a b c\n")
    with pytest.raises(DataError, match="line 1: has 3 words"):
        read_pairs(path)


def test_pairs_from_poses():
    ahead, back = np.eye(3), np.diag([-1.0, 1.0, -1.0])  # looks the other way
    places = {"a": (ahead, 0.0), "b": (ahead, 1.0), "c": (ahead, 3.0), "d": (back, 0.1)}
    poses = {name: (turn, -turn @ np.array([x, 0, 0])) for name, (turn, x) in places.items()}
    assert pose_pairs(poses, count=1) == [("a", "b"), ("b", "c")]


def test_pairs_from_a_model(built):
    model, _ = load_model(built[0])
    assert len(covisible_pairs(model, count=20)) == 10
    assert 3 <= len(covisible_pairs(model, count=1)) <= 5


def test_pairs_of_a_model_by_points_and_by_poses(scene, photos, truth, tmp_path):
    import pycolmap

    seen = [("view00.png", "view01.png"), ("view00.png", "view01.png", "view06.png")]
    known = pycolmap.Reconstruction(true_model(photos, truth, tmp_path / "m", seen))
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
    empty = pycolmap.Reconstruction(true_model(photos, truth, tmp_path / "n"))
    assert reference_pairs(empty, names, "auto", 1)[0] == by_poses
    assert reference_pairs(empty, names, "model", 1)[0] == []

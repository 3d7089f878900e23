"""Which pairs, in which order, and what is kept of them."""

from __future__ import annotations

import numpy as np
import pytest
from toy_scene import OracleMatcher, Scene

from coam.errors import ConfigError, DataError
from coam.sfm.match_pairs import (
    PairProgress,
    count_encodings,
    match_pairs,
    matches_to_record,
    order_pairs,
    record_to_matches,
)
from coam.sfm.pairs import (
    choose_pairs,
    covisible_pairs,
    exhaustive_pairs,
    nearest,
    pose_pairs,
    read_pairs,
    retrieval_pairs,
    sequential_pairs,
    unit_rows,
    write_pairs,
)
from coam.sfm.pipeline import load_model


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
    few, how = choose_pairs(["a", "b", "c"], {}, None)
    assert len(few) == 3
    assert how == "all pairs of 3 photos"
    names = [f"{i * 977:06d}.jpg" for i in range(50)]  # numbers of a photo site, not of a camera
    with pytest.raises(ConfigError, match="give pairs with --pairs"):
        choose_pairs(names, {}, None)
    vectors = {name: np.random.default_rng(i).normal(size=8) for i, name in enumerate(names)}
    many, how = choose_pairs(names, {name: name for name in names}, vectors.__getitem__, count=4)
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
    rotations = np.tile(np.eye(3), (4, 1, 1))
    rotations[3] = np.diag([-1.0, 1.0, -1.0])  # looks the other way
    centres = np.array([[0.0, 0, 0], [1, 0, 0], [3, 0, 0], [0.1, 0, 0]])
    assert pose_pairs(["a", "b", "c", "d"], rotations, centres, count=1) == [("a", "b"), ("b", "c")]


def test_pairs_from_a_model(built):
    model, _ = load_model(built[0])
    assert len(covisible_pairs(model, count=20)) == 10
    assert 3 <= len(covisible_pairs(model, count=1)) <= 5


def test_order_lets_a_small_cache_work():
    names = [f"{i:03d}" for i in range(60)]
    pairs = exhaustive_pairs(names)
    ordered = order_pairs(pairs, 12)
    assert sorted(ordered) == pairs
    assert count_encodings(ordered, 12) < 0.3 * count_encodings(pairs, 12)
    assert count_encodings(ordered, 60) == 60


def test_record_round_trip():
    scene = Scene(count=2, size=(160, 120), focal=150.0)
    matches = OracleMatcher(scene).match("view00.png", "view01.png")
    kept = record_to_matches(matches_to_record(matches, "s"))
    np.testing.assert_array_equal(kept.ids0, matches.ids0)
    np.testing.assert_allclose(kept.points0, matches.points0, atol=1e-4)
    np.testing.assert_allclose(kept.points1, matches.points1, atol=1e-4)
    assert kept.grid1 == matches.grid1
    assert kept.size0 == (160, 120)


def test_changed_photo_is_matched_again(tmp_path):
    scene = Scene(count=3, size=(160, 120), focal=150.0)
    folder = scene.write_photos(tmp_path / "p")
    paths = {name: folder / name for name in scene.names}
    matcher = OracleMatcher(scene)
    pairs = exhaustive_pairs(scene.names)
    digests = dict.fromkeys(scene.names, "1")
    match_pairs(matcher, paths, digests, pairs, tmp_path / "m.h5")
    assert len(matcher.calls) == 3
    match_pairs(matcher, paths, {**digests, "view02.png": "2"}, pairs, tmp_path / "m.h5")
    assert matcher.calls[3:] == [("view00.png", "view02.png"), ("view01.png", "view02.png")]


def test_estimate_counts_only_this_run(monkeypatch):
    clock = iter([0.0, 10.0])
    monkeypatch.setattr("coam.sfm.match_pairs.time.monotonic", lambda: next(clock))
    progress = PairProgress(total=100, finished_before=50, visible=False)
    assert progress.estimate() == ""
    progress.advance(10)  # 10 pairs in 10 s; the 50 from an earlier run say nothing about speed
    assert progress.estimate() == "about 40 s left"

"""Matching many pairs: the order for caches, what is stored, what is matched again."""

from __future__ import annotations

import numpy as np

from coam.caches import LRUCache
from coam.sfm.matching.match_pairs import match_pairs, order_pairs
from coam.sfm.matching.pair_matches import matches_to_record, record_to_matches
from coam.sfm.pairs import exhaustive_pairs
from coam.sfm.photos import Photo, PhotoFolder
from support.toy_scene import OracleMatcher, Scene


def count_encodings(pairs, cache_images):
    """How many images an LRU cache of that size would encode for `pairs` in this order."""
    cache = LRUCache(cache_images)
    encoded = []
    for name in (name for pair in pairs for name in pair):
        cache.get(name, lambda name=name: encoded.append(name))
    return len(encoded)


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
    matcher = OracleMatcher(scene)

    def match(digests):
        photos = tuple(
            Photo(name, folder / name, scene.size, digest)
            for name, digest in zip(scene.names, digests, strict=True)
        )
        match_pairs(
            matcher, PhotoFolder(folder, photos, ()), exhaustive_pairs(scene.names), tmp_path / "m.h5"
        )

    match("111")
    assert len(matcher.calls) == 3
    match("112")
    assert matcher.calls[3:] == [("view00.png", "view02.png"), ("view01.png", "view02.png")]

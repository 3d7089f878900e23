"""The match graph: longest tracks, strong pairs; keypoints on disk."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from coam.sfm.tracks.match_graph import (
    Keypoints,
    MatchGraph,
    find_places,
    graph_of_place,
    graph_of_strong_pairs,
    growing_order,
    load_keypoints,
    longest_tracks,
    save_keypoints,
    well_spread_tracks,
)
from coam.sfm.tracks.merge import Measurements
from coam.types import Grid


def test_the_longest_tracks_of_every_pair_stay():
    """Photos a, b, c with 2 nodes each: one track through all three, one in a and b only."""
    keypoints = Keypoints(
        ("a", "b", "c"), (None, None, None), np.array([0, 2, 4, 5]), np.arange(5),
        np.zeros((5, 2)), np.array([0, 1, 0, 1, 0]),
    )  # fmt: skip
    first, second = np.array([0, 1, 0, 2]), np.array([2, 3, 4, 4])
    edges = Measurements(first, second, np.zeros((4, 2)), np.tile(np.eye(2), (4, 1, 1)), np.full(4, 0.5))
    pairs = (("a", "b"), ("a", "c"), ("b", "c"))
    graph = MatchGraph(keypoints, pairs, np.array([0, 2, 3, 4]), edges, np.ones(4, np.bool_))
    assert longest_tracks(graph, 1).inlier.tolist() == [True, False, True, True]
    assert longest_tracks(graph, 2).inlier.all()
    refused = replace(graph, inlier=np.array([False, True, True, True]))
    assert longest_tracks(refused, 1).inlier.tolist() == [False, True, True, True]


def test_well_spread_tracks_come_from_all_parts_of_a_photo():
    """Photos a and b with four tracks on the left, of which three are sure, and one weak on the right.

    Two tracks of each photo are the best of either side; a pair that must have three gets the next best.
    """
    grid = Grid(4, 4, (0.0, 0.0), (1.0, 1.0))
    ids = np.array([0, 1, 4, 5, 3])  # of a 4 x 4 grid: four in the first quarter, one in the second
    keypoints = Keypoints(
        ("a", "b"), (grid, grid), np.array([0, 5, 10]), np.tile(ids, 2), np.zeros((10, 2)),
        np.tile(np.arange(5), 2),
    )  # fmt: skip
    assert keypoints.cells(2).tolist() == [0, 0, 0, 0, 1] * 2
    scores = np.array([0.7, 0.9, 0.8, 0.5, 0.1])
    edges = Measurements(
        np.arange(5), np.arange(5, 10), np.zeros((5, 2)), np.tile(np.eye(2), (5, 1, 1)), scores
    )
    graph = MatchGraph(keypoints, (("a", "b"),), np.array([0, 5]), edges, np.ones(5, np.bool_))
    assert well_spread_tracks(graph, 2, 0, 2).inlier.tolist() == [False, True, False, False, True]
    assert well_spread_tracks(graph, 2, 3, 2).inlier.tolist() == [False, True, True, False, True]
    assert well_spread_tracks(graph, 2, 0, 1).inlier.tolist() == [False, True, True, False, False]
    refused = replace(graph, inlier=np.array([True, False, True, True, True]))
    assert well_spread_tracks(refused, 1, 0, 2).inlier.tolist() == [False, False, True, False, False]


def test_photos_come_in_the_order_of_the_strongest_pairs_that_join_them():
    """c-d is the strongest pair; then c-b (3) comes before d-e (2), and a (5) only behind b; f-g is apart."""
    pairs = (("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("f", "g"))
    start, nodes = np.cumsum([0, 5, 3, 9, 2, 4]), np.arange(23)
    edges = Measurements(nodes, nodes, np.zeros((23, 2)), np.tile(np.eye(2), (23, 1, 1)), np.ones(23))
    names = Keypoints(tuple("abcdefgh"), (), nodes[:1], nodes[:0], np.zeros((0, 2)), nodes[:0])
    graph = MatchGraph(names, pairs, start, edges, np.ones(23, np.bool_))
    assert growing_order(graph) == ["c", "d", "b", "a", "e", "f", "g"]


def test_pairs_with_little_evidence_are_left_out_but_every_photo_keeps_its_best():
    """a-b 10 matches, b-c 10 matches, a-c 2 matches; d hangs on c by one match."""
    pairs = (("a", "b"), ("a", "c"), ("b", "c"), ("c", "d"))
    start = np.array([0, 10, 12, 22, 23])
    nodes = np.arange(23)
    edges = Measurements(nodes, nodes, np.zeros((23, 2)), np.tile(np.eye(2), (23, 1, 1)), np.full(23, 0.5))
    none = Keypoints((), (), nodes[:1], nodes[:0], np.zeros((0, 2)), nodes[:0])
    graph = MatchGraph(none, pairs, start, edges, np.ones(23, np.bool_))
    inlier = graph_of_strong_pairs(graph, 0.25).inlier
    assert [bool(inlier[graph.of(pair)].all()) for pair in range(4)] == [True, False, True, True]
    assert graph_of_strong_pairs(graph, 0.2).inlier.all()


def test_what_no_pair_joins_is_another_place():
    """c-d has one match, too few to join the two places."""
    pairs = (("a", "b"), ("c", "d"), ("d", "e"), ("d", "f"))
    start, nodes = np.array([0, 3, 4, 7, 10]), np.arange(10)
    edges = Measurements(nodes, nodes, np.zeros((10, 2)), np.tile(np.eye(2), (10, 1, 1)), np.full(10, 0.5))
    names = Keypoints(tuple("abcdefg"), (), nodes[:1], nodes[:0], np.zeros((0, 2)), nodes[:0])
    graph = MatchGraph(names, pairs, start, edges, np.ones(10, np.bool_))
    assert find_places(graph, 3) == [{"d", "e", "f"}, {"a", "b"}, {"c"}, {"g"}]
    assert find_places(graph, 1) == [{"c", "d", "e", "f"}, {"a", "b"}, {"g"}]
    own = graph_of_place(graph, {"d", "e", "c"}).inlier
    assert [int(own[graph.of(pair)].sum()) for pair in range(4)] == [0, 1, 3, 0]


def test_keypoints_round_trip(tracks, tmp_path):
    keypoints = tracks.keypoints
    again = load_keypoints(save_keypoints(keypoints, tmp_path / "k.h5"))
    assert again.names == keypoints.names
    assert again.grids == keypoints.grids
    for name in ("start", "ids", "positions", "tracks"):
        np.testing.assert_array_equal(getattr(again, name), getattr(keypoints, name))

"""Merging against one large least-squares problem, and tracks against plain sets; the match graph by hand."""

from __future__ import annotations

import numpy as np
import pytest

from coam.errors import DataError
from coam.geometry.local_affine import local_affine
from coam.sfm.matching.pair_matches import matches_to_record
from coam.sfm.tracks.match_graph import Keypoints, build_graph, place_keypoints
from coam.sfm.tracks.merge import Measurements, MergeOptions, _solve, build_tracks, merge_offsets
from coam.sfm.verification.two_view import VerifiedMatches, VerifiedPair
from coam.store.journal import PairJournal
from coam.types import Grid, Matches


def scattered(seed=0):
    """Measurements inside five tracks of 2 to 4 nodes, whose numbers and nodes are in no order."""
    generator = np.random.default_rng(seed)
    tracks = generator.permutation(np.repeat([0, 1, 2, 3, 4, -1], [3, 2, 4, 3, 2, 3]))
    first, second = [], []
    for track in range(5):
        nodes = generator.permutation(np.flatnonzero(tracks == track))
        for a in range(len(nodes)):
            for b in range(a + 1, len(nodes)):
                first.append(nodes[a])
                second.append(nodes[b])
    order = generator.permutation(len(first))
    first, second = np.array(first)[order], np.array(second)[order]
    affine = np.eye(2) + generator.normal(0, 0.2, (len(first), 2, 2))
    offsets = generator.normal(0, 2, (len(first), 2))
    return tracks, Measurements(first, second, offsets, affine, generator.uniform(0.2, 1, len(first)))


def least_squares(m, weight, count, gauge):
    """All displacements at once: rows sqrt(w) (d_b - A d_a - o), and sqrt(gauge) d."""
    rows = np.zeros((2 * len(m), 2 * count))
    right = np.zeros(2 * len(m))
    for k in range(len(m)):
        a, b, root = m.first[k], m.second[k], np.sqrt(weight[k])
        rows[2 * k : 2 * k + 2, 2 * b : 2 * b + 2] = root * np.eye(2)
        rows[2 * k : 2 * k + 2, 2 * a : 2 * a + 2] = -root * m.affine[k]
        right[2 * k : 2 * k + 2] = root * m.offsets[k]
    rows = np.concatenate([rows, np.sqrt(gauge) * np.eye(2 * count)])
    return np.linalg.lstsq(rows, np.concatenate([right, np.zeros(2 * count)]), rcond=None)[0].reshape(-1, 2)


@pytest.mark.parametrize("at_once", [1, 100, 1 << 22])
def test_all_tracks_are_solved_as_one_system_would_be(at_once, monkeypatch):
    monkeypatch.setattr("coam.sfm.tracks.merge._MOST_NUMBERS", at_once)
    tracks, measurements = scattered()
    found = _solve(measurements, measurements.weights, tracks, 0.01)
    expected = least_squares(measurements, measurements.weights, len(tracks), 0.01)
    np.testing.assert_allclose(found, expected, atol=1e-9)
    assert (found[tracks < 0] == 0).all()


def test_weights_fall_with_the_residual_as_stated():
    """Geman-McClure with twice the standard deviation, of the noise and of what the maps get wrong."""
    tracks, measurements = scattered(1)
    steps = np.full(len(tracks), 8.0)
    options = MergeOptions(iterations=3, max_displacement=100.0)
    found, residual = merge_offsets(measurements, tracks, steps, options)
    given = measurements.weights + 1e-3
    weight, noise = given, options.noise * 8.0
    for _ in range(3):
        expected = least_squares(measurements, weight, len(tracks), options.gauge)
        moved = expected[measurements.first]
        off = expected[measurements.second] - measurements.offsets
        off -= np.array([a @ d for a, d in zip(measurements.affine, moved, strict=True)])
        missed = np.hypot(*off.T)
        sigma = np.sqrt(noise**2 + (options.linear * np.hypot(*moved.T)) ** 2)
        weight = given * (noise / sigma) ** 2 / (1 + (missed / (2 * sigma)) ** 2) ** 2
    np.testing.assert_allclose(found, expected, atol=1e-7)
    np.testing.assert_allclose(residual, missed, atol=1e-7)
    short = merge_offsets(measurements, tracks, steps, MergeOptions(iterations=3, max_displacement=0.2))[0]
    far = np.linalg.norm(expected, axis=1) > 0.2 * 8
    assert 0 < far.sum() < (tracks >= 0).sum()
    np.testing.assert_allclose(short, np.where(far[:, None], 0, expected), atol=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_tracks_are_joined_strongest_first_by_plain_sets(seed):
    generator = np.random.default_rng(seed)
    image_of = np.repeat(np.arange(6), 5)
    first, second = generator.integers(0, 30, (2, 60))
    apart = image_of[first] != image_of[second]
    first, second = first[apart], second[apart]
    weights = generator.permutation(len(first)) / 100
    sets = [{node} for node in range(30)]
    for k in np.argsort(-weights):
        a, b = (next(s for s in sets if node in s) for node in (first[k], second[k]))
        images = [image_of[node] for node in a | b]
        if a is not b and len(set(images)) == len(images):
            sets = [s for s in sets if s is not a and s is not b] + [a | b]
    tracks = build_tracks(first, second, weights, image_of)
    found = {frozenset(np.flatnonzero(tracks == track).tolist()) for track in range(tracks.max() + 1)}
    assert found == {frozenset(s) for s in sets if len(s) > 1}
    assert (tracks < 0).sum() == sum(len(s) == 1 for s in sets)


# ---- the match graph

GRIDS = {"a": Grid(5, 4, (4, 4), (8, 8)), "b": Grid(6, 4, (4, 4), (8, 8)), "c": Grid(5, 5, (2, 3), (4, 6))}


def made(first, second, ids0, ids1, seed):
    grid0, grid1 = GRIDS[first], GRIDS[second]
    ids0, ids1 = np.array(ids0), np.array(ids1)
    offsets = np.random.default_rng(seed).uniform(-2, 2, (len(ids0), 2)).astype(np.float32)
    return Matches(
        grid0.positions(ids0).astype(np.float32), grid1.positions(ids1).astype(np.float32) + offsets,
        np.linspace(0.9, 0.3, len(ids0)).astype(np.float32), ids0, ids1, (40, 32), (48, 32), grid0, grid1,
        overlap=1.0,
    )  # fmt: skip


def verified(folder, pairs, inliers):
    journal = PairJournal(folder / "m.h5")
    journal.append({pair: matches_to_record(matches, "s") for pair, matches in pairs.items()})
    journal.finish(dict.fromkeys(pairs, "s"))
    return VerifiedMatches(journal, {pair: VerifiedPair(np.array(inliers[pair], np.int64)) for pair in pairs})


def test_nodes_are_the_grid_positions_of_inliers(tmp_path):
    pairs = {
        ("a", "b"): made("a", "b", [0, 3, 7, 9, 12, 18, 19], [1, 4, 9, 11, 13, 20, 23], 0),
        ("b", "c"): made("b", "c", [4, 9, 10, 13, 14, 20, 1], [3, 4, 24, 8, 11, 17, 0], 1),
        ("a", "c"): made("a", "c", [1, 2], [3, 4], 2),
    }
    inliers = {("a", "b"): [0, 1, 2, 4, 5, 6], ("b", "c"): [0, 1, 2, 3, 4, 5, 6], ("a", "c"): []}
    graph = build_graph(["a", "b", "c", "d"], verified(tmp_path, pairs, inliers))
    keypoints = graph.keypoints
    of_image = [keypoints.ids[keypoints.of(image)].tolist() for image in range(4)]
    assert of_image == [[0, 3, 7, 12, 18, 19], [1, 4, 9, 10, 13, 14, 20, 23], [0, 3, 4, 8, 11, 17, 24], []]
    assert keypoints.image_of.tolist() == [0] * 6 + [1] * 8 + [2] * 7
    assert keypoints.grids == (GRIDS["a"], GRIDS["b"], GRIDS["c"], None)
    assert keypoints.steps().tolist() == [8.0] * 14 + [5.0] * 7
    np.testing.assert_array_equal(keypoints.positions[:6], GRIDS["a"].positions(np.array(of_image[0])))
    assert (keypoints.tracks == -1).all()
    assert keypoints.track_count == 0
    assert graph.pairs == (("a", "b"), ("b", "c"))
    assert graph.start.tolist() == [0, 6, 13]
    assert graph.inlier.all()
    for number, pair in enumerate(graph.pairs):
        matches, own = pairs[pair], graph.of(number)
        kept = inliers[pair]
        first, second = graph.nodes(number)
        assert keypoints.ids[first].tolist() == matches.ids0[kept].tolist()
        assert keypoints.ids[second].tolist() == matches.ids1[kept].tolist()
        grid = keypoints.grids["abc".index(pair[1])]
        np.testing.assert_allclose(
            graph.edges.offsets[own], (matches.points1 - grid.positions(matches.ids1))[kept], atol=1e-5
        )
        np.testing.assert_allclose(graph.edges.weights[own], matches.scores[kept], atol=1e-6)
        expected = local_affine(matches.points0[kept].astype(float), matches.points1[kept].astype(float))
        np.testing.assert_allclose(graph.edges.affine[own], expected, atol=1e-4)
    placed = place_keypoints(graph, None)
    np.testing.assert_array_equal(placed.keypoints.positions, keypoints.positions)
    assert placed.keypoints.track_count == 8  # six of a-b, and two of b-c alone
    joined = placed.keypoints.tracks[[1, 7, 15]]  # 3 of a, 4 of b, 3 of c
    assert joined[0] == joined[1] == joined[2] >= 0


def test_a_photo_has_one_grid(tmp_path):
    other = Grid(5, 4, (2, 2), (4, 4))
    pairs = {("a", "b"): made("a", "b", [0, 3], [1, 4], 0), ("a", "c"): made("a", "c", [0, 3], [1, 4], 0)}
    pairs["a", "c"] = Matches(**(vars(pairs["a", "c"]) | {"grid0": other}))
    with pytest.raises(DataError, match="a: has two different grids"):
        build_graph(["a", "b", "c"], verified(tmp_path, pairs, {pair: [0, 1] for pair in pairs}))


def test_keypoints_of_nothing_are_in_no_track():
    none = np.zeros(0, np.int64)
    assert Keypoints((), (), np.zeros(1, np.int64), none, np.zeros((0, 2)), none).track_count == 0

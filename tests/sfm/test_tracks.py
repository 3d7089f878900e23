"""Merging sub-pixel offsets: planted answers are recovered, outliers rejected."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import least_squares
from toy_scene import OracleMatcher, Scene

from coam.sfm.keypoints import Keypoints, Links, links_of_strong_pairs, strongest_links
from coam.sfm.tracks import (
    Measurements,
    MergeOptions,
    build_tracks,
    local_affine,
    merge_offsets,
    refine_positions,
    triangulation_errors,
)


def planted(count=6, seed=0, outliers=0, affine=None):
    """One track over `count` images: true displacements and exact measurements of all pairs, some
    replaced.
    """
    generator = np.random.default_rng(seed)
    truth = generator.uniform(-2, 2, (count, 2))
    truth -= truth.mean(0)
    maps = [np.eye(2)] * count if affine is None else [affine(i) for i in range(count)]  # image-from-surface
    pairs = [(a, b) for a in range(count) for b in range(a + 1, count)]
    first, second = (np.array(side) for side in zip(*pairs, strict=True))
    local = np.array([maps[b] @ np.linalg.inv(maps[a]) for a, b in pairs])
    offsets = truth[second] - np.einsum("mij,mj->mi", local, truth[first])
    wrong = generator.choice(len(pairs), outliers, replace=False)
    offsets[wrong] += generator.choice([-1, 1], (outliers, 2)) * generator.uniform(3, 4, (outliers, 2))
    return truth, Measurements(first, second, offsets, local, np.ones(len(pairs))), wrong


def relative(displacement, measurements):
    """What a track says about each pair: independent of which surface point it stands for."""
    moved = np.einsum("mij,mj->mi", measurements.affine, displacement[measurements.first])
    return displacement[measurements.second] - moved


def test_planted_offsets_are_recovered_exactly():
    truth, measurements, _ = planted()
    displacement, residual = merge_offsets(measurements, np.zeros(6, np.int64), np.full(6, 8.0))
    np.testing.assert_allclose(relative(displacement, measurements), relative(truth, measurements), atol=2e-3)
    # identical affine maps: the gauge of least displacement is zero mean, as planted
    np.testing.assert_allclose(displacement, truth, atol=2e-3)
    assert residual.max() < 2e-3


def test_outlier_offsets_are_rejected():
    truth, measurements, wrong = planted(count=7, seed=3, outliers=4)
    displacement, residual = merge_offsets(measurements, np.zeros(7, np.int64), np.full(7, 8.0))
    good = np.setdiff1d(np.arange(len(measurements)), wrong)
    error = np.linalg.norm(
        (relative(displacement, measurements) - relative(truth, measurements))[good], axis=1
    )
    assert error.max() < 0.15
    assert residual[wrong].min() > 3.0
    # plain least squares would have been pulled away
    plain, _ = merge_offsets(measurements, np.zeros(7, np.int64), np.full(7, 8.0), MergeOptions(iterations=1))
    assert (
        np.linalg.norm((relative(plain, measurements) - relative(truth, measurements))[good], axis=1).max()
        > 0.5
    )


def test_zoom_and_rotation_between_images_are_respected():
    def turn(i):
        angle = 0.3 * i
        rotation = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        return (1.0 + 0.25 * i) * rotation

    _, measurements, _ = planted(affine=turn)
    _, residual = merge_offsets(measurements, np.zeros(6, np.int64), np.full(6, 8.0))
    assert residual.max() < 5e-3
    blind = Measurements(
        measurements.first, measurements.second, measurements.offsets,
        np.tile(np.eye(2), (len(measurements), 1, 1)), measurements.weights,
    )  # fmt: skip
    assert merge_offsets(blind, np.zeros(6, np.int64), np.full(6, 8.0))[1].max() > 0.5


def test_measurements_between_tracks_are_not_used():
    first, second = np.array([0, 2]), np.array([1, 3])
    offsets = np.array([[1.0, 0.0], [0.0, 2.0]])
    eye = np.tile(np.eye(2), (3, 1, 1))
    m = Measurements(
        np.append(first, 1), np.append(second, 2), np.vstack([offsets, [50.0, 50.0]]), eye, np.ones(3)
    )
    displacement, _ = merge_offsets(m, np.array([0, 0, 1, 1]), np.full(4, 8.0))
    np.testing.assert_allclose(displacement, [[-0.5, 0], [0.5, 0], [0, -1], [0, 1]], atol=2e-3)


def test_displacement_beyond_a_cell_is_not_believed():
    m = Measurements(np.array([0]), np.array([1]), np.array([[40.0, 0.0]]), np.eye(2)[None], np.ones(1))
    displacement, _ = merge_offsets(m, np.zeros(2, np.int64), np.full(2, 8.0))
    np.testing.assert_array_equal(displacement, 0)


def test_nothing_to_merge():
    empty = Measurements(
        np.zeros(0, int), np.zeros(0, int), np.zeros((0, 2)), np.zeros((0, 2, 2)), np.zeros(0)
    )
    displacement, residual = merge_offsets(empty, np.full(3, -1), np.ones(3))
    assert displacement.shape == (3, 2)
    assert residual.shape == (0,)
    assert (build_tracks(empty.first, empty.second, empty.weights, np.arange(3)) == -1).all()


def test_tracks_never_hold_two_positions_of_one_image():
    # nodes 0, 1 in image 0; node 2 in image 1; node 3 in image 2. The weak edge 1-3 would join 0 and 1.
    image_of = np.array([0, 0, 1, 2])
    first, second = np.array([0, 2, 1]), np.array([2, 3, 3])
    tracks = build_tracks(first, second, np.array([0.9, 0.8, 0.1]), image_of)
    assert tracks.tolist() == [0, -1, 0, 0]
    # with the order of strength turned round the other one wins
    tracks = build_tracks(first, second, np.array([0.1, 0.8, 0.9]), image_of)
    assert tracks.tolist() == [-1, 0, 0, 0]


def test_local_affine_finds_the_map_and_shrugs_off_outliers():
    generator = np.random.default_rng(0)
    affine = np.array([[1.3, -0.4], [0.2, 0.8]])
    points0 = generator.uniform(0, 500, (300, 2))
    points1 = points0 @ affine.T + [20, -5] + generator.normal(0, 0.2, (300, 2))
    wrong = generator.choice(300, 30, replace=False)
    points1[wrong] = generator.uniform(0, 500, (30, 2))
    found = local_affine(points0, points1)
    good = np.setdiff1d(np.arange(300), wrong)
    assert np.median(np.abs(found[good] - affine).max((1, 2))) < 0.02
    assert local_affine(points0[:4], points1[:4]).tolist() == [np.eye(2).tolist()] * 4


def collect(scene, matcher):
    """All pairs of a scene as measurements; node = image * grid + id."""
    size = len(scene.grid)
    parts = []
    for i in range(scene.count):
        for j in range(i + 1, scene.count):
            m = matcher.match(scene.names[i], scene.names[j])
            true1 = scene.project(j, scene.surface(i, m.points0.astype(float)))
            m = m.select(
                np.linalg.norm(true1 - m.points1, axis=1) < 12
            )  # what two-view verification would leave
            affine = local_affine(m.points0.astype(float), m.points1.astype(float))
            offsets = (m.points1 - m.grid1.positions(m.ids1)).astype(float)
            parts.append((m.ids0 + i * size, m.ids1 + j * size, offsets, affine, m.scores.astype(float)))
    return Measurements(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def test_merging_beats_the_grid_and_a_single_measurement():
    scene = Scene(count=6, size=(320, 240), focal=300.0)
    measurements = collect(scene, OracleMatcher(scene, noise=0.3))
    size = len(scene.grid)
    image_of = np.repeat(np.arange(6), size)
    grid = np.tile(scene.grid.positions(np.arange(size)), (6, 1)).astype(float)
    tracks, displacement, held = refine_positions(measurements, image_of, np.full(len(image_of), 8.0))
    quantised = triangulation_errors(grid, image_of, tracks, scene.projections, 3)
    merged = triangulation_errors(grid + displacement, image_of, tracks, scene.projections, 3)
    assert np.median(quantised) > 1.5  # half a cell of 8 pixels
    assert np.median(merged) < 0.3  # below the noise of one measurement
    assert 0.6 < held.mean() < 1.0


def test_triangulation_of_a_known_point():
    scene = Scene(count=4)
    point = np.array([[0.2, 0.3, 0.5]])
    positions = np.concatenate([scene.project(i, point) for i in range(4)])
    errors = triangulation_errors(positions, np.arange(4), np.zeros(4, np.int64), scene.projections)
    np.testing.assert_allclose(errors, 0, atol=1e-6)
    positions[0] += [3.0, 0.0]
    moved = triangulation_errors(positions, np.arange(4), np.zeros(4, np.int64), scene.projections)

    def residual(x):
        return np.concatenate([scene.project(i, x[None])[0] - positions[i] for i in range(4)])

    best = least_squares(residual, point[0])
    assert (moved**2).sum() == pytest.approx(2 * best.cost, rel=1e-3)


def test_strongest_links_keep_the_longest_tracks_of_every_pair():
    """Photos a, b, c with 2 nodes each: one track through all three, one in a and b only."""
    keypoints = Keypoints(
        ("a", "b", "c"), (None, None, None), np.array([0, 2, 4, 5]), np.arange(5),
        np.zeros((5, 2)), np.array([0, 1, 0, 1, 0]),
    )  # fmt: skip
    first, second = np.array([0, 1, 0, 2]), np.array([2, 3, 4, 4])
    edges = Measurements(first, second, np.zeros((4, 2)), np.tile(np.eye(2), (4, 1, 1)), np.full(4, 0.5))
    links = Links((("a", "b"), ("a", "c"), ("b", "c")), np.array([0, 2, 3, 4]), edges, np.ones(4, np.bool_))
    assert strongest_links(keypoints, links, 1).held.tolist() == [True, False, True, True]
    assert strongest_links(keypoints, links, 2).held.all()
    refused = replace(links, held=np.array([False, True, True, True]))
    assert strongest_links(keypoints, refused, 1).held.tolist() == [False, True, True, True]


def test_pairs_with_little_evidence_are_left_out_but_every_photo_keeps_its_best():
    """a-b 10 links, b-c 10 links, a-c 2 links; d hangs on c by one link."""
    pairs = (("a", "b"), ("a", "c"), ("b", "c"), ("c", "d"))
    start = np.array([0, 10, 12, 22, 23])
    nodes = np.arange(23)
    edges = Measurements(nodes, nodes, np.zeros((23, 2)), np.tile(np.eye(2), (23, 1, 1)), np.full(23, 0.5))
    links = Links(pairs, start, edges, np.ones(23, np.bool_))
    kept = links_of_strong_pairs(links, 0.25).held
    assert [bool(kept[links.of(pair)].all()) for pair in range(4)] == [True, False, True, True]
    assert links_of_strong_pairs(links, 0.2).held.all()

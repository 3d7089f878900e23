"""Merging sub-pixel offsets: planted answers are recovered, outliers rejected."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import least_squares

from coam.geometry.local_affine import local_affine
from coam.sfm.tracks.merge import Measurements, MergeOptions, build_tracks, merge_offsets, refine_positions
from support.toy_scene import OracleMatcher, Scene
from support.triangulation import triangulation_errors


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


def one_edge_at_a_time(first, second, weights, image_of):
    """Tracks as sets of nodes: the strongest edge first, one after another."""
    track = {node: {node} for node in range(len(image_of))}
    for edge in np.argsort(-weights, kind="stable"):
        one, other = track[first[edge]], track[second[edge]]
        if not {image_of[node] for node in one} & {image_of[node] for node in other}:
            one |= other
            for node in other:
                track[node] = one
    return {frozenset(nodes) for nodes in track.values() if len(nodes) > 1}


@pytest.mark.parametrize("seed", range(12))
def test_tracks_are_those_of_joining_one_edge_at_a_time(seed):
    # Crowded graphs, with equal weights, edges that stand twice and many that would put an image in twice.
    generator = np.random.default_rng(seed)
    nodes, images, edges = [(30, 5, 60), (300, 10, 2000), (2000, 40, 6000)][seed % 3]
    image_of = np.sort(generator.integers(0, images, nodes))
    first, second = generator.integers(0, nodes, (2, edges))
    apart = image_of[first] != image_of[second]
    first, second, weights = first[apart], second[apart], generator.random(apart.sum()).round(2)
    tracks = build_tracks(first, second, weights, image_of)
    found = {frozenset(np.flatnonzero(tracks == number).tolist()) for number in range(tracks.max() + 1)}
    assert found == one_edge_at_a_time(first, second, weights, image_of)
    assert max(map(len, found)) > 3


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
    tracks, displacement, inlier = refine_positions(measurements, image_of, np.full(len(image_of), 8.0))
    quantised = triangulation_errors(grid, image_of, tracks, scene.projections, 3)
    merged = triangulation_errors(grid + displacement, image_of, tracks, scene.projections, 3)
    assert np.median(quantised) > 1.5  # half a cell of 8 pixels
    assert np.median(merged) < 0.3  # below the noise of one measurement
    assert 0.6 < inlier.mean() < 1.0


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

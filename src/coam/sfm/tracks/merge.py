"""Feature tracks, and one sub-pixel keypoint position per image and track from the offsets of all pairs.

A match of the pair (a, b) says: grid position g_a of image a lies at g_b + o in image b. Taken alone, grid
positions chain into tracks but are half a cell off; sub-pixel positions are exact but differ from pair to
pair, because each pair follows the surface point of *its* first image. Both are reconciled per track: every
image i of a track gets a displacement d_i, and a match of (a, b) asks for

    d_b = o + A d_a          (A: the local affine map from image a to image b, from neighbouring matches)

All matches of a track together are an overdetermined linear system in the d_i, solved with robust weights.
The surface point that the track stands for is free (a gauge of two numbers); a weak pull of all d_i to zero
picks the one that keeps displacements, and so the error of the linear model, small.

Everything here is numpy and scipy on plain arrays. A node is a grid position of one image.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import ClassVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

_MOST_NUMBERS = 1 << 22  # of the systems that are solved at once


@dataclass(frozen=True)
class Measurements:
    """Offset measurements: M matches as edges of the match graph, between N nodes."""

    first: Ints  # (M,) node in the image whose grid position is exact
    second: Ints  # (M,) node in the image that carries the offset
    offsets: Floats  # (M, 2) pixels in the second image
    affine: Floats  # (M, 2, 2) local map from the first image to the second
    weights: Floats  # (M,) in [0, 1], the match scores

    def __len__(self) -> int:
        return len(self.first)

    def select(self, index: npt.NDArray[np.generic]) -> Measurements:
        """The measurements at `index`."""
        return Measurements(*(getattr(self, field.name)[index] for field in fields(self)))


@dataclass(frozen=True)
class MergeOptions:
    """How offsets are merged."""

    noise: float = 0.08  # expected error of one offset, in grid steps; larger residuals lose weight
    linear: float = 0.3  # error of the linear model per pixel of displacement: far-displaced nodes count less
    gauge: float = 1e-3  # pull of every displacement to zero, against a measurement's 1
    iterations: int = 6  # rounds of re-weighting
    tolerance: float = 0.3  # grid steps: a match that is further off than this after merging is wrong
    max_displacement: float = 1.0  # grid steps: a position further from its node than this stays on the node
    passes: int = 2  # over all tracks: each leaves out what the one before could not satisfy

    RECORDED: ClassVar[str] = "MergeOptions(noise, linear, gauge, iterations, tolerance, max_displacement)"


def build_tracks(first: Ints, second: Ints, weights: Floats, image_of: Ints) -> Ints:
    """Feature tracks: track number of every node (N,), -1 for nodes without a track.

    Edges first-second (M,) are joined strongest first; an edge that would put two nodes of one image into one
    track is not followed: its track would claim that one point lies at two places of a photo.

    Whether an edge is followed depends on the two tracks that it would join and on nothing else. So all
    edges that are the strongest of both their tracks are decided at once, a round after another.
    """
    label = np.arange(len(image_of))  # of the track of each node: one of its nodes
    nodes = np.arange(len(image_of))  # those of tracks that have undecided edges
    # These tracks are numbered anew when few are left, so that late rounds cost little.
    node_of, number = (
        label.copy(),
        label.copy(),
    )  # of each track one of its nodes; the track of each of `nodes`
    photos = int(image_of.max(initial=0)) + 1
    ends = np.stack([first, second])[:, np.argsort(-weights, kind="stable")]  # tracks (2, M) of these edges
    while len(nodes):
        count = len(node_of)
        decided = _strongest_of_both(ends, count)
        joined = np.full(count, -1)  # track -> the one that it would become
        joined[ends[:, decided]] = ends[0, decided]
        members = np.flatnonzero(joined[number] >= 0)
        places = np.sort(joined[number[members]] * photos + image_of[nodes[members]])
        twice = np.zeros(count, np.bool_)
        twice[places[1:][places[1:] == places[:-1]] // photos] = True
        follow = (joined >= 0) & ~twice[joined]
        become = np.where(follow, joined, np.arange(count))
        number, ends = become[number], become[ends[:, ~decided]]
        # of several edges between two tracks the strongest decides for all
        _, kept = np.unique(ends.min(axis=0) * count + ends.max(axis=0), return_index=True)
        kept = np.sort(kept)
        ends = ends[:, kept[ends[0, kept] != ends[1, kept]]]
        undecided = np.zeros(count, np.bool_)
        undecided[ends] = True
        alive = undecided[number]
        label[nodes[~alive]] = node_of[number[~alive]]
        nodes, number = nodes[alive], number[alive]
        if 2 * undecided.sum() < count:
            renumbered = np.cumsum(undecided) - 1
            node_of, number, ends = node_of[undecided], renumbered[number], renumbered[ends]
    _, component, sizes = np.unique(label, return_inverse=True, return_counts=True)
    number = np.where(sizes > 1, np.cumsum(sizes > 1) - 1, -1)
    return np.asarray(number[component], np.int64)


def _strongest_of_both(ends: Ints, count: int) -> Bools:
    """Which edges (M,) come first at both their ends (2, M), numbers below `count`."""
    order = np.arange(ends.shape[1])
    foremost = np.full((2, count), len(order))
    for own, side in zip(foremost, ends, strict=True):
        own[side[::-1]] = order[::-1]  # what is written last stays
    return np.asarray((foremost.min(axis=0)[ends] == order).all(axis=0))


def refine_positions(
    measurements: Measurements, image_of: Ints, steps: Floats, options: MergeOptions | None = None
) -> tuple[Ints, Floats, Bools]:
    """Tracks and refined displacements of all nodes, in several passes.

    A pass leaves out measurements that the one before could not satisfy, so that wrong matches neither bend
    nor join tracks. Gives (tracks (N,), displacements (N, 2), mask (M,) of inlier measurements).
    """
    options = options or MergeOptions()
    inlier = np.ones(len(measurements), np.bool_)
    tracks, displacement = np.full(len(image_of), -1, np.int64), np.zeros((len(image_of), 2))
    for _ in range(options.passes):
        used = measurements.select(np.flatnonzero(inlier))
        tracks = build_tracks(used.first, used.second, used.weights, image_of)
        displacement, residual = merge_offsets(measurements, tracks, steps, options)
        inlier = residual < options.tolerance * steps[measurements.second]
    return tracks, displacement, inlier


def merge_offsets(
    measurements: Measurements, tracks: Ints, steps: Floats, options: MergeOptions | None = None
) -> tuple[Floats, Floats]:
    """Displacements (N, 2) in pixels of all nodes from their grid positions, and residuals (M,).

    tracks (N,): track of each node; measurements between two tracks are not used (but their residual is
    given). steps (N,): grid step of each node's image, in pixels: the unit in which errors are judged.
    """
    options = options or MergeOptions()
    inside = (tracks[measurements.first] == tracks[measurements.second]) & (tracks[measurements.first] >= 0)
    used = measurements.select(np.flatnonzero(inside))
    displacement = np.zeros((len(tracks), 2))
    given = weight = used.weights + 1e-3
    noise = options.noise * steps[used.second]
    for _ in range(options.iterations if len(used) else 0):
        displacement = _solve(used, weight, tracks, options.gauge)
        moved = np.linalg.norm(displacement[used.first], axis=1)
        sigma = np.hypot(noise, options.linear * moved)
        # Geman-McClure: a measurement several sigma off counts for nothing
        weight = given * (noise / sigma) ** 2 / (1 + (_residual(used, displacement) / (2 * sigma)) ** 2) ** 2
    lost = np.linalg.norm(displacement, axis=1) > options.max_displacement * steps
    displacement[lost] = 0.0
    return displacement, _residual(measurements, displacement)


def _residual(measurements: Measurements, displacement: Floats) -> Floats:
    """(M,) pixels: |d_b - A d_a - o|."""
    moved = np.einsum("mij,mj->mi", measurements.affine, displacement[measurements.first])
    off = displacement[measurements.second] - moved - measurements.offsets
    return np.asarray(np.linalg.norm(off, axis=1))


def _solve(m: Measurements, weight: Floats, tracks: Ints, gauge: float) -> Floats:
    """Weighted least squares (N, 2) for all tracks: they are independent, so many small dense systems.

    Every measurement lies inside one track. Tracks of one size are solved together.
    """
    solution = np.zeros((len(tracks), 2))
    nodes = np.flatnonzero(tracks >= 0)
    sizes = np.bincount(tracks[nodes])
    by_size = np.argsort(sizes, kind="stable")
    sizes, rank = sizes[by_size], np.argsort(by_size)
    nodes = nodes[np.argsort(rank[tracks[nodes]], kind="stable")]  # track by track
    place = np.zeros(len(tracks), np.int64)
    place[nodes] = np.arange(len(nodes))
    first_node = np.cumsum([0, *sizes])  # of every track, in `nodes`
    edge_rank = rank[tracks[m.first]]
    edges = np.argsort(edge_rank, kind="stable")
    first_edge = np.searchsorted(edge_rank[edges], np.arange(len(sizes) + 1))
    begin = 0
    while begin < len(sizes):
        width = int(sizes[begin])
        most = begin + max(1, _MOST_NUMBERS // (2 * width) ** 2)
        end = min(int(np.searchsorted(sizes, width, "right")), most)
        own = edges[first_edge[begin] : first_edge[end]]
        a, b = (place[ends[own]] - first_node[begin] for ends in (m.first, m.second))
        found = _solve_alike(m.select(own), weight[own], a, b, (end - begin, width), gauge)
        solution[nodes[first_node[begin] : first_node[end]]] = found
        begin = end
    return solution


def _solve_alike(
    m: Measurements, weight: Floats, a: Ints, b: Ints, shape: tuple[int, int], gauge: float
) -> Floats:
    """Displacements (count * width, 2) of `shape` = (count, width): so many tracks of so many nodes.

    a, b (M,): which of these nodes the measurements join.
    """
    count, width = shape
    affine = weight[:, None, None] * m.affine
    normal = np.zeros((count * width * width, 2, 2))
    right = np.zeros((count * width, 2))
    blocks = (
        (a, a, m.affine.transpose(0, 2, 1) @ affine),
        (b, b, weight[:, None, None] * np.eye(2)),
        (b, a, -affine),
        (a, b, -affine.transpose(0, 2, 1)),
    )
    for row, column, block in blocks:
        np.add.at(normal, row * width + column % width, block)
    np.add.at(right, b, weight[:, None] * m.offsets)
    np.add.at(right, a, -np.einsum("mji,mj->mi", affine, m.offsets))
    system = normal.reshape(count, width, width, 2, 2).transpose(0, 1, 3, 2, 4).reshape(count, 2 * width, -1)
    system += gauge * np.eye(2 * width)
    answer = np.linalg.solve(system, right.reshape(count, 2 * width, 1))
    return np.asarray(answer, np.float64).reshape(-1, 2)

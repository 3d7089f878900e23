"""Pairwise sub-pixel matches that chain: one refined position per image and track.

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

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


_WIDTHS = np.array(
    [2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256]
)  # nodes: tracks are padded to these
_MOST_NUMBERS = 1 << 22  # of the systems that are solved at once


@dataclass(frozen=True)
class Measurements:
    """M matches as edges between N nodes."""

    first: Ints  # (M,) node in the image whose grid position is exact
    second: Ints  # (M,) node in the image that carries the offset
    offsets: Floats  # (M, 2) pixels in the second image
    affine: Floats  # (M, 2, 2) local map from the first image to the second
    weights: Floats  # (M,) in [0, 1], the match scores

    def __len__(self) -> int:
        return len(self.first)

    def select(self, index: npt.NDArray[np.generic]) -> Measurements:
        """The measurements at `index`."""
        return Measurements(
            self.first[index],
            self.second[index],
            self.offsets[index],
            self.affine[index],
            self.weights[index],
        )


@dataclass(frozen=True)
class MergeOptions:
    """How offsets are merged."""

    noise: float = 0.08  # expected error of one offset, in grid steps; larger residuals lose weight
    linear: float = 0.3  # error of the linear model per pixel of displacement: far-displaced nodes count less
    gauge: float = 1e-3  # pull of every displacement to zero, against a measurement's 1
    iterations: int = 6  # rounds of re-weighting
    tolerance: float = 0.3  # grid steps: a match that is further off than this after merging is wrong
    max_displacement: float = (
        1.0  # grid steps: a position further from its grid node than this stays on the node
    )


def local_affine(points0: Floats, points1: Floats, neighbours: int = 12, rounds: int = 3) -> Floats:
    """Affine maps (M, 2, 2) around each match of one pair, from its neighbours in image 0.

    points0, points1: (M, 2). Neighbours across a depth edge disagree and lose weight; where there is little
    evidence the map falls back to the affine map of the whole pair (to the identity with fewer than 6
    matches).
    """
    from scipy.spatial import cKDTree

    count = len(points0)
    if count < 6:
        return np.tile(np.eye(2), (count, 1, 1))
    whole = _affine_of_pair(points0, points1, rounds)
    neighbours = min(neighbours, count - 1)
    _, index = cKDTree(points0).query(points0, neighbours + 1)
    near0 = points0[index[:, 1:]] - points0[:, None]  # (M, K, 2)
    near1 = points1[index[:, 1:]] - points1[:, None]
    spread = (near0**2).sum(-1).mean(1)  # (M,)
    affine = np.tile(whole, (count, 1, 1))
    for _ in range(rounds):
        residual = np.linalg.norm(near1 - near0 @ affine.transpose(0, 2, 1), axis=-1)
        scale = np.maximum(np.median(residual, axis=1, keepdims=True), 1e-3) * 1.5
        weight = 1.0 / (1.0 + (residual / scale) ** 2)
        prior = 0.3 * spread[:, None, None] * np.eye(2)  # worth about a third of a neighbour
        weighted = weight[:, :, None] * near0
        left = near1.transpose(0, 2, 1) @ weighted + whole @ prior
        right = near0.transpose(0, 2, 1) @ weighted + prior
        affine = left @ np.linalg.inv(right)
    return _bounded(affine)


def _affine_of_pair(points0: Floats, points1: Floats, rounds: int) -> Floats:
    """One affine map (2, 2) for all matches, robustly."""
    weight = np.ones(len(points0))
    affine = np.eye(2)
    for _ in range(rounds):
        total = weight.sum()
        centred0 = points0 - (weight[:, None] * points0).sum(0) / total
        centred1 = points1 - (weight[:, None] * points1).sum(0) / total
        moment = (weight[:, None] * centred0).T @ centred0
        moment += 1e-9 * (np.trace(moment) + 1.0) * np.eye(2)
        affine = np.linalg.solve(moment, (weight[:, None] * centred0).T @ centred1).T
        residual = np.linalg.norm(centred1 - centred0 @ affine.T, axis=1)
        weight = 1.0 / (1.0 + (residual / max(1.5 * float(np.median(residual)), 1e-6)) ** 2)
    return affine


def _bounded(affine: Floats, largest: float = 5.0) -> Floats:
    """Affine maps whose stretch is clipped to [1 / largest, largest]: few neighbours can give nonsense."""
    left, values, right = np.linalg.svd(affine)
    bounded: Floats = (left * np.clip(values, 1 / largest, largest)[..., None, :]) @ right
    return bounded


def build_tracks(first: Ints, second: Ints, weights: Floats, image_of: Ints) -> Ints:
    """Track number of every node (N,), -1 for nodes without a track.

    Edges first-second (M,) are joined strongest first; an edge that would put two nodes of one image into one
    track is not followed: its track would claim that one point lies at two places of a photo.
    """
    parent = list(range(len(image_of)))
    images: list[set[int] | None] = [None] * len(image_of)

    def root(node: int) -> int:
        while parent[node] != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    def images_at(node: int) -> set[int]:
        return images[node] or {int(image_of[node])}

    for edge in np.argsort(-weights, kind="stable"):
        a, b = root(int(first[edge])), root(int(second[edge]))
        if a == b:
            continue
        in_a, in_b = images_at(a), images_at(b)
        if not in_a.isdisjoint(in_b):
            continue
        if len(in_a) < len(in_b):
            a, b, in_a, in_b = b, a, in_b, in_a
        parent[b] = a
        images[a], images[b] = in_a | in_b, None
    roots = np.array([root(node) for node in range(len(image_of))], dtype=np.int64)
    _, numbers, sizes = np.unique(roots, return_inverse=True, return_counts=True)
    tracks = numbers.astype(np.int64)
    tracks[sizes[numbers] < 2] = -1
    used = np.unique(tracks[tracks >= 0])
    compact = np.full(int(tracks.max(initial=-1)) + 2, -1, np.int64)
    compact[used] = np.arange(len(used))
    return compact[tracks]


def refine_positions(
    measurements: Measurements, image_of: Ints, steps: Floats, options: MergeOptions | None = None
) -> tuple[Ints, Floats, Bools]:
    """Tracks and refined displacements of all nodes, in two passes.

    The second pass leaves out measurements that the first could not satisfy, so that wrong matches neither
    bend nor join tracks. Gives (tracks (N,), displacements (N, 2), mask (M,) of the measurements that hold in
    the end).
    """
    options = options or MergeOptions()
    held = np.ones(len(measurements), np.bool_)
    tracks, displacement = np.full(len(image_of), -1, np.int64), np.zeros((len(image_of), 2))
    for _ in range(2):
        kept = measurements.select(np.flatnonzero(held))
        tracks = build_tracks(kept.first, kept.second, kept.weights, image_of)
        displacement, residual = merge_offsets(measurements, tracks, steps, options)
        held = residual < options.tolerance * steps[measurements.second]
    return tracks, displacement, held


def merge_offsets(
    measurements: Measurements, tracks: Ints, steps: Floats, options: MergeOptions | None = None
) -> tuple[Floats, Floats]:
    """Displacements (N, 2) of all nodes from their grid positions, and what is left of each measurement (M,),
    in pixels.

    tracks (N,): track of each node; measurements between two tracks are not used (but their residual is
    given). steps (N,): grid step of each node's image, in pixels: the unit in which errors are judged.
    """
    options = options or MergeOptions()
    inside = (tracks[measurements.first] == tracks[measurements.second]) & (tracks[measurements.first] >= 0)
    used = measurements.select(np.flatnonzero(inside))
    displacement = np.zeros((len(tracks), 2))
    weight = used.weights + 1e-3
    step = steps[used.second]
    for _ in range(options.iterations if len(used) else 0):
        displacement = _solve(used, weight, tracks, options.gauge)
        residual = np.linalg.norm(_residual(used, displacement), axis=1)
        moved = np.linalg.norm(displacement[used.first], axis=1)
        sigma = np.hypot(options.noise * step, options.linear * moved)
        # Geman-McClure: a measurement several sigma off counts for nothing
        weight = (
            (used.weights + 1e-3)
            * (options.noise * step / sigma) ** 2
            / (1 + (residual / (2 * sigma)) ** 2) ** 2
        )
    lost = np.linalg.norm(displacement, axis=1) > options.max_displacement * steps
    displacement[lost] = 0.0
    return displacement, np.linalg.norm(_residual(measurements, displacement), axis=1)


def _residual(measurements: Measurements, displacement: Floats) -> Floats:
    """(M, 2): d_b - A d_a - o."""
    moved = np.einsum("mij,mj->mi", measurements.affine, displacement[measurements.first])
    left: Floats = displacement[measurements.second] - moved - measurements.offsets
    return left


def _solve(m: Measurements, weight: Floats, tracks: Ints, gauge: float) -> Floats:
    """Weighted least squares (N, 2) for all tracks: they are independent, so many small dense systems.

    Every measurement lies inside one track.
    """
    solution = np.zeros((len(tracks), 2))
    sizes = np.bincount(tracks[tracks >= 0])
    widths = _WIDTHS[np.searchsorted(_WIDTHS, sizes)] if sizes.max(initial=0) <= _WIDTHS[-1] else sizes
    rank = np.empty(len(sizes), np.int64)  # tracks by width: those of one width are solved together
    rank[np.argsort(widths, kind="stable")] = np.arange(len(sizes))
    widths = np.sort(widths)
    nodes = np.flatnonzero(tracks >= 0)
    nodes = nodes[np.argsort(rank[tracks[nodes]], kind="stable")]
    node_rank = rank[tracks[nodes]]
    place = np.zeros(len(tracks), np.int64)  # of each node in its track
    place[nodes] = np.arange(len(nodes)) - np.searchsorted(node_rank, node_rank)
    edge_rank = rank[tracks[m.first]]
    order = np.argsort(edge_rank, kind="stable")
    edge_rank = edge_rank[order]
    begin = 0
    while begin < len(widths):
        width = int(widths[begin])
        end = min(
            int(np.searchsorted(widths, width, "right")), begin + max(1, _MOST_NUMBERS // (2 * width) ** 2)
        )
        edges = order[slice(*np.searchsorted(edge_rank, [begin, end]))]
        own = nodes[slice(*np.searchsorted(node_rank, [begin, end]))]
        found = _solve_alike(
            m.select(edges),
            weight[edges],
            rank[tracks[m.first[edges]]] - begin,
            place,
            (end - begin, width),
            gauge,
        )
        solution[own] = found[rank[tracks[own]] - begin, place[own]]
        begin = end
    return solution


def _solve_alike(
    m: Measurements, weight: Floats, track: Ints, place: Ints, shape: tuple[int, int], gauge: float
) -> Floats:
    """Displacements (count, width, 2) of `shape` = (count, width): so many tracks of at most so many nodes.

    track (M,): track of each measurement, place (N,): of each node in its track.
    """
    count, width = shape
    a, b = place[m.first], place[m.second]
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
        np.add.at(normal, (track * width + row) * width + column, block)
    np.add.at(right, track * width + b, weight[:, None] * m.offsets)
    np.add.at(right, track * width + a, -np.einsum("mji,mj->mi", affine, m.offsets))
    system = normal.reshape(count, width, width, 2, 2).transpose(0, 1, 3, 2, 4).reshape(count, 2 * width, -1)
    system += gauge * np.eye(2 * width)
    answer = np.linalg.solve(system, right.reshape(count, 2 * width, 1))
    return np.asarray(answer, np.float64).reshape(count, width, 2)


def triangulation_errors(
    positions: Floats, node_image: Ints, tracks: Ints, projections: Floats, minimum: int = 2
) -> Floats:
    """Reprojection errors (K,) in pixels of all nodes in tracks when cameras are known: the accuracy of
    positions.

    positions (N, 2); node_image (N,); tracks (N,); projections (images, 3, 4) from world to pixels. Each
    track is triangulated from its own positions (linear, then three Gauss-Newton rounds).
    """
    errors: list[Floats] = []
    order = np.argsort(tracks, kind="stable")
    order = order[tracks[order] >= 0]
    groups = np.split(order, np.flatnonzero(np.diff(tracks[order])) + 1)
    for nodes in groups:
        if len(nodes) >= minimum:
            errors.append(_triangulate(positions[nodes], projections[node_image[nodes]])[1])
    return np.concatenate(errors) if errors else np.zeros(0)


def _triangulate(points: Floats, projections: Floats) -> tuple[Floats, Floats]:
    """A point (3,) from its positions (K, 2) in cameras (K, 3, 4), and its reprojection errors (K,)."""
    rows = points[:, :, None] * projections[:, 2:3] - projections[:, :2]  # (K, 2, 4)
    rows = rows.reshape(-1, 4)
    rows = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    homogeneous = np.linalg.svd(rows)[2][-1]
    point = homogeneous[:3] / (homogeneous[3] if abs(homogeneous[3]) > 1e-12 else 1e-12)
    for _ in range(3):
        image = projections @ np.append(point, 1.0)
        residual = image[:, :2] / image[:, 2:] - points
        jacobian = (
            projections[:, :2, :3] - (image[:, :2] / image[:, 2:])[:, :, None] * projections[:, 2:3, :3]
        ) / image[:, 2, None, None]
        step, *_ = np.linalg.lstsq(jacobian.reshape(-1, 3), -residual.ravel(), rcond=None)
        point = point + step
    image = projections @ np.append(point, 1.0)
    return point, np.linalg.norm(image[:, :2] / image[:, 2:] - points, axis=1)

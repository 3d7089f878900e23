"""Patch alignment: every verified match is refined in the pixels of the photos themselves.

The network finds what corresponds whatever the light; its positions are a third of a pixel of its own
resolution off. Where two patches look alike, comparing their pixels is three times as exact, in the full
resolution of the photos, and costs less than a second a pair instead of another pass of the network. So the
patch around the grid position of photo 0 is sought near the match in photo 1, seen through the local affine
map, and normalised for brightness and contrast. Where the patches do not look alike (day and night) the
network's position stays, with little weight. Merging then makes one position per photo and track of all of
them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

import cv2
import numpy as np
import numpy.typing as npt

from coam.images import load_image
from coam.sfm.matching.match_pairs import store_results
from coam.sfm.matching.stamps import recorded_text
from coam.sfm.tracks.local_affine import local_affine
from coam.sfm.tracks.match_graph import MatchGraph
from coam.store.journal import Pair, PairJournal, Record

Floats = npt.NDArray[np.float64]
Image = npt.NDArray[np.float32]  # (H, W) grey values
PHOTOS_IN_MEMORY = 24
MOST_ROWS = 16384  # OpenCV counts rows of what it samples with 15 bits


@dataclass(frozen=True)
class AlignOptions:
    """How matches are aligned."""

    radius: int = 6  # pixels around a match that are compared
    blur: float = 0.7  # pixels, against noise and the limits of bilinear sampling
    iterations: int = 6  # Gauss-Newton steps at every scale
    min_similarity: float = 0.7  # correlation of the two patches; below it the match stays where it was
    max_move: float = 0.5  # grid steps: what moves further has found something else
    coarsest_step: float = 4.0  # pixels: grid step at the coarsest scale, the resolution that the network saw
    damping: float = 0.003  # of the normal equations: where there is no texture nothing moves
    min_contrast: float = 1.0  # grey values: below this a patch is noise
    window: float = 0.6  # radii: standard deviation of the Gaussian by which the pixels of a patch count
    min_weight: float = 0.1  # of an aligned match, against one whose patches correlate fully
    unaligned_weight: float = 0.05  # of a match that pixels could not confirm

    RECORDED: ClassVar[str] = "AlignOptions(radius, blur, iterations, min_similarity, max_move)"


def align_graph(
    graph: MatchGraph,
    path_of: Callable[[str], Path],
    stamps: Mapping[Pair, str],
    output: str | Path,
    options: AlignOptions,
) -> MatchGraph:
    """The match graph with offsets aligned in the photos, and weights that say how well the patches agree.

    path_of: photo name -> file. stamps: what the matches of each pair were made from. Finished pairs are kept
    in `output` (.h5), so a killed run goes on.
    """
    photo = lru_cache(maxsize=PHOTOS_IN_MEMORY)(lambda name: _read_grey(path_of(name)))
    edges, grid, steps = graph.edges, graph.keypoints.grid_positions(), graph.keypoints.steps()
    edges_of = {pair: graph.of(index) for index, pair in enumerate(graph.pairs)}
    wanted = {}
    for pair, own in edges_of.items():
        made_from = f"{stamps[pair]} {recorded_text(options)}".encode()
        positions = np.round(edges.offsets[own], 4).tobytes()
        wanted[pair] = hashlib.sha1(made_from + positions, usedforsecurity=False).hexdigest()

    def align(pair: Pair) -> Record:
        own = edges_of[pair]
        first, second = edges.first[own], edges.second[own]
        before = grid[second] + edges.offsets[own]
        step = (float(steps[first[0]]), float(steps[second[0]]))
        after, similarity = align_matches(
            photo(pair[0]), photo(pair[1]), grid[first], before, edges.affine[own], step, options
        )
        columns: dict[str, npt.NDArray[Any]] = {
            "offsets": after - grid[second],
            "similarity": similarity.astype(np.float32),
        }
        return Record(columns, {"matches": np.array(len(after))}, wanted[pair])

    journal = PairJournal(output)
    store_results(journal, wanted, ((pair, align(pair)) for pair in journal.missing(wanted)))
    offsets, affine, weights = edges.offsets.copy(), edges.affine.copy(), np.sqrt(edges.weights)
    for pair, own in edges_of.items():
        found = journal.read(pair).columns
        offsets[own] = found["offsets"]
        weights[own] *= confidence(found["similarity"], options)
        affine[own] = local_affine(grid[edges.first[own]], grid[edges.second[own]] + offsets[own])
    journal.close()
    return replace(graph, edges=replace(edges, offsets=offsets, affine=affine, weights=weights))


def confidence(similarity: npt.NDArray[np.floating], options: AlignOptions) -> Floats:
    """Weight (N,) of matches by the correlation of their patches; nan: not aligned."""
    least, lowest = options.min_similarity, options.min_weight
    rising = np.clip((similarity - least + lowest) / (1.0 + lowest - least), lowest, 1.0)
    return np.where(np.isnan(similarity), options.unaligned_weight, rising)


def _read_grey(path: Path) -> Image:
    return np.asarray(cv2.cvtColor(load_image(path).rgb, cv2.COLOR_RGB2GRAY), np.float32)


def align_matches(
    photo0: Image,
    photo1: Image,
    points0: Floats,
    points1: Floats,
    affine: Floats,
    steps: tuple[float, float],
    options: AlignOptions,
) -> tuple[Floats, Floats]:
    """Positions (N, 2) in photo 1 of what photo 0 shows at points0 (N, 2), and correlations (N,) of patches.

    points1 (N, 2): where the network found them; affine (N, 2, 2): local maps from photo 0 to photo 1; steps:
    grid steps of both photos in pixels. Matches whose patches do not correlate, or that would move further
    than a match may be wrong, stay where they are with a correlation of nan.
    """
    found, similarity = points1.copy(), np.zeros(len(points1))
    if len(points1) == 0:
        return found, similarity
    zoom = float(np.median(np.sqrt(np.abs(np.linalg.det(affine)))))
    for scale0, scale1 in _levels(steps, zoom, options.coarsest_step):
        level0, level1 = _scaled(photo0, scale0, options.blur), _scaled(photo1, scale1, options.blur)
        factor0 = np.array(level0.shape[::-1]) / np.array(photo0.shape[::-1])
        factor1 = np.array(level1.shape[::-1]) / np.array(photo1.shape[::-1])
        moved, similarity = _descend(
            level0,
            level1,
            (points0 + 0.5) * factor0 - 0.5,
            (found + 0.5) * factor1 - 0.5,
            affine * factor1[:, None] / factor0[None, :],
            options,
        )
        found = (moved + 0.5) / factor1 - 0.5
    near = np.linalg.norm(found - points1, axis=1) < options.max_move * steps[1]
    inside = (found >= 0).all(axis=1) & (found <= np.array(photo1.shape[::-1]) - 1).all(axis=1)
    good = near & inside & (similarity >= options.min_similarity)
    return np.where(good[:, None], found, points1), np.where(good, similarity, np.nan)


def _levels(steps: tuple[float, float], zoom: float, coarsest: float) -> list[tuple[float, float]]:
    """Scales of both photos, coarse to fine: from a grid step of `coarsest` pixels to the finest."""
    finest = min(1.0, zoom), min(1.0, 1 / max(zoom, 1e-6))  # the photo that shows more is made smaller
    step = max(steps[0] * finest[0], steps[1] * finest[1])
    halvings = max(0, round(float(np.log2(step / coarsest))))
    return [(finest[0] / 2**k, finest[1] / 2**k) for k in range(halvings, -1, -1)]


def _scaled(photo: Image, scale: float, blur: float) -> Image:
    if scale < 0.9:
        size = (max(1, round(photo.shape[1] * scale)), max(1, round(photo.shape[0] * scale)))
        photo = np.asarray(cv2.resize(photo, size, interpolation=cv2.INTER_AREA), np.float32)
    return np.asarray(cv2.GaussianBlur(photo, (0, 0), blur), np.float32)


def _descend(
    photo0: Image, photo1: Image, points0: Floats, points1: Floats, affine: Floats, options: AlignOptions
) -> tuple[Floats, Floats]:
    """Gauss-Newton steps for all matches at once: positions (N, 2) and correlations (N,)."""
    side = np.arange(-options.radius, options.radius + 1, dtype=np.float64)
    around = np.stack(np.meshgrid(side, side), axis=-1).reshape(-1, 2)  # (P, 2)
    weight = np.exp(-(around**2).sum(axis=1) / (2 * (options.window * options.radius) ** 2))
    weight = (weight / weight.sum()).astype(np.float32)
    normalised = partial(_normalised, weight=weight, min_contrast=options.min_contrast)
    patch0, _ = normalised(_sample(photo0, points0[:, None] + around))
    around1 = np.einsum("nij,pj->npi", affine, around)
    kernel = np.array([[-0.5, 0.0, 0.5]], np.float32)  # central differences over one pixel
    slopes = [np.asarray(cv2.filter2D(photo1, cv2.CV_32F, k), np.float32) for k in (kernel, kernel.T)]
    found = points1.copy()
    for _ in range(options.iterations):
        positions = found[:, None] + around1
        patch1, contrast = normalised(_sample(photo1, positions))
        x, y = (_sample(slope, positions) / contrast for slope in slopes)
        difference = (patch0 - patch1) * weight
        xx, xy, yy = (x * x) @ weight + options.damping, (x * y) @ weight, (y * y) @ weight + options.damping
        towards_x, towards_y = (x * difference).sum(axis=1), (y * difference).sum(axis=1)
        determinant = xx * yy - xy * xy
        step = np.stack([yy * towards_x - xy * towards_y, xx * towards_y - xy * towards_x], axis=1)
        step = step / determinant[:, None]
        found += step / np.maximum(1.0, np.linalg.norm(step, axis=1, keepdims=True))  # a pixel at most
    patch1, _ = normalised(_sample(photo1, found[:, None] + around1))
    return found, ((patch0 * patch1) @ weight).astype(np.float64)


def _sample(photo: Image, positions: Floats) -> Image:
    """Grey values (N, P) at positions (N, P, 2), bilinearly; beyond the edge the photo is mirrored."""
    values = np.empty(positions.shape[:2], np.float32)
    for begin in range(0, len(values), MOST_ROWS):
        part = positions[begin : begin + MOST_ROWS].astype(np.float32)
        x, y = np.ascontiguousarray(part[..., 0]), np.ascontiguousarray(part[..., 1])
        values[begin : begin + MOST_ROWS] = cv2.remap(
            photo, x, y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT_101
        )
    return values


def _normalised(patches: Image, weight: Image, min_contrast: float) -> tuple[Image, Image]:
    """Patches (N, P) with weighted mean 0 and deviation 1, and the deviations (N, 1) that they had."""
    centred: Image = patches - (patches @ weight)[:, None]
    contrast: Image = np.maximum(np.sqrt((centred * centred) @ weight), np.float32(min_contrast))[:, None]
    return centred / contrast, contrast

"""Every verified match of a match graph, aligned in the pixels of its photos.

That is three times as exact as the network where two patches look alike, and costs a fraction of a second a
pair instead of another pass of the network. Matches whose patches do not look alike keep the network's
position, with little weight. Merging then makes one position per photo and track of all of them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.geometry.local_affine import local_affine
from coam.images import load_image
from coam.images.patch_alignment import AlignOptions, align_matches, grey
from coam.sfm.matching.match_pairs import order_pairs, store_results
from coam.sfm.matching.stamps import recorded_text
from coam.sfm.tracks.match_graph import MatchGraph
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.store.journal import Pair, PairJournal, Record

Floats = npt.NDArray[np.float64]
PHOTOS_IN_MEMORY = 24
CHUNK_PAIRS = 16  # that a worker aligns at once


@dataclass(frozen=True)
class TrackAlignOptions(AlignOptions):
    """How matches of tracks are aligned, and what each counts for afterwards."""

    min_weight: float = 0.1  # of an aligned match, against one whose patches correlate fully
    unaligned_weight: float = 0.05  # of a match that pixels could not confirm


def align_graph(
    graph: MatchGraph,
    path_of: Callable[[str], Path],
    stamps: Mapping[Pair, str],
    output: str | Path,
    options: TrackAlignOptions,
    workers: Workers = HERE,
    chunk_pairs: int = CHUNK_PAIRS,
) -> MatchGraph:
    """The match graph with offsets aligned in the photos, and weights that say how well the patches agree.

    path_of: photo name -> file. stamps: what the matches of each pair were made from. Finished pairs are kept
    in `output` (.h5), so a killed run goes on.
    """
    edges, grid, steps = graph.edges, graph.keypoints.grid_positions(), graph.keypoints.steps()
    edges_of = {pair: graph.of(index) for index, pair in enumerate(graph.pairs)}
    wanted = {}
    for pair, own in edges_of.items():
        made_from = f"{stamps[pair]} {recorded_text(options)}".encode()
        positions = np.round(edges.offsets[own], 4).tobytes()
        wanted[pair] = hashlib.sha1(made_from + positions, usedforsecurity=False).hexdigest()

    def job(pair: Pair) -> _Job:
        own = edges_of[pair]
        first, second = edges.first[own], edges.second[own]
        before = grid[second] + edges.offsets[own]
        return pair, grid[first], before, edges.affine[own], (float(steps[first[0]]), float(steps[second[0]]))

    def record(pair: Pair, after: Floats, similarity: npt.NDArray[np.floating]) -> Record:
        columns: dict[str, npt.NDArray[Any]] = {
            "offsets": after - grid[edges.second[edges_of[pair]]],
            "similarity": similarity.astype(np.float32),
        }
        return Record(columns, {"matches": np.array(len(after))}, wanted[pair])

    journal = PairJournal(output)
    todo = order_pairs(journal.missing(wanted), PHOTOS_IN_MEMORY)
    files = {name: path_of(name) for pair in todo for name in pair}
    task = Task(partial(_aligning, options), todo, chunk_pairs, job, files, reads=lambda pair: pair)
    store_results(journal, wanted, ((found[0], record(*found)) for found in workers.run(task)))
    offsets, affine, weights = edges.offsets.copy(), edges.affine.copy(), np.sqrt(edges.weights)
    for pair, own in edges_of.items():
        found = journal.read(pair).columns
        offsets[own] = found["offsets"]
        weights[own] *= confidence(found["similarity"], options)
        affine[own] = local_affine(grid[edges.first[own]], grid[edges.second[own]] + offsets[own])
    journal.close()
    return replace(graph, edges=replace(edges, offsets=offsets, affine=affine, weights=weights))


_Job = tuple[Pair, Floats, Floats, Floats, tuple[float, float]]  # points 0, points 1, local maps, grid steps


def _aligning(options: TrackAlignOptions) -> Work:
    """What a worker does with the matches of pairs."""
    photo = lru_cache(maxsize=PHOTOS_IN_MEMORY)(lambda path: grey(load_image(path).rgb))

    def align(jobs: Iterable[_Job], paths: Mapping[str, Path]) -> Iterator[tuple[Pair, Floats, Any]]:
        for pair, points0, points1, affine, step in jobs:
            both = photo(paths[pair[0]]), photo(paths[pair[1]])
            yield pair, *align_matches(*both, points0, points1, affine, step, options)

    return align


def confidence(similarity: npt.NDArray[np.floating], options: TrackAlignOptions) -> Floats:
    """Weight (N,) of matches by the correlation of their patches; nan: not aligned."""
    least, lowest = options.min_similarity, options.min_weight
    rising = np.clip((similarity - least + lowest) / (1.0 + lowest - least), lowest, 1.0)
    return np.where(np.isnan(similarity), options.unaligned_weight, rising)

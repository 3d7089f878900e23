"""Dense warps between neighbouring views: found once a pair, kept in a journal, never found twice.

A record is one way of a pair: for every pixel of a map of half the network's size the place in the other
view, in 65,536ths of its size, and the certainty. That is five bytes a pixel, and finer than any match.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from coam.caches import LRUCache
from coam.sfm.dense.views import View
from coam.sfm.matching.match_pairs import cached_images, order_pairs, store_results
from coam.sfm.matching.stamps import matcher_key, pair_stamps
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.store.checksums import file_digest
from coam.store.journal import Pair, PairJournal, Record
from coam.types import FloatArray, Size

_LEVELS = 65536  # places along a side of the other view
CHUNK_PAIRS = 8  # that a worker warps at once


class WarpMatcher(Protocol):
    """What finds warps: `coam.Matcher`, or anything like it."""

    def prepare(self, source: Any) -> Any:
        """A photo, ready for any number of pairs."""
        ...

    def warp(self, image0: Any, image1: Any, size: int | None = None) -> Any:
        """The `coam.warp.Warp` of two prepared photos, its maps `size` pixels long."""
        ...


@dataclass(frozen=True)
class StoredWarp:
    """Where the pixels of a map of one view lie in another."""

    points: FloatArray  # (h, w, 2) pixels of the other view
    certainty: FloatArray  # (h, w) in [0, 1]


def warp_pairs(neighbours: Mapping[str, list[str]], count: int) -> list[Pair]:
    """The pairs of views to warp: of each its `count` best neighbours."""
    return sorted({(min(a, b), max(a, b)) for a, others in neighbours.items() for b in others[:count]})


def find_warps(
    matcher: WarpMatcher,
    views: Mapping[str, View],
    pairs: Iterable[Pair],
    output: Path,
    map_side: int,
    show_progress: bool = False,
    workers: Workers = HERE,
    load: Callable[[], Any] | None = None,
) -> PairJournal:
    """Find the warps that the journal `output` does not hold yet, both ways of a pair. map_side: pixels.

    load: makes the same matcher in a worker (picklable); without it warps are found here.
    """
    digests = {name: file_digest(view.file) for name, view in views.items()}
    wanted = pair_stamps(pairs, digests, f"warp {map_side} {matcher_key(matcher)}")
    stamps = {way: stamp for (a, b), stamp in wanted.items() for way in ((a, b), (b, a))}
    journal = PairJournal(output)
    missing = {(min(way), max(way)) for way in journal.missing(stamps)}
    if load is None or workers is HERE:
        workers, load = HERE, lambda: matcher
    task = Task(
        partial(_warping, load, map_side),
        order_pairs(missing, cached_images(matcher)),
        CHUNK_PAIRS,
        job=lambda pair: (*pair, views[pair[0]].size, views[pair[1]].size, wanted[pair]),
        files={name: view.file for name, view in views.items()},
        reads=lambda pair: pair,
        network=True,
    )
    return store_results(journal, stamps, workers.run(task), show_progress, "dense warps")


_Job = tuple[str, str, Size, Size, str]  # both views, their sizes, and the stamp


def _warping(load: Callable[[], WarpMatcher], map_side: int) -> Work:
    """What a worker does with pairs of views."""
    matcher = load()
    kept: LRUCache[str, Any] = LRUCache(cached_images(matcher))

    def find(jobs: Iterable[_Job], paths: Mapping[str, Path]) -> Iterator[tuple[Pair, Record]]:
        def prepared(name: str) -> Any:
            return kept.get(name, lambda: matcher.prepare(paths[name]))

        for a, b, size_a, size_b, stamp in jobs:
            warp = matcher.warp(prepared(a), prepared(b), size=map_side)
            yield (a, b), warp_to_record(warp.forward.points, warp.forward.certainty, size_b, stamp)
            yield (b, a), warp_to_record(warp.backward.points, warp.backward.certainty, size_a, stamp)

    return find


def warp_to_record(points: FloatArray, certainty: FloatArray, other: Size, stamp: str) -> Record:
    """What the journal stores of a warp (h, w, 2) into a view of size `other`."""
    place = (points.reshape(-1, 2) + 0.5) * (_LEVELS / np.asarray(other, np.float64))
    columns: dict[str, npt.NDArray[Any]] = {
        "place": np.clip(np.floor(place), 0, _LEVELS - 1).astype(np.uint16),
        "certainty": np.rint(255 * certainty.reshape(-1)).astype(np.uint8),
    }
    return Record(columns, {"shape": np.array(certainty.shape, np.int64)}, stamp)


def record_to_warp(record: Record, other: Size) -> StoredWarp:
    """The inverse of `warp_to_record`, up to rounding."""
    shape = tuple(int(side) for side in record.values["shape"])
    step = np.asarray(other, np.float64) / _LEVELS
    points = (record.columns["place"].astype(np.float64) + 0.5) * step - 0.5
    certainty = record.columns["certainty"].astype(np.float32) / np.float32(255)
    return StoredWarp(points.astype(np.float32).reshape(*shape, 2), certainty.reshape(shape))

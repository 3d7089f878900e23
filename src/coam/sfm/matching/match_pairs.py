"""Matching many pairs: every image encoded once, finished pairs never done again, results in one .h5."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from coam.progress import progress
from coam.sfm.matching.pair_matches import matches_to_record
from coam.sfm.matching.stamps import matcher_key, pair_stamps
from coam.sfm.photos import PhotoFolder
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.store.journal import Pair, PairJournal, Record
from coam.types import PairMatcher

LoadMatcher = Callable[[], PairMatcher]  # must be picklable: a function of a module, or a partial of one
CACHE_IMAGES = 16  # encoded images a matcher is assumed to keep when it does not say
SAVE_EVERY_SECONDS = 20.0  # SIGKILL costs at most this much work (or one pair, if that takes longer)
SAVE_EVERY_PAIRS = 64
CHUNK_PAIRS = 16  # that a worker matches at once


def without_rematching(matcher: Any) -> Any:
    """The same matcher with one view per pair, not aligned; matchers that know neither are left alone.

    Tracks need the same grid positions in every pair, and rematched views have grids of their own. They are
    aligned themselves, when it is known which matches they hold.
    """
    config: Any = getattr(matcher, "config", None)
    plain = {"looks": "once", "alignment": "none"}
    wanted = {name: value for name, value in plain.items() if getattr(config, name, value) != value}
    if not wanted:
        return matcher
    once = copy.copy(matcher)  # shares the network and the encoded photos
    once.config = replace(config, **wanted)
    return once


def order_pairs(pairs: Iterable[Pair], cache_images: int) -> list[Pair]:
    """Pairs in an order in which an LRU cache of `cache_images` encoded images is hit as often as possible.

    Images are cut into blocks of half the cache; all pairs of two blocks are done before the next block is
    touched, and blocks are swept to and fro.
    """
    unique = sorted(set(pairs))
    names = sorted({name for pair in unique for name in pair})
    block_size = max(1, cache_images // 2)
    block = {name: index // block_size for index, name in enumerate(names)}

    def tile(pair: Pair) -> tuple[int, int, Pair]:
        first, second = block[pair[0]], block[pair[1]]
        return first, second if first % 2 == 0 else -second, pair

    return sorted(unique, key=tile)


def match_pairs(
    matcher: PairMatcher,
    folder: PhotoFolder,
    pairs: Iterable[Pair],
    output: str | Path,
    show_progress: bool = False,
    workers: Workers = HERE,
    load: LoadMatcher | None = None,
    chunk_pairs: int = CHUNK_PAIRS,
) -> PairJournal:
    """Match `pairs` of photo names and keep the results in `output` (.h5).

    Pairs that `output` already holds for the same photos and matcher settings are not matched again. Kill it
    at any time and call it again. load: makes the same matcher in a worker; without it all is done here.
    """
    digests = {photo.name: photo.digest for photo in folder.photos}
    stamps = pair_stamps(pairs, digests, matcher_key(matcher))
    journal = PairJournal(output)
    todo = order_pairs(journal.missing(stamps), cached_images(matcher))
    paths = {photo.name: photo.path for photo in folder.photos}
    if load is None or workers is HERE:
        workers, load = HERE, lambda: matcher
    task = Task(
        partial(_matching, load),
        todo,
        chunk_pairs,
        job=lambda pair: (pair, stamps[pair]),
        files=paths,
        reads=lambda pair: pair,
        network=True,
    )
    return store_results(journal, stamps, workers.run(task), show_progress)


def cached_images(matcher: Any) -> int:
    """How many encoded photos a matcher keeps."""
    return int(getattr(getattr(matcher, "config", None), "cached_images", CACHE_IMAGES))


def _matching(load: LoadMatcher) -> Work:
    """What a worker does with pairs and their stamps."""
    matcher = load()

    def match(jobs: Iterable[tuple[Pair, str]], paths: Mapping[str, Path]) -> Iterator[tuple[Pair, Record]]:
        todo = dict(jobs)
        results = matcher.match_many((paths[first], paths[second]) for first, second in todo)
        for (pair, stamp), matches in zip(todo.items(), results, strict=True):
            yield pair, matches_to_record(matches, stamp)

    return match


def store_results(
    journal: PairJournal,
    stamps: Mapping[Pair, str],
    results: Iterable[tuple[Pair, Record]],
    show_progress: bool = False,
    label: str = "matching pairs",
) -> PairJournal:
    """Write results in portions as they come, the last one also after Ctrl-C; then merge those of `stamps`.

    Progress begins with what an earlier run has finished.
    """
    before = len(stamps) - len(journal.missing(stamps))
    portion: dict[Pair, Record] = {}
    saved_at = time.monotonic()
    with progress(label, len(stamps), before, show_progress, "pairs") as bar:
        try:
            for pair, record in results:
                portion[pair] = record
                if len(portion) >= SAVE_EVERY_PAIRS or time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
                    journal.append(portion)
                    portion, saved_at = {}, time.monotonic()
                bar.advance()
        finally:
            journal.append(portion)
    journal.finish(stamps)
    return journal

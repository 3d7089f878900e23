"""Matching many pairs: every image encoded once, finished pairs never done again, results in one .h5."""

from __future__ import annotations

import copy
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from coam.progress import progress
from coam.sfm.matching.pair_matches import matches_to_record
from coam.sfm.matching.stamps import matcher_key, pair_stamps
from coam.sfm.photos import PhotoFolder
from coam.store.journal import Pair, PairJournal, Record
from coam.types import PairMatcher

CACHE_IMAGES = 16  # encoded images a matcher is assumed to keep when it does not say
SAVE_EVERY_SECONDS = 20.0  # SIGKILL costs at most this much work (or one pair, if that takes longer)
SAVE_EVERY_PAIRS = 64


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


@dataclass(frozen=True)
class MatchingPlan:
    """Which pairs are wanted, and which of them are still to be matched."""

    journal: PairJournal
    stamps: dict[Pair, str]  # all pairs that are wanted
    todo: dict[Pair, str]  # those without a result, in an order that suits caches
    paths: dict[str, Path]  # photo name -> file


def plan_matching(
    matcher: PairMatcher, folder: PhotoFolder, pairs: Iterable[Pair], output: str | Path
) -> MatchingPlan:
    """Find the pairs that the journal `output` does not hold yet for these photos and this matcher."""
    digests = {photo.name: photo.digest for photo in folder.photos}
    stamps = pair_stamps(pairs, digests, matcher_key(matcher))
    journal = PairJournal(output)
    cached = int(getattr(getattr(matcher, "config", None), "cached_images", CACHE_IMAGES))
    todo = {pair: stamps[pair] for pair in order_pairs(journal.missing(stamps), cached)}
    return MatchingPlan(journal, stamps, todo, {photo.name: photo.path for photo in folder.photos})


def match_pairs(
    matcher: PairMatcher,
    folder: PhotoFolder,
    pairs: Iterable[Pair],
    output: str | Path,
    show_progress: bool = False,
) -> PairJournal:
    """Match `pairs` of photo names in this process and keep the results in `output` (.h5).

    Pairs that `output` already holds for the same photos and matcher settings are not matched again. Kill it
    at any time and call it again.
    """
    plan = plan_matching(matcher, folder, pairs, output)
    records = match_records(matcher, plan.paths, plan.todo)
    return store_results(plan.journal, plan.stamps, records, show_progress)


def match_records(
    matcher: PairMatcher, paths: Mapping[str, Path], stamps: Mapping[Pair, str]
) -> Iterator[tuple[Pair, Record]]:
    """Match the pairs of `stamps` in their order. paths: photo name -> file."""
    results = matcher.match_many((paths[first], paths[second]) for first, second in stamps)
    for (pair, stamp), matches in zip(stamps.items(), results, strict=True):
        yield pair, matches_to_record(matches, stamp)


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

"""Matching many pairs: every image encoded once, finished pairs never done again, results in one .h5."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from coam.errors import DataError
from coam.sfm.journal import Pair, PairJournal, Record
from coam.types import FloatArray, Grid, IntArray, Matches, Size

CACHE_IMAGES = 16  # encoded images a matcher is assumed to keep when it does not say
SAVE_EVERY_SECONDS = 20.0  # SIGKILL costs at most this much work (or one pair, if that takes longer)
SAVE_EVERY_PAIRS = 64


class PairMatcher(Protocol):
    """The part of `coam.Matcher` that reconstruction needs."""

    def match_many(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[Matches]:
        """One `Matches` per pair, in order; every image is encoded once while it stays in the cache."""
        ...


@dataclass(frozen=True)
class PairMatches:
    """The stored matches of one pair: grid ids, and beside them the sub-pixel offset in image 1."""

    ids0: IntArray  # (N,)
    ids1: IntArray  # (N,)
    offsets: FloatArray  # (N, 2): grid1.positions(ids1) + offsets corresponds to grid0.positions(ids0)
    scores: FloatArray  # (N,)
    grid0: Grid
    grid1: Grid
    size0: Size
    size1: Size
    overlap: float  # nan where the matcher is not calibrated

    @property
    def points0(self) -> FloatArray:
        """(N, 2) pixels of photo 0: grid positions."""
        return self.grid0.positions(self.ids0)

    @property
    def points1(self) -> FloatArray:
        """(N, 2) pixels of photo 1: sub-pixel positions."""
        return self.grid1.positions(self.ids1) + self.offsets

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, index: Any) -> PairMatches:
        """The matches at `index` (integers or a mask)."""
        return replace(
            self,
            ids0=self.ids0[index],
            ids1=self.ids1[index],
            offsets=self.offsets[index],
            scores=self.scores[index],
        )


def matches_to_record(matches: Matches, stamp: str) -> Record:
    """What is kept of `matches`."""
    if matches.grid0 is None or matches.grid1 is None:
        raise DataError("matches without grid ids cannot chain into tracks; match without giving keypoints")
    offsets = matches.points1 - matches.grid1.positions(matches.ids1)
    columns = {
        "ids0": matches.ids0.astype(np.int32),
        "ids1": matches.ids1.astype(np.int32),
        "offsets": offsets.astype(np.float32),
        "scores": matches.scores.astype(np.float32),
    }
    values = {
        "grid0": grid_to_array(matches.grid0),
        "grid1": grid_to_array(matches.grid1),
        "sizes": np.array([*matches.size0, *matches.size1], np.int64),
        "overlap": np.array(matches.overlap, np.float64),
    }
    return Record(columns, values, stamp)


def record_to_matches(record: Record) -> PairMatches:
    """The inverse of `matches_to_record`."""
    columns, values = record.columns, record.values
    sizes = [int(value) for value in values["sizes"]]
    return PairMatches(
        columns["ids0"].astype(np.int64),
        columns["ids1"].astype(np.int64),
        columns["offsets"],
        columns["scores"],
        grid_from_array(values["grid0"]),
        grid_from_array(values["grid1"]),
        (sizes[0], sizes[1]),
        (sizes[2], sizes[3]),
        float(values["overlap"]),
    )


def grid_to_array(grid: Grid) -> Any:
    """(6,) float64: columns, rows, origin, step."""
    return np.array([grid.columns, grid.rows, *grid.origin, *grid.step], np.float64)


def grid_from_array(values: Any) -> Grid:
    """The inverse of `grid_to_array`."""
    columns, rows, x, y, step_x, step_y = (float(value) for value in values)
    return Grid(int(columns), int(rows), (x, y), (step_x, step_y))


def order_pairs(pairs: Iterable[Pair], cache_images: int) -> list[Pair]:
    """Pairs in an order in which a cache of `cache_images` encoded images is hit as often as possible.

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


def count_encodings(pairs: Sequence[Pair], cache_images: int) -> int:
    """How many images a least-recently-used cache of that size would encode for `pairs` in this order."""
    cache: dict[str, None] = {}
    encoded = 0
    for pair in pairs:
        for name in pair:
            if name in cache:
                cache.pop(name)
            else:
                encoded += 1
                if len(cache) >= cache_images:
                    cache.pop(next(iter(cache)))
            cache[name] = None
    return encoded


def looking_once(matcher: Any) -> Any:
    """The same matcher with one look a pair; others are left alone.

    Tracks need the same grid positions in every pair, and looks from other viewpoints have grids of their
    own.
    """
    config: Any = getattr(matcher, "config", None)
    if getattr(config, "looks", "once") == "once":
        return matcher
    once = copy.copy(matcher)  # shares the network and the encoded photos
    once.config = replace(config, looks="once")
    return once


def matcher_key(matcher: Any) -> str:
    """What identifies the results of a matcher: its name and the settings that change its matches."""
    if hasattr(matcher, "fingerprint"):
        return str(matcher.fingerprint)
    config = getattr(matcher, "config", None)
    if config is not None:
        config = replace(config, cached_images=1)  # changes speed, not matches
    return f"{type(matcher).__name__} {weights_digest(matcher)} {config}"


def weights_digest(matcher: Any) -> str:
    """Digest of the weights behind a matcher; empty where there are none."""
    known = getattr(getattr(matcher, "file", None), "sha256", "")
    model = getattr(matcher, "model", None)
    if known or model is None or not hasattr(model, "state_dict"):
        return str(known)
    import torch

    digest = hashlib.sha1(usedforsecurity=False)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def cached_images(matcher: Any) -> int:
    """How many encoded images a matcher keeps."""
    return int(getattr(getattr(matcher, "config", None), "cached_images", CACHE_IMAGES))


def pair_stamps(pairs: Iterable[Pair], digests: Mapping[str, str], key: str) -> dict[Pair, str]:
    """For each pair what its result depends on: both files and the matcher's settings."""

    def stamp(pair: Pair) -> str:
        text = "\n".join([digests[pair[0]], digests[pair[1]], key])
        return hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()

    return {pair: stamp(pair) for pair in pairs}


def match_pairs(
    matcher: PairMatcher,
    paths: Mapping[str, Path],
    digests: Mapping[str, str],
    pairs: Iterable[Pair],
    output: str | Path,
    show_progress: bool = False,
) -> PairJournal:
    """Match `pairs` of photo names in this process and keep the results in `output` (.h5).

    paths, digests: photo name -> file, and -> digest of its bytes. Pairs that `output` already holds with the
    same digests and matcher settings are not matched again. Kill it at any time and call it again.
    """
    stamps = pair_stamps(pairs, digests, matcher_key(matcher))
    journal = PairJournal(output)
    todo = order_pairs(journal.missing(stamps), cached_images(matcher))
    with PairProgress(len(stamps), len(stamps) - len(todo), show_progress) as progress:
        results = matcher.match_many((paths[first], paths[second]) for first, second in todo)
        with saving_in_batches(journal) as save:
            for pair, matches in zip(todo, results, strict=True):
                save(pair, matches_to_record(matches, stamps[pair]))
                progress.advance(1)
    journal.finish(stamps)
    return journal


@contextmanager
def saving_in_batches(journal: PairJournal) -> Iterator[Callable[[Pair, Record], None]]:
    """Takes results one by one and writes them in portions; the rest when the block ends, also by Ctrl-C."""
    batch: dict[Pair, Record] = {}
    saved_at = time.monotonic()

    def write() -> None:
        nonlocal batch, saved_at
        journal.append(batch)
        batch, saved_at = {}, time.monotonic()

    def save(pair: Pair, record: Record) -> None:
        batch[pair] = record
        if len(batch) >= SAVE_EVERY_PAIRS or time.monotonic() - saved_at > SAVE_EVERY_SECONDS:
            write()

    try:
        yield save
    finally:
        write()


def match_chunk(
    matcher: PairMatcher, paths: Mapping[str, Path], chunk: Sequence[Pair], stamps: Mapping[Pair, str]
) -> dict[Pair, Record]:
    """The results of a few pairs: the unit of work that is handed to a worker."""
    results = matcher.match_many([(paths[first], paths[second]) for first, second in chunk])
    return {pair: matches_to_record(m, stamps[pair]) for pair, m in zip(chunk, results, strict=True)}


class PairProgress:
    """A progress bar whose estimate counts only pairs finished in this run, over the time since it began."""

    def __init__(
        self, total: int, finished_before: int, visible: bool, label: str = "matching pairs"
    ) -> None:
        self.total, self.finished, self.before = total, finished_before, finished_before
        self.visible, self.label = visible, label
        self.began = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> PairProgress:
        if self.visible:
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            left = TextColumn("{task.fields[left]}")
            self._bar = Progress(
                TextColumn(self.label), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn(), left
            )
            self._bar.start()
            self._task = self._bar.add_task("", total=self.total, completed=self.finished, left="")
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, count: int) -> None:
        """`count` more pairs are finished."""
        self.finished += count
        if self._bar is not None:
            self._bar.update(self._task, completed=self.finished, left=self.estimate())

    def estimate(self) -> str:
        """Time left in words, from the mean speed of this run; nothing before there is something to go by."""
        fresh = self.finished - self.before
        if fresh == 0 or self.finished >= self.total:
            return ""
        seconds = (time.monotonic() - self.began) / fresh * (self.total - self.finished)
        if seconds < 90:
            return f"about {max(1, round(seconds))} s left"
        return (
            f"about {round(seconds / 60)} min left"
            if seconds < 5400
            else f"about {seconds / 3600:.1f} h left"
        )

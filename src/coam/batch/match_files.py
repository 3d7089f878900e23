"""Matching many pairs of files: one file of matches a pair, and a pair that is there is not matched again."""

from __future__ import annotations

import csv
import hashlib
import io
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from coam.batch.pair_lists import PhotoPair
from coam.errors import CoamError, DataError, ImageError
from coam.progress import progress
from coam.sfm.matching.match_pairs import CACHE_IMAGES, order_pairs
from coam.sfm.matching.stamps import matcher_key, pair_stamps
from coam.sfm.photos import read_photo
from coam.store.atomic import remove_leftovers, write_text
from coam.store.matches import load_matches, save_matches
from coam.types import Matches

SUMMARY = "pairs.csv"  # one line a pair
LONGEST_NAME = 200  # characters of a file's name; file systems end at 255 bytes
Write = Callable[
    [Matches, list[Path], tuple[str, str]], None
]  # writes further files of a pair of these names
MatchAll = Callable[[Iterable[tuple[Path, Path]]], Iterable[Matches]]


@dataclass(frozen=True)
class PairResult:
    """What became of one pair."""

    image0: str
    image1: str
    file: str = ""  # name of its .npz; empty where it could not be matched
    matches: int = 0
    overlap: float | None = None  # None: not calibrated, or not matched
    looks: int | None = None
    seconds: float | None = None
    reused: bool = False  # was there already
    error: str = ""


def match_files(
    matcher: Any,
    pairs: Sequence[PhotoPair],
    folder: str | Path,
    match_all: MatchAll | None = None,
    also: Sequence[str] = (),
    write: Write = lambda matches, paths, names: None,
    shown: bool = False,
) -> list[PairResult]:
    """Match pairs of photo files into folder/NAME0--NAME1.npz, and list them, in order, in folder/pairs.csv.

    Kill it at any time and call it again: pairs whose file was made from the same photos, weights and
    settings are not matched again. A photo that cannot be read costs its own pairs only. match_all:
    instead of `matcher.match_many`. also: endings of further files, which `write` makes.
    """
    folder, pairs = Path(folder), list(dict.fromkeys(pairs))
    folder.mkdir(parents=True, exist_ok=True)
    remove_leftovers(folder)
    digests, unreadable = _read_all(pairs)
    names = {pair: f"{name}.npz" for pair, name in zip(pairs, pair_names(pairs), strict=True)}
    by_path = {(str(a.path), str(b.path)): (a, b) for a, b in pairs}
    usable = [paths for paths in by_path if not unreadable.keys() & paths]
    key = matcher_key(matcher) + ("" if match_all is None else " tiles")
    stamps = pair_stamps(usable, digests, key)
    results = {
        paths: PairResult(pair[0].name, pair[1].name, error=_reason(paths, unreadable))
        for paths, pair in by_path.items()
    }
    todo = []
    for paths in usable:
        kept = _kept(folder / names[by_path[paths]], stamps[paths])
        if kept is None:
            todo.append(paths)
        else:
            results[paths] = _result(by_path[paths], names[by_path[paths]], kept, reused=True)
            further = [(folder / results[paths].file).with_suffix(ending) for ending in also]
            write(kept, [path for path in further if not path.exists()], _names(by_path[paths]))
    cached = int(getattr(getattr(matcher, "config", None), "cached_images", CACHE_IMAGES))
    ordered = order_pairs(todo, cached)
    match_all = match_all or matcher.match_many
    with progress("matching pairs", len(usable), len(usable) - len(todo), shown, "pairs") as bar:
        for paths, matches in _matched(match_all, ordered):
            pair = by_path[paths]
            place = folder / names[pair]
            write(matches, [place.with_suffix(ending) for ending in also], _names(pair))
            # Last, because it says that the pair is finished.
            save_matches(replace(matches, meta=matches.meta | {"stamp": stamps[paths]}), place)
            results[paths] = _result(pair, place.name, matches)
            bar.advance()
    ordered_results = [results[str(a.path), str(b.path)] for a, b in pairs]
    _write_summary(ordered_results, folder / SUMMARY)
    return ordered_results


def pair_names(pairs: Sequence[PhotoPair]) -> list[str]:
    """A file name for each pair: NAME0--NAME1, slashes as dashes; a digest where it is taken or too long."""
    taken: set[str] = set()
    found = []
    for a, b in pairs:
        name = "--".join("-".join(_plain_parts(photo.name)) for photo in (a, b))
        if name.lower() in taken or len(os.fsencode(name)) > LONGEST_NAME:
            digest = hashlib.sha1(f"{a.path}\n{b.path}".encode("utf-8", "surrogateescape"))
            name = f"{name[: LONGEST_NAME // 4]}--{digest.hexdigest()[:12]}"
        taken.add(name.lower())
        found.append(name)
    return found


def _plain_parts(name: str) -> list[str]:
    return [part for part in name.replace("\\", "/").split("/") if part not in ("", ".", "..")]


def _names(pair: PhotoPair) -> tuple[str, str]:
    return pair[0].name, pair[1].name


def _read_all(pairs: Sequence[PhotoPair]) -> tuple[dict[str, str], dict[str, str]]:
    """path -> digest of every photo that can be read, path -> what is wrong with those that cannot."""
    digests: dict[str, str] = {}
    unreadable: dict[str, str] = {}
    for photo in (photo for pair in pairs for photo in pair):
        path = str(photo.path)
        if path in digests or path in unreadable:
            continue
        try:
            digests[path] = read_photo(photo.path, photo.name).digest
        except ImageError as error:
            unreadable[path] = str(error)
    if pairs and not digests:
        raise DataError(next(iter(unreadable.values())))
    return digests, unreadable


def _reason(paths: tuple[str, str], unreadable: dict[str, str]) -> str:
    return next((unreadable[path] for path in paths if path in unreadable), "")


def _kept(path: Path, stamp: str) -> Matches | None:
    """What an earlier run wrote, where it was made from the same."""
    if not path.is_file():
        return None
    try:
        matches = load_matches(path)
    except CoamError:
        return None
    return matches if matches.meta.get("stamp") == stamp else None


def _matched(
    match_all: MatchAll, ordered: list[tuple[str, str]]
) -> Iterator[tuple[tuple[str, str], Matches]]:
    found = match_all((Path(path0), Path(path1)) for path0, path1 in ordered)
    return zip(ordered, found, strict=True)


def _result(pair: PhotoPair, file: str, matches: Matches, reused: bool = False) -> PairResult:
    return PairResult(
        *_names(pair),
        file=file,
        matches=len(matches),
        overlap=None if math.isnan(matches.overlap) else round(float(matches.overlap), 4),
        looks=matches.meta.get("looks"),
        seconds=matches.meta.get("seconds"),
        reused=reused,
    )


def _write_summary(results: Sequence[PairResult], path: Path) -> None:
    """One line a pair, as most programs read it."""
    columns = ("image0", "image1", "file", "matches", "overlap", "looks", "seconds", "error")
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore", lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(result) for result in results)
    write_text(path, text.getvalue())

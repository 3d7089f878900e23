"""The cache of predictions: matches per pair, computed once and kept in predictions.h5.

Finished pairs go to a `PairJournal`: a run killed at any moment loses none of them. `predictions.json` beside
it says what made them; a run with other settings refuses to mix.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from coam.errors import ConfigError, DataError
from coam.evaluation.matchers.by_name import MatcherSpec, keypoint_matches, timed_matches
from coam.evaluation.pairs import EvaluationPair
from coam.geometry.coordinates import rotate_points
from coam.store.atomic import atomic_write, remove_leftovers
from coam.store.checksums import file_digest
from coam.store.documents import read_json, write_sealed_json
from coam.store.journal import PairJournal, Record
from coam.types import Matches, PairMatcher

FORMAT = 2  # 1 told photos apart by their sizes only
COLUMNS = ("points0", "points1", "scores")
Progress = Callable[[int], None]


class PredictionStore:
    """The cached matches of one matcher on one benchmark, in a folder of their own."""

    def __init__(self, folder: Path, identity: dict[str, Any], *, resume: bool = True) -> None:
        self.folder, self.identity = folder, identity | {"format": FORMAT}
        self.file, self.label = folder / "predictions.h5", folder / "predictions.json"
        self._parts = folder / "predictions.h5.parts"
        if not resume:  # forget everything that was computed
            self.file.unlink(missing_ok=True)
            self.label.unlink(missing_ok=True)
            shutil.rmtree(self._parts, ignore_errors=True)
        self._check_label()
        write_sealed_json(self.label, json.loads(json.dumps(self.identity)))
        remove_leftovers(self.folder)
        self.journal = PairJournal(self.file)
        self._lock = Lock()  # the journal takes one writer at a time

    def _check_label(self) -> None:
        if not self.label.exists():
            if self.file.exists() or self._parts.exists():
                raise DataError(
                    f"{self.folder} holds predictions without predictions.json; use --no-resume or another -o"
                )
            return
        before = read_json(self.label, dict, "use --no-resume to start again")
        changes = _differences(before, json.loads(json.dumps(self.identity)))
        if changes:
            raise ConfigError(
                f"{self.folder} holds predictions made with other settings ({'; '.join(changes[:4])}); "
                "choose another -o, or --no-resume to replace them"
            )

    def missing(self, pairs: Sequence[EvaluationPair]) -> list[EvaluationPair]:
        """The pairs still to compute; refuses when a finished pair's photos have changed since."""
        missing = set(self.journal.missing({_key(pair.name): fingerprint(pair) for pair in pairs}))
        todo = [pair for pair in pairs if _key(pair.name) in missing]
        for pair in todo:
            if _key(pair.name) in self.journal:
                raise DataError(
                    f"the photos of {pair.name} are not those that {self.folder.name} was computed from; "
                    "choose another -o, or --no-resume"
                )
        return todo

    def add(self, pair: EvaluationPair, matches: Matches) -> None:
        """Keep the matches of a pair; after this returns, no kill can lose them."""
        sizes, seconds = [*matches.size0, *matches.size1], matches.meta.get("seconds", np.nan)
        record = _record(
            {"points0": matches.points0, "points1": matches.points1, "scores": matches.scores},
            {"sizes": sizes, "overlap": matches.overlap, "seconds": seconds},
            fingerprint(pair),
        )
        with self._lock:
            self.journal.append({_key(pair.name): record})

    def read(self, pairs: Sequence[EvaluationPair]) -> Iterator[Matches]:
        """Cached matches of the pairs, in order."""
        for pair in pairs:
            if _key(pair.name) not in self.journal:
                raise DataError(f"{pair.name} has no predictions in {self.file}; run the evaluation again")
            yield _matches(self.journal.read(_key(pair.name)))


def _key(name: str) -> tuple[str, str]:
    """A pair of a benchmark has one name; the journal's keys are two."""
    return name, ""


def _record(columns: dict[str, Any], values: dict[str, Any], stamp: str) -> Record:
    return Record(
        {name: np.asarray(columns[name], dtype=np.float32) for name in COLUMNS},
        {
            "sizes": np.asarray(values["sizes"], dtype=np.int64),  # width0, height0, width1, height1
            "overlap": np.asarray(values["overlap"], dtype=np.float64),
            "seconds": np.asarray(values["seconds"], dtype=np.float64),
        },
        stamp,
    )


def _matches(record: Record) -> Matches:
    points0, points1, scores = (record.columns[name] for name in COLUMNS)
    width0, height0, width1, height1 = (int(side) for side in record.values["sizes"])
    overlap, seconds = float(record.values["overlap"]), float(record.values["seconds"])
    sizes = (width0, height0), (width1, height1)
    return keypoint_matches(points0, points1, scores, *sizes, overlap=overlap, meta={"seconds": seconds})


# ---- computing


def predict(
    pairs: Sequence[EvaluationPair],
    spec: MatcherSpec,
    store: PredictionStore,
    *,
    workers: int = 1,
    progress: Progress = lambda done: None,
) -> int:
    """Compute what the store lacks and return how many pairs that was.

    Pairs keep their order and a sequence stays in one worker, so that a photo is read and encoded once per
    sequence.
    """
    todo = store.missing(pairs)
    progress(len(pairs) - len(todo))
    by_sequence: dict[str, list[EvaluationPair]] = {}
    for pair in todo:
        by_sequence.setdefault(pair.sequence, []).append(pair)
    blocks = list(by_sequence.values())

    def work(matcher: PairMatcher, chosen: list[EvaluationPair]) -> None:
        folder = store.folder / "turned"
        paths = [
            (_upright(pair.image0, pair.turns0, folder), _upright(pair.image1, pair.turns1, folder))
            for pair in chosen
        ]
        for pair, found in zip(chosen, timed_matches(matcher, paths, spec.name), strict=True):
            store.add(pair, _turned_back(pair, found))
            progress(1)

    if workers <= 1 or len(blocks) <= 1:
        if todo:
            work(spec.create(), todo)
    else:
        shares = [
            [pair for block in blocks[i::workers] for pair in block] for i in range(min(workers, len(blocks)))
        ]
        with ThreadPoolExecutor(len(shares)) as pool:
            for done in [pool.submit(work, spec.create(), share) for share in shares]:
                done.result()
    if len(store.journal):
        store.journal.finish()
    return len(todo)


def fingerprint(pair: EvaluationPair) -> str:
    """Identity of the two photos: digests of their content, and the turns applied."""
    try:
        digests = [photo_digest(path) for path in (pair.image0, pair.image1)]
    except OSError as error:
        raise DataError(f"a photo of {pair.name} is missing: {error.filename}") from error
    return f"{digests[0]}-{digests[1]}-{pair.turns0}-{pair.turns1}"


def photo_digest(path: Path) -> str:
    """Digest of a photo's content; read again only when the file has changed."""
    state = path.stat()
    return _digest_of_version(path, state.st_size, state.st_mtime_ns, state.st_ino)


@lru_cache(maxsize=1 << 16)
def _digest_of_version(path: Path, *version: int) -> str:
    return file_digest(path)[:24]


def _upright(path: Path, turns: int, folder: Path) -> Path:
    """The photo, or a copy of it set upright where the benchmark says how it was taken."""
    if turns == 0:
        return path
    from PIL import Image

    from coam.images import load_image

    target = folder / f"{photo_digest(path)}-{turns}.png"
    if not target.exists():
        with atomic_write(target) as temporary:
            Image.fromarray(np.rot90(load_image(path).rgb, turns)).save(temporary)
    return target


def _turned_back(pair: EvaluationPair, matches: Matches) -> Matches:
    """Matches of the upright copies as matches of the photos as stored."""
    for turns, side in ((pair.turns0, "0"), (pair.turns1, "1")):
        if turns:
            width, height = getattr(matches, f"size{side}")
            points = rotate_points(getattr(matches, f"points{side}"), -turns, width, height)
            size = (height, width) if turns % 2 else (width, height)
            matches = replace(matches, **{f"points{side}": points, f"size{side}": size, f"grid{side}": None})
    return matches


def _differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Human-readable list of what changed between two JSON values."""
    if isinstance(before, dict) and isinstance(now, dict):
        found = []
        for key in sorted(set(before) | set(now)):
            found += _differences(before.get(key), now.get(key), f"{where}.{key}" if where else key)
        return found
    texts = (text if len(text) <= 20 else text[:16] + "..." for text in map(json.dumps, (before, now)))
    return [] if before == now else [f"{where}: {' -> '.join(texts)}"]

"""Step one of every evaluation: matches per pair, computed once and kept in one .h5.

A finished pair is written as its own small file (temporary name, then rename), so that a run killed at any
moment leaves only whole pairs behind; at the end, and at the start of the next run, these are folded into
`predictions.h5`, itself replaced by a rename. HDF5 alone would not do: a file that is open for writing when
the process dies is damaged.

`predictions.json` beside it says what made them. A run with other settings refuses to mix.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import ConfigError, DataError
from coam.evaluation.matchers import MatcherSpec, PairMatcher, timed_matches
from coam.evaluation.pairs import EvaluationPair
from coam.geometry.coordinates import rotate_points
from coam.types import Matches

FORMAT = 1
Progress = Callable[[int], None]


class PredictionStore:
    """The cached matches of one matcher on one benchmark, in a folder of their own."""

    def __init__(self, folder: Path, identity: dict[str, Any], *, resume: bool = True) -> None:
        self.folder, self.identity = folder, identity | {"format": FORMAT}
        self.file, self.label = folder / "predictions.h5", folder / "predictions.json"
        self.parts = folder / "predictions.parts"
        if not resume:
            self.clear()
        self._check_label()
        folder.mkdir(parents=True, exist_ok=True)
        _write_atomically(self.label, json.dumps(self.identity, indent=1, sort_keys=True).encode())
        self.fold()

    def clear(self) -> None:
        """Forget everything that was computed."""
        self.file.unlink(missing_ok=True)
        self.label.unlink(missing_ok=True)
        shutil.rmtree(self.parts, ignore_errors=True)

    def _check_label(self) -> None:
        if not self.label.exists():
            if self.file.exists() or self.parts.exists():
                raise DataError(
                    f"{self.folder} holds predictions without predictions.json; use --no-resume or another -o"
                )
            return
        try:
            before = json.loads(self.label.read_text())
        except (OSError, ValueError) as error:
            raise DataError(f"{self.label} is damaged ({error}); use --no-resume to start again") from error
        changes = _differences(before, json.loads(json.dumps(self.identity)))
        if changes:
            raise ConfigError(
                f"{self.folder} holds predictions made with other settings ({'; '.join(changes[:4])}); "
                "choose another -o, or --no-resume to replace them"
            )

    def finished(self) -> dict[str, str]:
        """name -> fingerprint of the photos, for every pair that is done."""
        done = {key: str(value) for key, value in self._attributes().items()}
        for arrays in self._finished_parts().values():
            done[str(arrays["name"])] = str(arrays["fingerprint"])
        return done

    def _finished_parts(self) -> dict[str, dict[str, Any]]:
        """Key -> content of each finished part; one that a power cut left unreadable is computed again."""
        found = {}
        for part in sorted(self.parts.glob("*.npz")) if self.parts.exists() else ():
            try:
                with np.load(part, allow_pickle=False) as data:
                    found[part.stem] = dict(data)
            except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile):
                part.unlink()
        return found

    def _attributes(self) -> dict[str, Any]:
        if not self.file.exists():
            return {}
        with _open(self.file) as store:
            return {_pair_name(store[key]): store[key].attrs["fingerprint"] for key in store}

    def missing(self, pairs: Sequence[EvaluationPair]) -> list[EvaluationPair]:
        """The pairs still to compute; refuses when a finished pair's photos have changed since."""
        done = self.finished()
        for pair in pairs:
            if pair.name in done and done[pair.name] != fingerprint(pair):
                raise DataError(
                    f"the photos of {pair.name} are not those that {self.folder.name} was computed from; "
                    "choose another -o, or --no-resume"
                )
        return [pair for pair in pairs if pair.name not in done]

    def add(self, pair: EvaluationPair, matches: Matches) -> None:
        """Keep the matches of a pair; after this returns, no kill can lose them."""
        self.parts.mkdir(exist_ok=True)
        target = self.parts / f"{_key(pair.name)}.npz"
        temporary = target.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            np.savez(file, **_to_arrays(pair, matches))
        os.replace(temporary, target)

    def fold(self) -> None:
        """Move finished parts into the one .h5."""
        if not self.parts.exists():
            return
        parts = self._finished_parts()
        if parts:
            import h5py

            temporary = self.file.with_suffix(".tmp")
            temporary.unlink(missing_ok=True)
            if self.file.exists():
                _open(self.file).close()  # damaged: say so before copying it
                shutil.copyfile(self.file, temporary)
            with h5py.File(temporary, "a") as store:
                store.attrs["identity"] = json.dumps(self.identity, sort_keys=True)
                for key, arrays in parts.items():
                    _write_group(store, key, arrays)
            os.replace(temporary, self.file)
        shutil.rmtree(self.parts)

    def read(self, pairs: Sequence[EvaluationPair]) -> Iterator[Matches]:
        """Cached matches of the pairs, in order; call `fold` first."""
        with _open(self.file) as store:
            for pair in pairs:
                if _key(pair.name) not in store:
                    raise DataError(
                        f"{pair.name} has no predictions in {self.file}; run the evaluation again"
                    )
                yield _from_group(store[_key(pair.name)])


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
    blocks = _blocks(todo)

    def work(matcher: PairMatcher, chosen: list[EvaluationPair]) -> None:
        paths = [_upright_paths(pair, store.folder / "turned") for pair in chosen]
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
    store.fold()
    return len(todo)


def _blocks(pairs: Sequence[EvaluationPair]) -> list[list[EvaluationPair]]:
    blocks: dict[str, list[EvaluationPair]] = {}
    for pair in pairs:
        blocks.setdefault(pair.sequence, []).append(pair)
    return list(blocks.values())


def fingerprint(pair: EvaluationPair) -> str:
    """Cheap identity of the two photos: their sizes in bytes and the turns applied."""
    try:
        sizes = [path.stat().st_size for path in (pair.image0, pair.image1)]
    except OSError as error:
        raise DataError(f"a photo of {pair.name} is missing: {error.filename}") from error
    return f"{sizes[0]}-{sizes[1]}-{pair.turns0}-{pair.turns1}"


def _upright_paths(pair: EvaluationPair, folder: Path) -> tuple[Path, Path]:
    """The photos, or copies of them set upright where the benchmark says how they were taken."""
    return _turned_copy(pair.image0, pair.turns0, folder), _turned_copy(pair.image1, pair.turns1, folder)


def _turned_copy(path: Path, turns: int, folder: Path) -> Path:
    if turns == 0:
        return path
    from PIL import Image

    from coam.images import load_image

    target = folder / f"{_key(str(path))}-{turns}.png"
    if not target.exists():
        folder.mkdir(parents=True, exist_ok=True)
        temporary = target.with_suffix(".tmp")
        Image.fromarray(np.rot90(load_image(path).rgb, turns)).save(temporary, format="PNG")
        os.replace(temporary, target)
    return target


def _turned_back(pair: EvaluationPair, matches: Matches) -> Matches:
    """Matches of the upright copies as matches of the photos as stored."""
    from dataclasses import replace

    for turns, side in ((pair.turns0, "0"), (pair.turns1, "1")):
        if turns:
            width, height = getattr(matches, f"size{side}")
            points = rotate_points(getattr(matches, f"points{side}"), -turns, width, height)
            size = (height, width) if turns % 2 else (width, height)
            matches = replace(matches, **{f"points{side}": points, f"size{side}": size, f"grid{side}": None})
    return matches


def _key(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:24]


def _to_arrays(pair: EvaluationPair, matches: Matches) -> dict[str, Any]:
    return {
        "name": np.asarray(pair.name),
        "fingerprint": np.asarray(fingerprint(pair)),
        "points0": np.asarray(matches.points0, dtype=np.float32),
        "points1": np.asarray(matches.points1, dtype=np.float32),
        "scores": np.asarray(matches.scores, dtype=np.float32),
        "sizes": np.asarray([*matches.size0, *matches.size1], dtype=np.int64),
        "overlap": np.asarray(matches.overlap, dtype=np.float64),
        "seconds": np.asarray(matches.meta.get("seconds", np.nan), dtype=np.float64),
    }


def _write_group(store: Any, key: str, arrays: dict[str, Any]) -> None:
    if key in store:
        del store[key]
    group = store.create_group(key)
    for name in ("points0", "points1", "scores"):
        group.create_dataset(name, data=arrays[name])
    group.attrs["name"], group.attrs["fingerprint"] = str(arrays["name"]), str(arrays["fingerprint"])
    group.attrs["sizes"] = arrays["sizes"]
    group.attrs["overlap"], group.attrs["seconds"] = float(arrays["overlap"]), float(arrays["seconds"])


def _from_group(group: Any) -> Matches:
    sizes = [int(v) for v in group.attrs["sizes"]]
    points0, points1, scores = (np.asarray(group[name]) for name in ("points0", "points1", "scores"))
    none = np.full(len(scores), -1, dtype=np.int64)
    return Matches(
        points0, points1, scores, none, none, (sizes[0], sizes[1]), (sizes[2], sizes[3]),
        overlap=float(group.attrs["overlap"]), meta={"seconds": float(group.attrs["seconds"])},
    )  # fmt: skip


def _pair_name(group: Any) -> str:
    return str(group.attrs["name"])


def _open(path: Path) -> Any:
    import h5py

    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} is missing or damaged; use --no-resume to compute it again") from error


def _write_atomically(path: Path, content: bytes) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def _differences(before: Any, now: Any, where: str = "") -> list[str]:
    """Human-readable list of what changed between two JSON values."""
    if isinstance(before, dict) and isinstance(now, dict):
        found = []
        for key in sorted(set(before) | set(now)):
            found += _differences(before.get(key), now.get(key), f"{where}.{key}" if where else key)
        return found
    return [] if before == now else [f"{where}: {_short(before)} -> {_short(now)}"]


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 20 else text[:16] + "..."

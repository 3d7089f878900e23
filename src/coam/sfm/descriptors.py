"""Global descriptors of photos: which may show the same place; computed once and kept in the model folder."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import ImageError
from coam.sfm.workers.pool import HERE, Task, Work, Workers
from coam.store.archives import read_plain_npz
from coam.store.atomic import atomic_write

Descriptors = npt.NDArray[np.float32]
CHUNK_PHOTOS = 16  # that a worker describes at once


def unit_rows(vectors: npt.NDArray[Any]) -> Descriptors:
    """Rows (n, D) scaled to length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def global_descriptors(
    photos: Mapping[str, Path], matcher: Any, workers: Workers = HERE, load: Callable[[], Any] | None = None
) -> dict[str, npt.NDArray[np.float32] | ImageError]:
    """Unit vector (D,) of every photo (name -> file), or why it cannot be read.

    load: makes the same matcher in a worker (picklable); without it all is done here.
    """
    if load is None or workers is HERE:
        workers, load = HERE, lambda: matcher
    start, reads = partial(_describing, load), lambda name: [name]
    task = Task(start, list(photos), CHUNK_PHOTOS, files=photos, reads=reads, network=True)
    found = dict(workers.run(task))
    return {name: found[name] for name in photos}


def _describing(load: Callable[[], Any]) -> Work:
    """What a worker does with names of photos."""
    matcher = load()

    def describe(names: Iterable[str], paths: Mapping[str, Path]) -> Iterator[tuple[str, Any]]:
        for name in names:
            try:
                vector = np.asarray(matcher.global_descriptor(paths[name]), np.float32)
                yield name, unit_rows(vector.reshape(1, -1))[0]
            except ImageError as error:
                yield name, error

    return describe


@dataclass(frozen=True)
class Described:
    """The global descriptors (n, D) of photos, and what describes them (`stamps.descriptor_key`)."""

    names: tuple[str, ...]
    vectors: Descriptors
    key: str

    def of(self, names: Sequence[str]) -> Descriptors:
        """The rows (m, D) of the photos `names`; a `KeyError` where one is missing."""
        row = {name: index for index, name in enumerate(self.names)}
        return self.vectors[[row[name] for name in names]]

    def save(self, path: Path) -> None:
        """Write .npz."""
        with atomic_write(path) as temporary, open(temporary, "wb") as out:
            np.savez(out, names=np.array(self.names), vectors=self.vectors, key=np.array(self.key))


def describe_all(
    photos: Mapping[str, Path],
    matcher: Any,
    key: str,
    workers: Workers = HERE,
    load: Callable[[], Any] | None = None,
) -> Described:
    """The descriptors of photos (name -> file), all of which must be readable. key: what describes them."""
    vectors = []
    for vector in global_descriptors(photos, matcher, workers, load).values():
        if isinstance(vector, ImageError):
            raise vector
        vectors.append(vector)
    return Described(tuple(photos), np.stack(vectors), key)


def load_described(path: Path, names: Sequence[str], key: str) -> Described | None:
    """Descriptors that `Described.save` wrote; None where it is missing, damaged in any way, of another key,
    or lacks some of the photos `names`."""
    with suppress(Exception):
        saved = read_plain_npz(path)
        found = Described(tuple(str(name) for name in saved["names"]), saved["vectors"], str(saved["key"]))
        if found.key == key and len(found.of(names)) == len(names):
            return found
    return None

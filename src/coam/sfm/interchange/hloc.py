"""hloc's files: .h5 features and matches, in and out.

hloc's keypoints have the centre of the first pixel at (0, 0), as ours; it adds COLMAP's half pixel itself on
import. A pair is stored under "name0/name1" with slashes inside names turned to dashes; `matches0` says for
every keypoint of image 0 which keypoint of image 1 it matches, or -1.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.sfm.interchange.colmap import read_database
from coam.sfm.pairs import write_pairs
from coam.store.atomic import atomic_write, require_space, write_text
from coam.store.journal import Pair

Floats = npt.NDArray[np.float64]


def pair_key(name0: str, name1: str) -> str:
    """hloc's name of a pair."""
    return "/".join((name0.replace("/", "-"), name1.replace("/", "-")))


def database_to_hloc(database: str | Path, folder: str | Path) -> tuple[Path, Path, Path]:
    """Turn a COLMAP database into features.h5, matches.h5 and pairs.txt for hloc; gives the three paths."""
    folder = Path(folder)
    points, matches = read_database(database)
    features_path, matches_path = folder / "features.h5", folder / "matches.h5"
    longest = max((len(own) for own in points.values()), default=0)
    require_space(folder, 8 * longest * (len(points) + len(matches)) + (2 << 20))
    with atomic_write(features_path) as temporary, h5py.File(temporary, "w") as file:
        for name, own in points.items():
            file.create_group(name)["keypoints"] = own
    with atomic_write(matches_path) as temporary, h5py.File(temporary, "w") as file:
        for (name0, name1), index in matches.items():
            _write_matches(file, name0, name1, len(points[name0]), index)
    return features_path, matches_path, write_pairs(sorted(matches), folder / "pairs.txt")


@dataclass(frozen=True)
class HlocQuery:
    """A photo to locate in a model, with what was matched."""

    name: str
    camera: str  # "MODEL WIDTH HEIGHT PARAMS"
    keypoints: Floats  # (N, 2) our pixels
    observed: Mapping[str, npt.NDArray[np.int64]]  # photo of the model -> (K, 2): own keypoint, its keypoint


def write_queries(queries: Sequence[HlocQuery], folder: str | Path) -> tuple[Path, Path, Path, Path]:
    """Write query-features.h5, query-matches.h5, query-pairs.txt and queries.txt for hloc; gives their paths.

    `hloc.localize_sfm.main(MODEL/sparse/0, queries.txt, query-pairs.txt, query-features.h5, query-matches.h5,
    results)` locates them; keypoints of the model's photos are numbered as in the model.
    """
    folder = Path(folder)
    require_space(folder, sum(12 * len(q.keypoints) * (1 + len(q.observed)) for q in queries) + (2 << 20))
    features, matches = folder / "query-features.h5", folder / "query-matches.h5"
    with atomic_write(features) as temporary, h5py.File(temporary, "w") as file:
        for query in queries:
            file.create_group(query.name)["keypoints"] = query.keypoints.astype(np.float32)
    with atomic_write(matches) as temporary, h5py.File(temporary, "w") as file:
        for query in queries:
            for name, index in query.observed.items():
                _write_matches(file, query.name, name, len(query.keypoints), index)
    pairs = [(query.name, name) for query in queries for name in query.observed]
    lines = "".join(f"{query.name} {query.camera}\n" for query in queries)
    return (
        features,
        matches,
        write_pairs(pairs, folder / "query-pairs.txt"),
        write_text(folder / "queries.txt", lines),
    )


def _write_matches(file: Any, name0: str, name1: str, keypoints: int, index: npt.NDArray[np.int64]) -> None:
    """One pair: for each of `keypoints` of photo 0 the keypoint of photo 1, from `index` (K, 2)."""
    matches0 = np.full(keypoints, -1, np.int32)
    matches0[index[:, 0]] = index[:, 1]
    group = file.create_group(pair_key(name0, name1))
    group["matches0"] = matches0
    group["matching_scores0"] = (matches0 >= 0).astype(np.float16)


def read_features(path: str | Path) -> dict[str, npt.NDArray[np.float32]]:
    """photo name -> keypoints (N, 2) of an hloc features.h5."""
    found: dict[str, npt.NDArray[np.float32]] = {}

    def visit(name: str, node: Any) -> None:
        if isinstance(node, h5py.Dataset) and name.endswith("/keypoints"):
            found[name.removesuffix("/keypoints")] = np.asarray(node[:], np.float32)[:, :2]

    with _opened(path) as file:
        file.visititems(visit)
    if not found:
        raise DataError(f"{path}: holds no keypoints; give hloc's features .h5")
    return found


def read_matches(path: str | Path, pairs: Iterable[Pair]) -> dict[Pair, tuple[npt.NDArray[np.int64], Floats]]:
    """pair -> (indices (K, 2) of matching keypoints, scores (K,)) of an hloc matches.h5, in either order."""
    found: dict[Pair, tuple[npt.NDArray[np.int64], Floats]] = {}
    with _opened(path) as file:
        for name0, name1 in pairs:
            forward, backward = pair_key(name0, name1), pair_key(name1, name0)
            key = forward if forward in file else backward
            if key not in file:
                raise DataError(f"{path}: has no matches of {name0} and {name1}; match that pair first")
            matches = np.asarray(file[key]["matches0"][:], np.int64)
            row = np.flatnonzero(matches >= 0)
            index = np.stack([row, matches[row]], axis=1)
            scores = np.ones(len(row))
            if "matching_scores0" in file[key]:
                scores = np.asarray(file[key]["matching_scores0"][:], np.float64)[row]
            found[name0, name1] = (index if key == forward else index[:, ::-1]), scores
    return found


def _opened(path: str | Path) -> Any:
    try:
        return h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path}: cannot be read; give an .h5 file written by hloc or coam") from error

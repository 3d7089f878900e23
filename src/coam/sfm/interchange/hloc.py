"""hloc's files: .h5 features and matches, in and out.

hloc's keypoints have the centre of the first pixel at (0, 0), as ours; it adds COLMAP's half pixel itself on
import. A pair is stored under "name0/name1" with slashes inside names turned to dashes; `matches0` says for
every keypoint of image 0 which keypoint of image 1 it matches, or -1.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.sfm.interchange.colmap import read_database
from coam.sfm.pairs import write_pairs
from coam.store.atomic import atomic_write, require_space
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
            matches0 = np.full(len(points[name0]), -1, np.int32)
            matches0[index[:, 0]] = index[:, 1]
            group = file.create_group(pair_key(name0, name1))
            group["matches0"] = matches0
            group["matching_scores0"] = (matches0 >= 0).astype(np.float16)
    return features_path, matches_path, write_pairs(sorted(matches), folder / "pairs.txt")


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

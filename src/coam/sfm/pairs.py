"""Which pairs of photos are worth matching.

Every function gives sorted, unique pairs of names (smaller name first) unless the order means something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.sfm.alignment import model_poses
from coam.sfm.journal import Pair, replacing

Descriptors = npt.NDArray[np.float32]
EXHAUSTIVE_UP_TO = 40  # photos: 780 pairs


def _sorted_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    return sorted({(min(a, b), max(a, b)) for a, b in pairs if a != b})


def exhaustive_pairs(names: Sequence[str]) -> list[Pair]:
    """All n (n - 1) / 2 pairs."""
    return _sorted_pairs((a, b) for i, a in enumerate(names) for b in names[i + 1 :])


def _natural_key(name: str) -> list[Any]:
    """Digits compare as numbers, so frame 10 comes after frame 9."""
    return [
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name) if part
    ]


def sequential_pairs(names: Sequence[str], window: int = 5, jumps: bool = True) -> list[Pair]:
    """Each photo with the `window` that follow it in natural order of names; with `jumps` also those 2^k
    later.

    The jumps (8, 16, 32, ... frames) tie slow videos together over longer baselines.
    """
    ordered = sorted(names, key=_natural_key)
    steps = set(range(1, window + 1))
    if jumps:
        steps |= {2**k for k in range(3, max(4, len(ordered).bit_length())) if 2**k > window}
    return _sorted_pairs(
        (ordered[i], ordered[i + step]) for step in steps for i in range(len(ordered) - step)
    )


def global_descriptors(
    names: Sequence[str], paths: Mapping[str, Path], global_descriptor: Callable[[Any], npt.NDArray[Any]]
) -> Descriptors:
    """Unit vectors (n, D) of the photos, one call of `global_descriptor(path)` each."""
    vectors = np.stack([np.asarray(global_descriptor(paths[name]), np.float32).ravel() for name in names])
    return unit_rows(vectors)


def unit_rows(vectors: npt.NDArray[Any]) -> Descriptors:
    """Rows (n, D) scaled to length 1; a zero row stays zero."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), np.float32)


def nearest(queries: Descriptors, base: Descriptors, count: int, block: int = 4096) -> npt.NDArray[np.int64]:
    """For each query (q, D) the `count` most similar rows of `base` (b, D) by cosine, best first: (q, count).

    Block by block, so memory is block x b. Exact search of a million 256-D vectors takes about a second per
    block of 4096 on one GPU and under a minute on a CPU, which is why no approximate index is used below
    that.
    """
    count = min(count, len(base))
    found = np.empty((len(queries), count), np.int64)
    for begin in range(0, len(queries), block):
        similarity = queries[begin : begin + block] @ base.T
        top = np.argpartition(-similarity, count - 1, axis=1)[:, :count] if count < len(base) else None
        if top is None:
            found[begin : begin + block] = np.argsort(-similarity, axis=1, kind="stable")
            continue
        order = np.argsort(-np.take_along_axis(similarity, top, axis=1), axis=1, kind="stable")
        found[begin : begin + block] = np.take_along_axis(top, order, axis=1)
    return found


def retrieval_pairs(names: Sequence[str], descriptors: Descriptors, count: int = 20) -> list[Pair]:
    """Each photo with its `count` most similar others; a pair is proposed when either side proposes it.

    One common direction of all photos carries no information about place, so the mean is taken out first.
    """
    centred = (
        unit_rows(descriptors - descriptors.mean(axis=0, keepdims=True)) if len(names) > 2 else descriptors
    )
    best = nearest(centred, centred, count + 1)
    return _sorted_pairs((names[i], names[j]) for i, row in enumerate(best) for j in row if i != j)


def choose_pairs(
    names: Sequence[str],
    paths: Mapping[str, Path],
    global_descriptor: Callable[[Any], npt.NDArray[Any]] | None,
    count: int = 20,
    exhaustive_up_to: int = EXHAUSTIVE_UP_TO,
) -> tuple[list[Pair], str]:
    """The pairs of a folder without further knowledge, and one line that says how they were chosen."""
    if len(names) <= exhaustive_up_to:
        return exhaustive_pairs(names), f"all pairs of {len(names)} photos"
    if global_descriptor is None:
        raise ConfigError(
            f"{len(names)} photos are too many to match exhaustively and this matcher has no global "
            f"descriptor; "
            "give pairs with --pairs, or use --pairing sequential or exhaustive"
        )
    descriptors = global_descriptors(names, paths, global_descriptor)
    proposed = set(retrieval_pairs(names, descriptors, count))
    if looks_sequential(names):
        proposed |= set(sequential_pairs(names))
        return _sorted_pairs(proposed), f"{count} most similar photos each, and neighbours in the sequence"
    return _sorted_pairs(proposed), f"{count} most similar photos each"


def looks_sequential(names: Sequence[str]) -> bool:
    """Whether the names carry a running number."""
    from coam.sfm.intrinsics import looks_like_one_shoot

    return looks_like_one_shoot(names)


def read_pairs(path: str | Path, known: Iterable[str] | None = None) -> list[Pair]:
    """Pairs from a text file with two names per line (hloc's pairs.txt); unknown names are an error."""
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a text file with two photo names per line")
    names = None if known is None else set(known)
    pairs: list[Pair] = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        if len(words) != 2:
            raise DataError(f"{path}, line {number}: has {len(words)} words; write two photo names per line")
        unknown = [word for word in words if names is not None and word not in names]
        if unknown:
            raise DataError(
                f"{path}, line {number}: there is no photo {unknown[0]}; names are relative to the folder"
            )
        pairs.append((words[0], words[1]))
    return list(dict.fromkeys(pairs))


def write_pairs(pairs: Iterable[Pair], path: str | Path) -> Path:
    """Write two names per line."""
    path = Path(path)
    with replacing(path) as temporary:
        temporary.write_text("".join(f"{a} {b}\n" for a, b in pairs))
    return path


def pose_pairs(
    names: Sequence[str],
    rotations: npt.NDArray[Any],
    centres: npt.NDArray[Any],
    count: int = 20,
    max_angle: float = 60.0,
) -> list[Pair]:
    """Each photo with the `count` nearest whose viewing direction differs by at most `max_angle` degrees.

    rotations (n, 3, 3) camera-from-world, centres (n, 3) in world units.
    """
    directions = np.asarray(rotations, float)[:, 2]
    cosine = np.clip(directions @ directions.T, -1, 1)
    distance = np.linalg.norm(np.asarray(centres, float)[:, None] - np.asarray(centres, float)[None], axis=2)
    distance[np.degrees(np.arccos(cosine)) > max_angle] = np.inf
    np.fill_diagonal(distance, np.inf)
    pairs: list[Pair] = []
    for i, row in enumerate(distance):
        best = np.argsort(row, kind="stable")[:count]
        pairs += [(names[i], names[j]) for j in best if np.isfinite(row[j])]
    return _sorted_pairs(pairs)


def reference_pairs(
    reconstruction: Any, names: Sequence[str], kind: str = "auto", count: int = 20
) -> tuple[list[Pair], str]:
    """Pairs of the photos `names` from a pycolmap reconstruction that has them, and one line that says how.

    kind: "model", by common points; "poses", by places and directions; "auto", the first where there are
    points.
    """
    poses, wanted = model_poses(reconstruction), set(names)
    if kind == "auto":
        kind = "model" if reconstruction.num_points3D() else "poses"
    if kind == "model":
        shared = covisible_pairs(reconstruction, count)
        return [pair for pair in shared if wanted.issuperset(pair)], f"{count} with most common points each"
    known = sorted(wanted & set(poses))
    rotations = np.array([poses[name][0] for name in known]).reshape(-1, 3, 3)
    centres = np.array([-poses[name][0].T @ poses[name][1] for name in known]).reshape(-1, 3)
    return pose_pairs(known, rotations, centres, count), f"{count} nearest of similar direction each"


def covisible_pairs(reconstruction: Any, count: int = 20, minimum: int = 1) -> list[Pair]:
    """Pairs of a pycolmap reconstruction that see at least `minimum` common points, the `count` best of each
    image.
    """
    shared: dict[tuple[int, int], int] = {}
    for point in reconstruction.points3D.values():
        seen = sorted({element.image_id for element in point.track.elements})
        for index, first in enumerate(seen):
            for second in seen[index + 1 :]:
                shared[first, second] = shared.get((first, second), 0) + 1
    best: dict[int, list[tuple[int, int]]] = {}
    for (first, second), number in shared.items():
        if number >= minimum:
            best.setdefault(first, []).append((-number, second))
            best.setdefault(second, []).append((-number, first))
    names = {image_id: image.name for image_id, image in reconstruction.images.items()}
    return _sorted_pairs(
        (names[first], names[second])
        for first, others in best.items()
        for _, second in sorted(others)[:count]
    )

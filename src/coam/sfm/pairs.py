"""Pair proposal: exhaustive, sequential, by retrieval, by covisibility or by pose.

Every function gives sorted, unique pairs of names (smaller name first) unless the order means something.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.geometry.alignment import Pose, camera_centres
from coam.sfm.cameras import shoots
from coam.sfm.colmap_model import covisibility, model_poses
from coam.sfm.descriptors import Descriptors, unit_rows
from coam.store.atomic import write_text
from coam.store.documents import read_text
from coam.store.journal import Pair

Pairing = Literal["auto", "exhaustive", "sequential", "retrieval", "model", "poses"]
EXHAUSTIVE_UP_TO = 40  # photos: 780 pairs


def _sorted_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    return sorted({(min(a, b), max(a, b)) for a, b in pairs if a != b})


def exhaustive_pairs(names: Sequence[str]) -> list[Pair]:
    """All n (n - 1) / 2 pairs."""
    return _sorted_pairs(combinations(names, 2))


def _natural_key(name: str) -> list[Any]:
    """Digits compare as numbers, so frame 10 comes after frame 9."""
    return [
        (1, int(part), "") if part.isdigit() else (0, 0, part) for part in re.split(r"(\d+)", name) if part
    ]


def sequential_pairs(names: Sequence[str], window: int = 5, jumps: bool = True) -> list[Pair]:
    """Each photo with the `window` that follow it in natural order of names; with `jumps` also 2^k later.

    The jumps (8, 16, 32, ... frames) tie slow videos together over longer baselines.
    """
    ordered = sorted(names, key=_natural_key)
    steps = set(range(1, window + 1))
    if jumps:
        steps |= {2**k for k in range(3, max(4, len(ordered).bit_length())) if 2**k > window}
    return _sorted_pairs(
        (ordered[i], ordered[i + step]) for step in steps for i in range(len(ordered) - step)
    )


def nearest(queries: Descriptors, base: Descriptors, count: int, block: int = 4096) -> npt.NDArray[np.int64]:
    """For each query (q, D) the `count` most similar rows of `base` (b, D) by cosine, best first: (q, count).

    Block by block, so memory is block x b. Exact search of a million 256-D vectors takes about a second per
    block of 4096 on one GPU and under a minute on a CPU, which is why no approximate index is used below
    that.
    """
    count = min(count, len(base))
    found = np.empty((len(queries), count), np.int64)
    for begin in range(0, len(queries), block):
        distance = -queries[begin : begin + block] @ base.T
        top = np.sort(np.argpartition(distance, count - 1, axis=1)[:, :count], axis=1)
        order = np.argsort(np.take_along_axis(distance, top, axis=1), axis=1, kind="stable")
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
    photos: Mapping[str, Path],
    describe: Callable[[Mapping[str, Path]], Descriptors] | None = None,
    pairing: Pairing = "auto",
    count: int = 20,
    reference: Any = None,
) -> tuple[list[Pair], str]:
    """The pairs of photos (name -> file), and one line that says how they were chosen.

    describe: the global descriptors (n, D) of photos, for retrieval. count: others for each photo, where not
    all are taken. reference: a pycolmap reconstruction that has them.
    """
    names = list(photos)
    if pairing == "exhaustive":
        return exhaustive_pairs(names), "all pairs"
    if pairing == "sequential":
        return sequential_pairs(names), "neighbours in the order of names"
    if reference is not None and pairing != "retrieval":
        return reference_pairs(reference, names, pairing, count)
    if pairing == "auto" and len(names) <= EXHAUSTIVE_UP_TO:
        return exhaustive_pairs(names), f"all pairs of {len(names)} photos"
    if describe is None:
        raise ConfigError(
            f"{len(names)} photos are too many to match exhaustively and this matcher has no global "
            "descriptor; give pairs with --pairs, or use --pairing sequential or exhaustive"
        )
    proposed = retrieval_pairs(names, describe(photos), count)
    how = f"{count} most similar photos each"
    in_sequence = [pair for shoot in shoots(names) for pair in sequential_pairs(shoot)]
    if not in_sequence:
        return proposed, how
    return _sorted_pairs([*proposed, *in_sequence]), f"{how}, and neighbours in the sequence"


def read_pairs(path: str | Path, known: Iterable[str] | None = None) -> list[Pair]:
    """Pairs from a text file with two names per line (hloc's pairs.txt); unknown names are an error.

    Names with spaces stand in double quotes, or a tab separates the two.
    """
    text = read_text(path, "give a text file with two photo names per line")
    names = None if known is None else set(known)
    pairs: list[Pair] = []
    for number, line in enumerate(text.splitlines(), 1):
        words = _names_of_line(line)
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


def _names_of_line(line: str) -> list[str]:
    if "\t" in line:
        return [word.strip().strip('"') for word in line.split("\t") if word.strip()]
    return [quoted or plain for quoted, plain in re.findall(r'"([^"]+)"|(\S+)', line)]


def write_pairs(pairs: Iterable[Pair], path: str | Path) -> Path:
    """Write two names per line."""
    return write_text(path, "".join(f"{a} {b}\n" for a, b in pairs))


def pose_pairs(poses: Mapping[str, Pose], count: int = 20, max_angle: float = 60.0) -> list[Pair]:
    """Each photo with the `count` nearest whose viewing direction differs by at most `max_angle` degrees.

    poses: photo name -> camera-from-world.
    """
    names = sorted(poses)
    directions = np.array([poses[name][0][2] for name in names]).reshape(-1, 3)
    centres = camera_centres(poses, names)
    distance = np.linalg.norm(centres[:, None] - centres[None], axis=2)
    distance[np.degrees(np.arccos(np.clip(directions @ directions.T, -1, 1))) > max_angle] = np.inf
    np.fill_diagonal(distance, np.inf)
    nearest = np.argsort(distance, axis=1, kind="stable")[:, :count]
    return _sorted_pairs(
        (names[i], names[j]) for i, row in enumerate(nearest) for j in row if np.isfinite(distance[i, j])
    )


def reference_pairs(
    reconstruction: Any, names: Sequence[str], kind: str = "auto", count: int = 20
) -> tuple[list[Pair], str]:
    """Pairs of the photos `names` from a pycolmap reconstruction that has them, and one line that says how.

    kind: "model", by common points; "poses", by places and directions; "auto": by points where it has any.
    """
    wanted = set(names)
    if kind == "model" or (kind == "auto" and reconstruction.num_points3D()):
        shared = covisible_pairs(reconstruction, count)
        return [
            pair for pair in shared if set(names).issuperset(pair)
        ], f"{count} with most common points each"
    poses = {name: pose for name, pose in model_poses(reconstruction).items() if name in wanted}
    return pose_pairs(poses, count), f"{count} nearest of similar direction each"


def covisible_pairs(reconstruction: Any, count: int = 20) -> list[Pair]:
    """Covisible pairs of a pycolmap reconstruction: the `count` with most common points of each image."""
    best: dict[int, list[tuple[int, int]]] = {}
    for (first, second), number in covisibility(reconstruction).items():
        best.setdefault(first, []).append((-number, second))
        best.setdefault(second, []).append((-number, first))
    names = {image_id: image.name for image_id, image in reconstruction.images.items()}
    return _sorted_pairs(
        (names[first], names[second])
        for first, others in best.items()
        for _, second in sorted(others)[:count]
    )

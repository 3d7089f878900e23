"""What a benchmark hands to a matcher: pairs of photos with what is known about them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.store.documents import read_text

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class EvaluationPair:
    """Two photos and their ground truth.

    `name` is unique in its benchmark and names the pair in caches and tables; `sequence` is the unit of the
    bootstrap and of the per-sequence table. `subsets` are the tables the pair counts in besides "all".
    """

    name: str
    image0: Path
    image1: Path
    sequence: str
    subsets: tuple[str, ...] = ()
    turns0: int = 0  # quarter turns counter-clockwise that set photo 0 upright (given by the benchmark)
    turns1: int = 0
    homography: Array | None = field(default=None, compare=False)  # (3, 3) pixels of 0 -> pixels of 1
    intrinsics0: Array | None = field(default=None, compare=False)  # (3, 3)
    intrinsics1: Array | None = field(default=None, compare=False)
    pose: Array | None = field(default=None, compare=False)  # (4, 4) camera 0 -> camera 1
    correspondences: Array | None = field(default=None, compare=False)  # (N, 4) x0 y0 x1 y1
    overlaps: bool | None = None  # whether the two show the same place, for pair-score


def limit_pairs(pairs: Sequence[EvaluationPair], limit: int | None) -> list[EvaluationPair]:
    """At most `limit` pairs, taken evenly over the list so that every part of the benchmark is seen."""
    if limit is None or limit >= len(pairs):
        return list(pairs)
    if limit < 1:
        raise ConfigError(f"--limit must be at least 1, got {limit}")
    chosen = np.unique(np.linspace(0, len(pairs) - 1, limit).round().astype(int))
    return [pairs[index] for index in chosen]


def listed_lines(path: Path, advice: str = "give a text file") -> list[tuple[str, list[str]]]:
    """("NAME line N", words) of the lines of a text file that are neither blank nor comments (#)."""
    text = read_text(path, advice)
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), start=1)]
    return [(f"{path.name} line {n}", words) for n, words in lines if words and not words[0].startswith("#")]


def photo_below(root: Path, name: str, where: str) -> Path:
    """ROOT/NAME; a photo that is missing is named with the line that wants it."""
    if not (root / name).is_file():
        raise DataError(f"{where}: the photo {name} is missing below --root")
    return root / name

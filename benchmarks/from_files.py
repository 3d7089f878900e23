"""Whole pairs, from files to matches, beside the matchers people know: same photos, in turn, in one process.

Real weights of the peers come with the extra `peers`. Pairs are the bundled ones: a stereo pair, the
courtyard by day, by day and by night, a photo and its tilted copy (a plane: matched twice), and two photos of
different places; or those of a folder as `coam eval pair-score` takes it. A matcher's figure is the median
over the pairs of a kind; a pair's the fastest of all rounds.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import cv2
import numpy as np

from benchmarks.timing import Row, peak
from coam import load_matcher, samples
from coam.errors import CoamError
from coam.evaluation.benchmarks.pair_score import load_pair_score
from coam.evaluation.matchers.by_name import find_matcher
from coam.evaluation.matchers.peers import load_peer

TILT = np.array([[0.8, 0.15, 30.0], [-0.1, 0.9, 12.0], [2e-4, -1e-4, 1.0]])
Match = Callable[[Path, Path], Any]
PhotoPair = tuple[Path, Path]
Times = tuple[float, float]  # seconds, and processor seconds


def from_files(rounds: int, photos: Path | None = None) -> Iterator[Row]:
    """A row for each matcher that is installed, and one for ours on photos of different places."""
    with TemporaryDirectory() as folder:
        right, wrong = bundled_pairs(Path(folder)) if photos is None else listed_pairs(photos)
        found = matchers()
        fastest: dict[tuple[str, int], Times] = {}
        for turn in range(rounds + 1):
            for number, pair in enumerate([*right, *wrong]):
                for name, match in found.items():
                    start = time.perf_counter(), time.process_time()
                    match(*pair)
                    taken = time.perf_counter() - start[0], time.process_time() - start[1]
                    if turn:  # the first round warms up
                        fastest[name, number] = min(fastest.get((name, number), taken), taken)
    for name in found:
        times = [fastest[name, number] for number in range(len(right) + len(wrong))]
        yield row(f"{name}: right pairs", times[: len(right)])
        if name.startswith("coam") and wrong:
            yield row(f"{name}: different places", times[len(right) :])


def row(stage: str, times: list[Times]) -> Row:
    """A line of the table; memory is that of all matchers together."""
    seconds, cpu_seconds = (median(each) for each in zip(*times, strict=True))
    return {
        "part": "pairs",
        "stage": stage,
        "seconds": seconds,
        "cpu_seconds": cpu_seconds,
        "extra_mib": 0.0,
        "peak_mib": peak() / 1024,
    }


def listed_pairs(folder: Path) -> tuple[list[PhotoPair], list[PhotoPair]]:
    """Pairs of a folder's photos that show the same, and those that do not."""
    listed = load_pair_score(folder)
    right, wrong = ([(p.image0, p.image1) for p in listed if p.overlaps is same] for same in (True, False))
    return right, wrong


def bundled_pairs(folder: Path) -> tuple[list[PhotoPair], list[PhotoPair]]:
    """Photos that show the same, and two that do not."""
    stereo, yard = samples.motorcycle(), samples.courtyard()
    tilted = folder / "tilted.png"
    photo = cv2.imread(str(stereo.left))
    cv2.imwrite(str(tilted), cv2.warpPerspective(photo, TILT, (photo.shape[1], photo.shape[0])))
    right = [
        (stereo.left, stereo.right),
        (yard.image("day_01"), yard.image("day_03")),
        (yard.image("day_04"), yard.image("night_02")),
        (stereo.left, tilted),
        (yard.image("day_06"), yard.image("day_07")),
    ]
    return right, [(stereo.left, yard.image("day_01"))]


def matchers() -> dict[str, Match]:
    """What is at hand: ours with default settings, with the exact search and in float32; the peers."""
    found: dict[str, Match] = {
        "coam": load_matcher(device="cpu").match,
        "coam, exact search": load_matcher(device="cpu", search="exact").match,
        "coam, float32": load_matcher(device="cpu", backend="float32").match,
        "RootSIFT": one_pair(find_matcher("rootsift").create()),
    }
    for label, name, keypoints in (
        ("XFeat 4096", "xfeat", 4096),
        ("ALIKED + LightGlue 1024", "aliked+lightglue", 1024),
    ):
        try:
            found[label] = one_pair(load_peer(name, device="cpu", max_keypoints=keypoints))
        except CoamError as error:
            print(f"{label}: left out ({error})")
    return found


def one_pair(matcher: Any) -> Match:
    """`match_many` of a single pair."""
    return lambda a, b: list(matcher.match_many([(a, b)]))

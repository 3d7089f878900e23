"""Two versions of coam on the same pairs, in turn: processor seconds of one thread.

    python -m benchmarks.two_versions OLD/src NEW/src [--rounds 3] [--photos FOLDER]

Each version runs in a process of its own, and only one works at a time, so other work on the machine slows
both alike. Pairs are those of `from_files`; a pair's figure is the fastest of all rounds after one that warms
up, a kind's the median of its pairs. Also whether both find the same matches.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory

import numpy as np

WORKER = """
import json, sys, time
import cv2, torch
cv2.setNumThreads(1)
torch.set_num_threads(1)
import coam
matcher = coam.load_matcher(device="cpu")
for line in sys.stdin:
    pair, output = json.loads(line)
    start = time.process_time()
    matches = matcher.match(*pair)
    taken = time.process_time() - start
    matches.save(output)
    print(taken, flush=True)
"""


@contextmanager
def version(source: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that matches pairs with the coam in `source`."""
    environment = os.environ | {"PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", WORKER]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment) as process:
        yield process


def seconds(process: subprocess.Popen[str], pair: tuple[Path, Path], output: Path) -> float:
    """Processor seconds of a pair; its matches are written."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(json.dumps([[str(photo) for photo in pair], str(output)]) + "\n")
    process.stdin.flush()
    return float(process.stdout.readline())


def main() -> None:
    """Print one line a kind of pairs."""
    from benchmarks.backends import same_share
    from benchmarks.from_files import bundled_pairs, listed_pairs
    from coam.types import Matches

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--photos", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory() as folder, version(options.old) as old, version(options.new) as new:
        outputs = [Path(folder) / f"{name}.npz" for name in ("old", "new")]
        right, wrong = bundled_pairs(Path(folder)) if options.photos is None else listed_pairs(options.photos)
        pairs = [*right, *wrong]
        fastest = np.full((len(pairs), 2), np.inf)
        same: dict[int, float] = {}
        for turn in range(options.rounds + 1):
            for number, pair in enumerate(pairs):
                both = zip((old, new), outputs, strict=True)
                taken = [seconds(process, pair, output) for process, output in both]
                if turn:
                    fastest[number] = np.minimum(fastest[number], taken)
                    same[number] = same_share(*map(Matches.load, outputs))
    print("pairs | old | new | new / old | same matches")
    for kind, numbers in (("right", range(len(right))), ("different places", range(len(right), len(pairs)))):
        if len(numbers):
            before, now = (median(fastest[number, side] for number in numbers) for side in (0, 1))
            share = mean(same[number] for number in numbers)
            print(f"{kind} | {before:.3f} | {now:.3f} | {now / before:.2f} | {share:.3f}")


if __name__ == "__main__":
    main()

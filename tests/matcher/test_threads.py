"""One matcher used by several threads, and by a process that was forked."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import coam
from coam import samples

YARD = samples.courtyard()
PHOTOS = [YARD.image(view) for view in ("day_03", "day_04", "night_02")]
PAIRS = [(a, b) for a in PHOTOS for b in PHOTOS if a != b]
SMALL = {"resolution": 224, "looks": "once", "device": "cpu"}


def test_several_threads_get_what_one_gets() -> None:
    """Six pairs in four threads, which share cached photos: the same ids and points, in the same order."""
    matcher = coam.load_matcher(**SMALL)
    alone = [matcher.match(*pair) for pair in PAIRS]
    assert min(map(len, alone)) > 30
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(lambda pair: matcher.match(*pair), PAIRS * 2))
    for found, expected in zip(together, alone * 2, strict=True):
        assert found.ids0.tolist() == expected.ids0.tolist()
        assert found.ids1.tolist() == expected.ids1.tolist()
        assert found.points1.tolist() == expected.points1.tolist()


def test_any_number_of_threads_finds_the_same_pairs() -> None:
    """Sums in another order may turn matches of equal score around, and no more."""
    before = torch.get_num_threads()
    found = []
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            matcher = coam.load_matcher(**SMALL)
            matches = [matcher.match(*pair) for pair in PAIRS[:2]]
            found.append([sorted(zip(m.ids0.tolist(), m.ids1.tolist(), strict=True)) for m in matches])
    finally:
        torch.set_num_threads(before)
    assert min(map(len, found[0])) > 300
    assert found[0] == found[1] == found[2]


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("threads", [1, 2])
def test_a_forked_process_gets_what_its_parent_got(threads: int) -> None:
    """In one thread, whatever its parent used: torch's other threads do not survive a fork."""
    program = f"""
import os, sys, torch, coam
torch.set_num_threads({threads})
matcher = coam.load_matcher(**{SMALL!r})
before = matcher.match(*{PAIRS[0]!r})
child = os.fork()
if child == 0:
    after = matcher.match(*{PAIRS[0]!r})
    same = after.ids0.tolist() == before.ids0.tolist() and len(after) > 30
    os._exit(0 if same and torch.get_num_threads() == 1 else 1)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    program = program.replace("PosixPath(", "str(")
    assert subprocess.run([sys.executable, "-c", program], timeout=120, check=False).returncode == 0

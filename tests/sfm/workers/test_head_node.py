"""The head node of a Ray cluster is killed in the middle of the work: what was done is kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from coam.sfm.matching.match_pairs import match_pairs
from coam.sfm.pairs import exhaustive_pairs
from coam.sfm.photos import read_photo_folder
from coam.store.journal import PairJournal
from support import REPOSITORY, TESTS
from support.slow_matcher import load_slow
from support.toy_scene import Scene

RUN = """
import sys
from coam.errors import CoamError
from coam.sfm.workers import ray_actors
from sfm.workers.test_head_node import match
ray_actors.ASKED_EVERY, ray_actors.GONE_AFTER = 1.0, 3.0
try:
    match(sys.argv[1], sys.argv[2])
except CoamError as error:
    print(error, flush=True)
"""


def match(photos: str, output: str) -> None:
    """Match on a cluster whose head node is killed after ten pairs: it is a child of this process."""
    from coam.sfm.workers.ray_actors import RayActors

    class Beheaded(RayActors):
        def run(self, task):
            for count, result in enumerate(super().run(task)):
                if count == 10:
                    for child in children_called("gcs_server"):
                        os.kill(child, signal.SIGKILL)
                yield result

    folder = read_photo_folder(photos)
    pairs, slow = exhaustive_pairs(folder.names), partial(load_slow, 0.5)
    match_pairs(load_slow(0.0), folder, pairs, output, False, Beheaded(2, "local"), slow, 1)


def children_called(name: str) -> list[int]:
    """Process ids of the children of this process whose command has `name` in it."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
            command = (stat.parent / "cmdline").read_text()
        except OSError:
            continue
        if int(fields[1]) == os.getpid() and name in command:
            found.append(int(stat.parent.name))
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="children are found in /proc")
def test_nothing_that_was_done_is_lost(tmp_path):
    pytest.importorskip("ray")
    photos = Scene(count=12, size=(160, 120), focal=150.0).write_photos(tmp_path / "photos")
    place = os.pathsep.join([str(TESTS), str(REPOSITORY), str(REPOSITORY / "src")])
    line = [sys.executable, "-c", RUN, str(photos), str(tmp_path / "m.h5")]
    done = subprocess.run(line, env={**os.environ, "PYTHONPATH": place}, capture_output=True, text=True)
    assert "the head node of the Ray cluster is gone; run the same line again" in done.stdout
    assert "The program will terminate" not in done.stderr  # Ray's own end, without a word to us
    folder = read_photo_folder(photos)
    pairs, again = exhaustive_pairs(folder.names), load_slow(0.0)
    kept = len(PairJournal(tmp_path / "m.h5"))
    assert 10 <= kept < 66
    journal = match_pairs(again, folder, pairs, tmp_path / "m.h5")
    assert len(again.calls) == 66 - kept
    alone = match_pairs(load_slow(0.0), folder, pairs, tmp_path / "alone.h5")
    for pair in pairs:
        for name, column in alone.read(pair).columns.items():
            np.testing.assert_array_equal(journal.read(pair).columns[name], column)

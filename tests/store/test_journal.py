"""Results that survive a kill at any time."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.store.journal import PairJournal, Record


def record(number: int, stamp: str = "s") -> Record:
    rows = np.arange(number, dtype=np.int32)
    return Record({"ids": rows, "xy": np.c_[rows, rows].astype(np.float32)}, {"n": np.array(number)}, stamp)


def assert_same(a: Record, b: Record) -> None:
    assert a.stamp == b.stamp
    for name in a.columns:
        np.testing.assert_array_equal(a.columns[name], b.columns[name])
    assert a.values["n"] == b.values["n"]


def test_a_part_that_another_process_is_writing_is_left_alone(tmp_path):
    journal = PairJournal(tmp_path / "m.h5")
    journal.append({("a", "b"): record(3)})
    half = journal.parts / f".coam-{os.getpid()}-0123456789ab.npz"  # as `atomic_write` names it
    half.write_bytes(b"half of")
    assert PairJournal(tmp_path / "m.h5").pairs() == [("a", "b")]
    assert half.read_bytes() == b"half of"


def test_round_trip_through_parts_and_h5(tmp_path):
    journal = PairJournal(tmp_path / "m.h5")
    journal.append({("a", "b"): record(3), ("a", "c/d"): record(0)})
    journal.append({("b", "c/d"): record(2)})
    assert_same(PairJournal(tmp_path / "m.h5").read(("b", "c/d")), record(2))
    journal.finish()
    assert not journal.parts.exists()
    again = PairJournal(tmp_path / "m.h5")
    assert again.pairs() == [("a", "b"), ("a", "c/d"), ("b", "c/d")]
    for pair, number in ((("a", "b"), 3), (("a", "c/d"), 0), (("b", "c/d"), 2)):
        assert_same(again.read(pair), record(number))


def test_only_what_changed_is_missing(tmp_path):
    journal = PairJournal(tmp_path / "m.h5")
    journal.append({("a", "b"): record(3, "old"), ("a", "c"): record(1, "same")})
    assert journal.missing({("a", "b"): "new", ("a", "c"): "same", ("b", "c"): "x"}) == [
        ("a", "b"),
        ("b", "c"),
    ]
    journal.append({("a", "b"): record(5, "new")})
    journal.finish([("a", "b")])
    again = PairJournal(tmp_path / "m.h5")
    assert len(again) == 1
    assert_same(again.read(("a", "b")), record(5, "new"))


def test_order_of_work_does_not_show(tmp_path):
    pairs = [("a", "b"), ("a", "c"), ("b", "c")]
    for name, order in (("1", pairs), ("2", pairs[::-1])):
        journal = PairJournal(tmp_path / f"{name}.h5")
        for pair in order:
            journal.append({pair: record(len(pair[0] + pair[1]))})
        journal.finish()
    one, two = PairJournal(tmp_path / "1.h5"), PairJournal(tmp_path / "2.h5")
    assert one.pairs() == two.pairs() == pairs
    for pair in pairs:
        assert_same(one.read(pair), two.read(pair))


def test_damaged_files_are_put_aside(tmp_path):
    journal = PairJournal(tmp_path / "m.h5")
    journal.append({("a", "b"): record(3)})
    part = next(journal.parts.glob("*.npz"))
    part.write_bytes(part.read_bytes()[:100])
    (tmp_path / "m.h5").write_bytes(b"not hdf5 at all")
    again = PairJournal(tmp_path / "m.h5")
    assert len(again) == 0
    assert (tmp_path / "m.h5.damaged").read_bytes() == b"not hdf5 at all"


def test_a_write_that_fails_is_one_line_and_loses_nothing(tmp_path):
    """A file size limit stands in for a full disk: the write fails in the same place."""
    journal = PairJournal(tmp_path / "m.h5")
    journal.append({("a", "b"): record(3)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, before[1]))
    try:
        with pytest.raises(DataError, match="cannot be written"):
            journal.append({("a", "c"): record(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert PairJournal(tmp_path / "m.h5").pairs() == [("a", "b")]


WORKER = """
import sys, numpy as np
from coam.store.journal import PairJournal, Record
journal = PairJournal(sys.argv[1])
for k in range(100000):
    pair = ("a", f"{k:06d}")
    if pair in journal: continue
    rows = np.arange(k % 50, dtype=np.int32)
    journal.append({pair: Record({"ids": rows}, {"n": np.array(k)}, "s")})
    print(k, flush=True)
    if k % 40 == 39: journal.finish()
"""


def test_sigkill_at_random_times_loses_and_corrupts_nothing(tmp_path):
    target = tmp_path / "m.h5"
    generator = np.random.default_rng(0)
    confirmed = -1
    for _ in range(3):
        with subprocess.Popen(
            [sys.executable, "-c", WORKER, str(target)], stdout=subprocess.PIPE, text=True,
            env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2] / "src")},
        ) as process:  # fmt: skip
            first = process.stdout.readline()
            assert (
                int(first) == confirmed + 1 or int(first) == confirmed + 2
            )  # nothing finished is made again
            time.sleep(generator.uniform(0.1, 0.5))
            process.send_signal(signal.SIGKILL)
            numbers = [int(line) for line in process.stdout.read().split()] or [int(first)]
            confirmed = numbers[-1]
        journal = PairJournal(target)
        assert not list(tmp_path.rglob("*.damaged"))
        for k in range(confirmed + 1):
            result = journal.read(("a", f"{k:06d}"))
            assert int(result.values["n"]) == k
            assert len(result.columns["ids"]) == k % 50
        confirmed = len(journal) - 1
        journal.close()

"""Two runs in one folder: the second is told whose it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from coam.errors import DataError
from coam.store.lock import LOCK, folder_lock

HOLD = """
import sys, time
from coam.store.lock import folder_lock
with folder_lock(sys.argv[1]):
    print("locked", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def other(tmp_path: Path):
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "model")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "locked\n"
    yield process
    process.kill()
    process.wait()


def test_the_second_run_is_told_who_has_the_folder(tmp_path: Path, other) -> None:
    began = time.monotonic()
    with pytest.raises(DataError) as caught, folder_lock(tmp_path / "model"):
        pytest.fail("the folder is not ours")
    assert f"process {other.pid} (-c " in str(caught.value)
    assert str(caught.value).startswith(f"{tmp_path / 'model'}: is in use by ")
    assert "\n" not in str(caught.value)
    assert time.monotonic() - began < 2


def test_a_killed_run_leaves_no_lock(tmp_path: Path, other) -> None:
    other.send_signal(signal.SIGKILL)
    other.wait()
    with folder_lock(tmp_path / "model"):
        assert f"process {os.getpid()} " in (tmp_path / "model" / LOCK).read_text()
    assert os.listdir(tmp_path / "model") == []


def test_stages_of_one_process_may_nest(tmp_path: Path) -> None:
    with folder_lock(tmp_path / "m"):
        with folder_lock(tmp_path / "m"):
            pass
        assert (tmp_path / "m" / LOCK).exists()
    assert not (tmp_path / "m" / LOCK).exists()


def test_a_folder_that_cannot_be_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="is a file; give a folder"), folder_lock(tmp_path / "file"):
        pass

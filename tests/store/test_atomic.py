"""Files and folders that are whole or not there at all."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from coam.errors import DataError
from coam.store.atomic import (
    atomic_folder,
    atomic_write,
    check_folder,
    remove_leftovers,
    write_json,
)


def write_half(path: Path, error: BaseException) -> None:
    with atomic_write(path) as temporary:
        temporary.write_text("ne")
        raise error


def test_a_failing_block_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old")
    with pytest.raises(RuntimeError, match="half way"):
        write_half(path, RuntimeError("half way"))
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["file.txt"]


def test_interrupting_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write_half(tmp_path / "file.txt", KeyboardInterrupt())
    assert os.listdir(tmp_path) == []


def test_the_new_file_appears_whole_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "down" / "file.png"
    with atomic_write(path) as temporary:
        assert temporary.name == "file.png"
        assert temporary.parent.parent == path.parent
        temporary.write_bytes(b"new")
        assert not path.exists()
    assert path.read_bytes() == b"new"
    umask = os.umask(0)
    os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~umask, "readable by those the user lets read"


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.txt", tmp_path / "link.txt"
    real.write_text("old")
    link.symlink_to(real)
    with atomic_write(link) as temporary:
        temporary.write_text("new")
    assert link.is_symlink()
    assert real.read_text() == "new"


def test_what_cannot_be_written_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cases = [tmp_path, tmp_path / "file" / "below.txt", tmp_path / ("x" * 300)]
    for path in cases:
        with pytest.raises(DataError, match="folder") as error, atomic_write(path) as temporary:
            temporary.write_text("")
        assert "\n" not in str(error.value)
    with (
        pytest.raises(DataError, match=r"the disk is full; free"),
        atomic_write(tmp_path / "full.txt"),
    ):
        raise OSError(28, "No space left on device")
    with pytest.raises(DataError, match=r"cannot be written \(Read-only file system\)") as error:  # noqa: SIM117
        with atomic_write(tmp_path / "read-only.txt"):
            raise OSError(30, "Read-only file system")
    assert "space" not in str(error.value)
    assert os.listdir(tmp_path) == ["file"]


def test_folders_are_checked_and_not_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    check_folder(tmp_path / "deep" / "down")
    check_folder(tmp_path)
    assert os.listdir(tmp_path) == ["file"]
    for path in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(DataError, match="file: is a file; give a folder"):
            check_folder(path)
    for place in ("/proc/run", "/proc/run/deep"):
        with pytest.raises(DataError, match=rf"^{place}: cannot be written \(") as error:
            check_folder(Path(place))  # no disk, and never full
        assert "full" not in str(error.value)


def test_weights_are_as_readable_as_any_file(tmp_path: Path) -> None:
    with atomic_write(tmp_path / "weights.safetensors") as temporary:
        save_file({"weight": torch.zeros(2)}, temporary)
    (tmp_path / "plain.txt").write_text("")
    modes = {path.stat().st_mode for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_errors_about_other_files_stay_what_they_are(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    with pytest.raises(FileNotFoundError), atomic_write(tmp_path / "out" / "x.txt"):
        (tmp_path / "missing").read_bytes()
    with pytest.raises(ZeroDivisionError), atomic_folder(tmp_path / "out" / "folder"):
        raise ZeroDivisionError
    assert list((tmp_path / "out").iterdir()) == []


def interrupted(path: Path) -> None:
    path.write_text("half")
    raise KeyboardInterrupt


def test_a_folder_takes_the_place_of_a_full_one(tmp_path: Path) -> None:
    target = tmp_path / "model"
    (target / "deep").mkdir(parents=True)
    (target / "deep" / "old.txt").write_text("old")
    with pytest.raises(KeyboardInterrupt), atomic_folder(target) as temporary:
        interrupted(temporary / "half.txt")
    assert (target / "deep" / "old.txt").read_text() == "old"
    with atomic_folder(target) as temporary:
        write_json(temporary / "new.json", {"a": 1})
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "new.json"]
    assert (target / "new.json").read_text() == '{\n  "a": 1\n}\n'


def test_leftovers_of_dead_processes_go(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    killed = "from coam.store.atomic import *; import os, sys\nwith atomic_write(sys.argv[1]): os._exit(1)"
    subprocess.run([sys.executable, "-c", killed, str(tmp_path / "weights.safetensors")], check=False)
    (left,) = tmp_path.iterdir()
    assert [path.name for path in left.iterdir()] == ["weights.safetensors"]
    (tmp_path / f".coam-{dead.pid}-0123456789ab").mkdir()
    own = tmp_path / f".coam-{os.getpid()}-0123456789ab.h5"
    own.write_bytes(b"at work")
    foreign = tmp_path / ".coam-notes"
    foreign.write_text("not ours")
    elsewhere = tmp_path / f".coam-00000000-{dead.pid}-0123456789ab"  # of another machine on the same disk
    elsewhere.mkdir()
    earlier = tmp_path / f".coam-{left.name.split('-')[1]}-{os.getpid()}-0123456789ab"
    earlier.mkdir()
    with atomic_write(tmp_path / "busy.txt") as temporary:
        remove_leftovers(tmp_path)
        assert set(tmp_path.iterdir()) == {own, foreign, elsewhere, temporary.parent}


def test_the_next_process_that_writes_beside_them_removes_leftovers(tmp_path: Path) -> None:
    """Also what a library left beside the file that it was writing: .onnx.tmp, .tmpAbC123."""
    killed = (
        "from coam.store.atomic import *; import os, sys\n"
        "with atomic_write(sys.argv[1]) as t: t.with_name(t.name + '.tmp').touch(); os._exit(1)"
    )
    whole = "from coam.store.atomic import *; import sys; write_text(sys.argv[1], 'whole')"
    target = tmp_path / "m.onnx"
    for program in (killed, killed, whole):
        subprocess.run([sys.executable, "-c", program, str(target)], check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["m.onnx"]
    assert target.read_text() == "whole"


@pytest.mark.parametrize("kind", [ValueError, RuntimeError, DataError])
def test_no_error_names_the_temporary_file(tmp_path: Path, kind: type[Exception]) -> None:
    target = tmp_path / "picture.png"
    with pytest.raises(DataError) as caught, atomic_write(target) as temporary:
        raise kind(f"cannot encode {temporary}")
    assert ".coam-" not in str(caught.value)
    assert str(target) in str(caught.value)

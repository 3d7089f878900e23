"""Published .npz files with object arrays: read without running code."""

from __future__ import annotations

import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.store.archives import read_npz
from support.megadepth_tree import object_array


def test_a_file_that_wants_to_run_code_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "was_run"

    class Evil:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(target),)

    np.savez(tmp_path / "evil.npz", image_paths=np.array([Evil(), None], dtype=object))
    with pytest.raises(DataError, match=r"evil.npz is refused: it asks for posix.mkdir"):
        read_npz(tmp_path / "evil.npz", ["image_paths"])
    assert not target.exists()


@pytest.mark.parametrize(
    "call", [b"cbuiltins\neval\n", b"cnumpy\nload\n", b"cnumpy.lib.npyio\nload\n", b"cos\nsystem\n"]
)
def test_dangerous_names_are_refused(tmp_path: Path, call: bytes) -> None:
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    header += b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", header + call + b"(V1\ntR.")
    with pytest.raises(DataError, match="refused"):
        read_npz(tmp_path / "x.npz", ["a"])


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_object_arrays_survive_every_pickle_protocol(tmp_path: Path, protocol: int) -> None:
    values = object_array([np.eye(3), None, {5: [1.0, 2.0]}, "text", np.float64(3.5)])
    header = b"\x93NUMPY\x01\x00" + (118).to_bytes(2, "little")
    header += b"{'descr': '|O', 'fortran_order': False, 'shape': (5,), }".ljust(117) + b"\n"
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("a.npy", header + pickle.dumps(values, protocol))
    read = read_npz(tmp_path / "x.npz", ["a"])["a"]
    np.testing.assert_array_equal(read[0], np.eye(3))
    assert read[1:].tolist() == [None, {5: [1.0, 2.0]}, "text", 3.5]


def test_object_arrays_of_numbers_and_strings_survive(tmp_path: Path) -> None:
    mixed = np.empty(3, dtype=object)
    mixed[:] = ["name", np.arange(4.0), np.float32(2.5)]
    np.savez(tmp_path / "a.npz", mixed=mixed, plain=np.arange(3))
    content = read_npz(tmp_path / "a.npz")
    assert content["mixed"][0] == "name"
    assert content["mixed"][1].tolist() == [0, 1, 2, 3]
    assert content["mixed"][2] == 2.5
    assert content["plain"].tolist() == [0, 1, 2]

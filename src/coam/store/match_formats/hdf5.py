"""Matches as an HDF5 file."""

from __future__ import annotations

import json
from pathlib import Path

from coam.store.checksums import CHECKSUMMED
from coam.store.documents import parse_json
from coam.store.match_formats import ARRAYS, Arrays, Header


def write(path: Path, header: Header, arrays: Arrays) -> None:
    """Write `header` and `arrays` to `path`."""
    import h5py

    with h5py.File(path, "w", libver=CHECKSUMMED) as file:
        text = json.dumps(header).encode()
        # A data set: an attribute ends at 64 KiB.
        file.create_dataset("header", data=text, dtype=h5py.string_dtype("utf-8", len(text)))
        for name, array in arrays.items():
            file.create_dataset(name, data=array)


def read(path: Path) -> tuple[Header, Arrays]:
    """What `write` wrote."""
    import h5py

    with h5py.File(path, "r") as file:
        return parse_json(file["header"].asstr()[()]), {name: file[name][()] for name in ARRAYS}

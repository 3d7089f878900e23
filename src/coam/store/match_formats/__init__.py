"""Formats of a file of matches: one file each, one line in `FORMATS`.

A format is a module with `write(path, header, arrays)` and `read(path) -> (header, arrays)`. The header is a
JSON object; `ARRAYS` says which arrays there are. `store.matches` does the rest: atomic writing, checksums,
the version, what is said of damaged files. A reader may raise anything where a file is none of its own.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

FORMATS = {  # ending: module, imported when it is asked for
    ".npz": "coam.store.match_formats.npz",
    ".h5": "coam.store.match_formats.hdf5",
    ".json": "coam.store.match_formats.json_text",
}
ENDINGS = tuple(FORMATS)
MOST_BYTES = 1 << 30  # of a file, expanded: some ten million matches
ARRAYS: dict[str, tuple[type, int]] = {  # name: (type, dimensions)
    "points0": (np.float32, 2),
    "points1": (np.float32, 2),
    "scores": (np.float32, 1),
    "ids0": (np.int64, 1),
    "ids1": (np.int64, 1),
}
Arrays = dict[str, npt.NDArray[Any]]
Header = dict[str, Any]

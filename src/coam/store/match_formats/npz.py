"""Matches as a compressed .npz; nothing in it is ever pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from coam.store.archives import read_plain_npz
from coam.store.documents import parse_json
from coam.store.match_formats import ARRAYS, MOST_BYTES, Arrays, Header


def write(path: Path, header: Header, arrays: Arrays) -> None:
    """Write `header` and `arrays` to `path`."""
    content: dict[str, Any] = {"header": np.array(json.dumps(header)), **arrays}
    with path.open("wb") as file:  # given a name, numpy would add its own ending to AB.NPZ
        np.savez_compressed(file, **content)


def read(path: Path) -> tuple[Header, Arrays]:
    """What `write` wrote."""
    file = read_plain_npz(path, MOST_BYTES)
    return parse_json(str(file["header"])), {name: file[name] for name in ARRAYS}

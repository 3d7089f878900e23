"""Matches as JSON, for programs that read nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from coam.errors import ConfigError
from coam.store.documents import parse_json, read_text
from coam.store.match_formats import ARRAYS, MOST_BYTES, Arrays, Header


def write(path: Path, header: Header, arrays: Arrays) -> None:
    """Write `header` and `arrays` to `path`."""
    # Every float32 is a double, and Python prints doubles exactly, so nothing is lost in the text.
    content = header | {name: array.tolist() for name, array in arrays.items()}
    try:
        text = json.dumps(content, allow_nan=False)
    except ValueError as error:
        raise ConfigError(
            "JSON cannot hold NaN or infinite points and scores; save as .npz or .h5"
        ) from error
    path.write_text(text + "\n", encoding="utf-8")


def read(path: Path) -> tuple[Header, Arrays]:
    """What `write` wrote."""
    content = parse_json(read_text(path, "write it again", most_bytes=MOST_BYTES))
    arrays: Arrays = {name: np.array(content[name], dtype=kind) for name, (kind, _) in ARRAYS.items()}
    for name in ("points0", "points1"):
        if arrays[name].size == 0:
            arrays[name] = arrays[name].reshape(0, 2)  # an empty list does not say its shape
    return content, arrays

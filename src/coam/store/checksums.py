"""Checksums: what was written is what is read, or the damage is noticed."""

from __future__ import annotations

import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.store.atomic import StrPath

_BLOCK = 1 << 20
# HDF5 keeps checksums of its own structures from this version on. Strings of variable length are the
# exception: where their heap is damaged the library can loop for ever, so ours have a fixed length.
CHECKSUMMED = ("v110", "v110")


def file_digest(path: StrPath) -> str:
    """SHA-256 of a file's content, in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()


def folder_digests(root: Path, paths: list[Path]) -> dict[str, str]:
    """Digests of the given files, and of all files below the given folders, by their path below `root`."""
    files = [f for path in paths for f in (path.rglob("*") if path.is_dir() else [path]) if f.is_file()]
    return {file.relative_to(root).as_posix(): file_digest(file) for file in sorted(files)}


def content_digest(header: Mapping[str, Any], arrays: Mapping[str, npt.NDArray[Any]]) -> str:
    """SHA-256 of a JSON header and arrays, the same whatever format holds them."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def rows_checksum(text: str, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
    """CRC-32 of a text and arrays: finds every flipped bit, and is as quick as reading from disk."""
    crc = zlib.crc32(text.encode())
    for name, array in sorted(arrays.items()):
        crc = zlib.crc32(f"{name} {array.dtype.str} {array.shape}".encode(), crc)
        crc = zlib.crc32(np.ascontiguousarray(array).data, crc)
    return crc


def utf8_strings(words: Any) -> npt.NDArray[np.bytes_]:
    """(Nested lists of) strings as an array of fixed length, for HDF5."""
    encoded = np.char.encode(np.asarray(words, np.str_), "utf-8")
    return encoded if encoded.size else encoded.astype("S1")

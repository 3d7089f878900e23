"""Hostile .npz files, for every reader of them: matches, warps, published index files."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from coam.data.megadepth import MegaDepthPairs
from coam.store.archives import read_npz
from coam.store.matches import load_matches, save_matches
from coam.warp.files import load_warp
from hardening.attempts import Attack
from support.some_matches import some_matches

Reader = Callable[[Path], object]


def _megadepth(path: Path) -> object:
    folder = path.parent / "scene_info"
    folder.mkdir()
    path.rename(folder / "0001.0.npz")
    return MegaDepthPairs(path.parent, ["0001"], workers=1)


READERS: dict[str, Reader] = {
    "matches": load_matches,
    "warp": load_warp,
    "index": read_npz,
    "megadepth": _megadepth,
}


def _npy(header: str, body: bytes = b"", version: bytes = b"\x01\x00") -> bytes:
    text = header.encode("latin1")
    length = struct.pack("<H" if version[0] == 1 else "<I", len(text))
    return b"\x93NUMPY" + version + length + text + body


def _described(shape: str, kind: str = "<f4") -> str:
    return f"{{'descr': '{kind}', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"


def _zip(entries: dict[str, bytes], how: int = zipfile.ZIP_DEFLATED) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", how) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return stream.getvalue()


def _bomb(gigabytes: int) -> bytes:
    """One entry of zeros: of a deflated stream, the part that stands for 64 MB is repeated."""
    deflate = zlib.compressobj(9, zlib.DEFLATED, -15)
    first = deflate.compress(_npy(_described(f"({gigabytes << 28},)"))) + deflate.flush(zlib.Z_FULL_FLUSH)
    part = deflate.compress(bytes(1 << 26)) + deflate.flush(zlib.Z_FULL_FLUSH)
    content = first + part * (gigabytes << 4) + deflate.flush()
    name, size = b"header.npy", 128 + (gigabytes << 30)
    sizes = struct.pack("<HHQQ", 1, 16, size, len(content))  # zip64
    shared = struct.pack("<HHHHHIIIHH", 45, 0, 8, 0, 33, 0, 2**32 - 1, 2**32 - 1, len(name), len(sizes))
    local = b"PK\x03\x04" + shared + name + sizes + content
    central = b"PK\x01\x02" + struct.pack("<H", 45) + shared[:-2]
    central += struct.pack("<HHHHII", len(sizes), 0, 0, 0, 0, 0) + name + sizes
    end = struct.pack("<HHHHIIH", 0, 0, 1, 1, len(central), len(local), 0)
    return local + central + b"PK\x05\x06" + end


def _encrypted(content: bytes) -> bytes:
    """Every entry is marked as encrypted, in both places where a zip file says so."""
    damaged = bytearray(content)
    for mark, offset in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        start = 0
        while (place := content.find(mark, start)) >= 0:
            damaged[place + offset] |= 1
            start = place + 4
    return bytes(damaged)


def _sound(folder: Path) -> bytes:
    save_matches(some_matches(20), folder / "sound.npz")
    return (folder / "sound.npz").read_bytes()


def _with(**arrays: object) -> bytes:
    stream = io.BytesIO()
    np.savez_compressed(stream, **arrays)  # type: ignore[arg-type]
    return stream.getvalue()


def contents(folder: Path) -> Iterator[tuple[str, bytes]]:
    """(name, content) of each."""
    sound = _sound(folder)
    names = ["points0", "points1", "scores", "ids0", "ids1"]
    yield "empty", b""
    yield "no-zip", b"\x93NUMPY rubbish"
    yield "nothing-inside", _zip({})
    yield "encrypted", _encrypted(sound)
    for part in (1, 4, 10, 30, 99):
        yield f"cut-{part}", sound[: len(sound) * part // 100]
    yield "zeros-behind", sound + bytes(70000)
    yield "twice", sound + sound
    for method in (1, 12, 14, 93, 99):  # shrunk, bzip2, lzma, zstd, AES
        damaged = bytearray(sound)
        for mark, offset in ((b"PK\x03\x04", 8), (b"PK\x01\x02", 10)):
            start = 0
            while (place := sound.find(mark, start)) >= 0:
                damaged[place + offset : place + offset + 2] = struct.pack("<H", method)
                start = place + 4
        yield f"method-{method}", bytes(damaged)
    lies = bytearray(sound)
    place = sound.find(b"PK\x01\x02")
    lies[place + 24 : place + 28] = struct.pack("<I", 2**31)
    yield "says-two-gigabytes", bytes(lies)
    for shape in ("(10**9,)", "(2**62,)", "(-1,)", "(2**40, 2**40)", "(1.5,)", "'x'", "(1,)" * 40, "()"):
        for kind in ("<f4", "|O", "|V8", "<M8[s]", "not a type"):
            entry = _npy(_described(shape, kind), b"\0" * 64)
            yield (
                f"shape-{shape[:12]}-{kind}",
                _zip(dict.fromkeys((f"{n}.npy" for n in ["header", *names]), entry)),
            )
    yield "header-of-code", _zip({"header.npy": _npy("__import__('os').system('touch was_run')\n")})
    yield "header-deep", _zip({"header.npy": _npy("(" * 60000 + "\n", version=b"\x02\x00")})
    yield "header-huge", _zip({"header.npy": _npy(" " * 20_000_000 + "\n", version=b"\x02\x00")})
    yield "version-9", _zip({"header.npy": _npy(_described("(1,)"), version=b"\x09\x00")})
    for text in (
        '"text"',
        "[" * 100_000,
        '{"a":' * 5000,
        "{",
        "null",
        '{"format": 7}',
        '{"sha256": 1e999}',
        "\ud800",
    ):
        header = text.encode("utf-8", "surrogatepass").decode("utf-8", "replace")
        yield f"json-{text[:6]!r}", _with(header=np.array(header), **{n: np.zeros(3) for n in names})
    for value in (
        np.zeros((3, 7)),
        np.array("text"),
        np.array(None, object),
        np.zeros((0, 0, 0)),
        np.array([True]),
    ):
        yield f"array-{value.dtype}-{value.ndim}", _with(header=np.array("{}"), **dict.fromkeys(names, value))
    yield "pickled", _zip({"image_paths.npy": _npy(_described("(1,)", "|O"), pickle.dumps(print))})
    yield "pickled-deep", _zip({"image_paths.npy": _npy(_described("(1,)", "|O"), b"]" * 200_000 + b".")})
    yield (
        "pickled-large",
        _zip({"image_paths.npy": _npy(_described("(1,)", "|O"), b"\x8e" + struct.pack("<Q", 2**60) + b".")}),
    )
    yield "names", _zip({"../../out.npy": b"x", "/etc/out.npy": b"x", "a\0b.npy": b"x", ".npy": b"x"})
    yield "many-entries", _zip({f"{n}.npy": b"" for n in range(20_000)}, zipfile.ZIP_STORED)
    yield "bomb-6-gigabytes", _bomb(6)


def attacks(folder: Path, every: int = 1) -> Iterator[Attack]:
    """Each content for each reader; `every`: only each so manyth."""
    folder.mkdir(parents=True, exist_ok=True)
    number = 0
    for name, content in contents(folder):
        for reader_name, reader in READERS.items():
            number += 1
            if number % every == 0 or "bomb" in name or "encrypted" in name:
                yield Attack("archives", f"{reader_name}-{name}", _reading(reader, content))


def _reading(reader: Reader, content: bytes) -> Callable[[Path], str]:
    def run(folder: Path) -> str:
        path = folder / "a.npz"
        path.write_bytes(content)
        reader(path)
        if (folder / "was_run").exists() or Path("was_run").exists():
            raise AssertionError("code was run")
        return "read"

    return run

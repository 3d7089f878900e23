"""Results of many pairs that survive a kill at any time.

While work goes on, finished pairs are written in small part files beside the final file; each is written
under a temporary name, flushed to disk and renamed, so a part is either whole or not there. `finish` merges
them into one .h5, again by rename. HDF5 itself must not be open for writing when a process is killed, which
is why it comes last.

A record is a set of arrays with one row per match ("columns") and arrays with one value per pair ("values").
Both kinds of file hold a table: columns of all pairs on top of each other, `start` (N + 1,) says where each
pair begins. `checks` (N, 2) are checksums of each pair's place in the table and of its record: what a damaged
disk has changed counts as missing and is made again, pair by pair. Files from before have no `checks`.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.caches import LRUCache
from coam.errors import DataError
from coam.store.archives import read_plain_npz
from coam.store.atomic import atomic_write, remove_leftovers, require_space
from coam.store.checksums import CHECKSUMMED, rows_checksum, utf8_strings

Pair = tuple[str, str]
Array = npt.NDArray[Any]
Table = dict[str, Any]  # arrays by name, in memory or read on demand
_FORMAT = "coam-pairs-1"
_OPEN_TABLES = 4
_ROWS_AT_ONCE, _PAIRS_AT_ONCE = 1 << 18, 256  # written at once when parts are merged


@dataclass(frozen=True)
class Record:
    """What is kept of one pair."""

    columns: dict[str, Array]  # name -> (n, ...), the same n for all
    values: dict[str, Array]  # name -> one fixed shape for all pairs
    stamp: str  # what the result was made from; a record with another stamp is made again


class PairJournal:
    """The results of many pairs: append while working, read at any time, `finish` to get one .h5."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.parts = self.path.with_name(self.path.name + ".parts")
        # pair -> (stamp, file, position in that file); later files win
        self._where: dict[Pair, tuple[str, Path, int]] = {}
        self._whole: set[Pair] = set()  # pairs whose record was read and found whole
        self.damaged = 0  # records and files that were found damaged; their pairs are made again
        self._mended = 0  # of them: no longer in the file
        self._open: LRUCache[Path, Table | None] = LRUCache(
            _OPEN_TABLES, lambda _, table: _close_table(table)
        )
        self._read_index()

    def _read_index(self) -> None:
        files = [self.path] if self.path.exists() else []
        if self.parts.is_dir():
            remove_leftovers(self.parts)
        for file in [*files, *self._part_files()]:
            self._index_file(file)

    def _part_files(self) -> list[Path]:
        """The whole parts; what another process is writing has a hidden name until it is whole."""
        return sorted(self.parts.glob("[!.]*.npz")) if self.parts.is_dir() else []

    def _index_file(self, file: Path) -> None:
        table = self._table(file)
        if table is None:  # damaged from outside: put aside, its pairs are made again
            os.replace(file, file.with_name(file.name + ".damaged"))
            self.damaged += 1
            return
        checks = table.get("checks")
        for position, (name0, name1, stamp) in enumerate(_strings(table["names"])):
            if checks is None or checks[position, 0] == _place_checksum(table, position):
                self._where[name0, name1] = (stamp, file, position)
            else:
                self.damaged += 1

    def _table(self, file: Path) -> Table | None:
        return self._open.get(file, lambda: _open_table(file))

    def __contains__(self, pair: Pair) -> bool:
        return pair in self._where

    def __len__(self) -> int:
        return len(self._where)

    def pairs(self) -> list[Pair]:
        """Finished pairs, sorted."""
        return sorted(self._where)

    def missing(self, stamps: Mapping[Pair, str]) -> list[Pair]:
        """Pairs of `stamps` (pair -> stamp) that have no whole result with that stamp, in the given order."""
        self._forget_damaged(stamps)
        return [pair for pair, stamp in stamps.items() if self._where.get(pair, ("",))[0] != stamp]

    def _forget_damaged(self, pairs: Iterable[Pair]) -> None:
        for pair in pairs:
            if pair in self._where and pair not in self._whole:
                try:
                    self.read(pair)
                except DataError:
                    del self._where[pair]
                    self.damaged += 1

    def append(self, records: Mapping[Pair, Record]) -> None:
        """Write finished pairs; when this returns they are safe."""
        if not records:
            return
        file = self.parts / f"{time.time_ns():020d}-{uuid.uuid4().hex[:8]}.npz"
        with atomic_write(file) as temporary, open(temporary, "wb") as out:
            np.savez(out, **_pack(records))  # type: ignore[arg-type]
        self._index_file(file)

    def read(self, pair: Pair) -> Record:
        """The result of one pair; a `KeyError` when there is none."""
        stamp, file, position = self._where[pair]
        table = self._table(file)
        if table is None:
            raise DataError(f"{file}: was damaged while in use; run the same command again")
        try:
            record = _read_record(table, position, stamp)
            checks = table.get("checks")
            if checks is not None and checks[position, 1] != _record_checksum(record):
                raise ValueError("another checksum")
        except Exception as error:  # HDF5 raises errors of many kinds where its own structures are damaged
            raise DataError(
                f"{file}: the record of {' and '.join(filter(None, pair))} is damaged; "
                "run the same command again to make it anew"
            ) from error
        self._whole.add(pair)
        return record

    def finish(self, pairs: Iterable[Pair] | None = None) -> Path:
        """Merge everything into one .h5 (only `pairs`, if given), sorted by pair: equal results, equal
        content.
        """
        self._forget_damaged(self.pairs() if pairs is None else pairs)
        wanted = sorted(set(self.pairs() if pairs is None else pairs))
        if (
            self._part_files()
            or self.damaged > self._mended
            or set(wanted) != set(self._where)
            or not self.path.exists()
        ):
            require_space(self.path, self._bytes_to_merge())
            with atomic_write(self.path) as temporary:
                self._write_h5(temporary, wanted)
            self._mended = self.damaged
        self.close()
        shutil.rmtree(self.parts, ignore_errors=True)
        self._where.clear()
        self._whole.clear()
        self._read_index()
        return self.path

    def _bytes_to_merge(self) -> int:
        files = [self.path, *self._part_files()]
        return int(1.2 * sum(file.stat().st_size for file in files if file.exists())) + (1 << 20)

    def _write_h5(self, path: Path, pairs: list[Pair]) -> None:
        """Portion by portion, so that memory does not grow with the number of pairs."""
        import h5py

        with h5py.File(path, "w", libver=CHECKSUMMED) as file:
            file.attrs["format"] = np.bytes_(_FORMAT)
            strings = utf8_strings([[*pair, self._where[pair][0]] for pair in pairs]).reshape(-1, 3)
            file.create_dataset("names", data=strings)
            start = np.zeros(len(pairs) + 1, np.int64)
            checks = np.zeros((len(pairs), 2), np.uint32)
            portion: list[Record] = []
            written = 0  # rows
            for position, pair in enumerate(pairs):
                record = self.read(pair)
                portion.append(record)
                start[position + 1] = start[position] + len(next(iter(record.columns.values())))
                place = {"names": strings[position : position + 1], "start": start[position : position + 2]}
                checks[position] = _place_checksum(place), _record_checksum(record)
                if start[position + 1] - written >= _ROWS_AT_ONCE or len(portion) == _PAIRS_AT_ONCE:
                    _append_records(file, portion)
                    portion, written = [], int(start[position + 1])
            _append_records(file, portion)
            file.create_dataset("start", data=start)
            file.create_dataset("checks", data=checks)

    def close(self) -> None:
        """Close the files that are open for reading."""
        self._open.clear()


def _append_records(file: Any, records: list[Record]) -> None:
    """Append records to the datasets of an .h5, one write each: chunk by chunk is what takes the time."""
    if not records:
        return
    first = records[0]
    for name in first.columns:
        _append_rows(file, f"column_{name}", np.concatenate([record.columns[name] for record in records]))
    for name in first.values:
        _append_rows(file, f"value_{name}", np.stack([record.values[name] for record in records]))


def _append_rows(file: Any, name: str, rows: Array) -> None:
    """Append rows to the dataset `name`, made when it is not there."""
    if name not in file:
        row_bytes = rows.itemsize * int(np.prod(rows.shape[1:]))
        chunk = (max(1, 65536 // row_bytes), *rows.shape[1:])
        file.create_dataset(
            name,
            (0, *rows.shape[1:]),
            rows.dtype,
            maxshape=(None, *rows.shape[1:]),
            chunks=chunk,
            compression="lzf",
        )
    begin = file[name].shape[0]
    file[name].resize(begin + len(rows), axis=0)
    file[name][begin:] = rows


def _close_table(table: Table | None) -> None:
    handle = None if table is None else table.get("_file")
    if handle is not None:
        handle.close()


def _pack(records: Mapping[Pair, Record]) -> dict[str, Array]:
    """One table of many records."""
    items = list(records.items())
    first = items[0][1]
    lengths = [len(next(iter(record.columns.values()))) for _, record in items]
    table: dict[str, Array] = {
        "names": np.array([[*pair, record.stamp] for pair, record in items], dtype=np.str_),
        "start": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    }
    for name in first.columns:
        table[f"column_{name}"] = np.concatenate([record.columns[name] for _, record in items])
    for name in first.values:
        table[f"value_{name}"] = np.stack([record.values[name] for _, record in items])
    return table


def _read_record(table: Table, position: int, stamp: str) -> Record:
    begin, end = (int(value) for value in table["start"][position : position + 2])
    columns = {name[7:]: np.asarray(table[name][begin:end]) for name in table if name.startswith("column_")}
    values = {name[6:]: np.asarray(table[name][position]) for name in table if name.startswith("value_")}
    return Record(columns, values, stamp)


def _place_checksum(table: Mapping[str, Any], position: int = 0) -> int:
    """Of the names and stamp of a pair, and of where its rows lie."""
    words = "\n".join(_strings(table["names"][position : position + 1])[0])
    return rows_checksum(words, {"start": np.asarray(table["start"][position : position + 2], np.int64)})


def _record_checksum(record: Record) -> int:
    named = {f"column_{name}": column for name, column in record.columns.items()}
    return rows_checksum(
        record.stamp, named | {f"value_{n}": np.asarray(v) for n, v in record.values.items()}
    )


def _strings(names: Array) -> list[tuple[str, str, str]]:
    as_text = [[n.decode() if isinstance(n, bytes) else str(n) for n in row] for row in names]
    return [(row[0], row[1], row[2]) for row in as_text]


def _open_table(file: Path) -> Table | None:
    """The arrays of a part (in memory) or of the .h5 (read on demand); None when the file is damaged."""
    import h5py

    try:
        if file.suffix == ".npz":
            return dict(read_plain_npz(file))
        handle = h5py.File(file, "r")
        if handle.attrs.get("format") not in (_FORMAT, _FORMAT.encode()):
            handle.close()
            raise DataError(f"{file}: was not written by coam; remove it or choose another output folder")
        table: Table = {name: handle[name] for name in handle}
        for name in ("names", "start", "checks"):
            if name in table:
                table[name] = handle[name][:]
        if len(table["start"]) != len(table["names"]) + 1:
            raise ValueError("start and names do not fit")
        _strings(table["names"])
        table["_file"] = handle
        return table
    except DataError:
        raise
    except Exception:  # a damaged file can make its reader raise anything at all
        return None

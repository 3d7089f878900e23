"""Flipped bits are noticed in every format of ours, and files from before checksums still load."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from coam.errors import DataError
from coam.store.checksums import content_digest, file_digest, rows_checksum
from coam.store.documents import read_json, write_sealed_json
from coam.store.journal import PairJournal, Record
from coam.store.matches import load_matches, save_matches
from support.damage import flipped
from support.some_matches import assert_same_matches, some_matches


@pytest.mark.parametrize("ending", [".npz", ".h5", ".json"])
def test_no_flipped_bit_gives_other_matches(tmp_path: Path, ending: str) -> None:
    matches, path = some_matches(40), tmp_path / f"a{ending}"
    save_matches(matches, path)
    refused = 0
    for content in flipped(path.read_bytes(), 120, seed=1):
        path.write_bytes(content)
        try:
            assert_same_matches(load_matches(path), matches)  # the bit does not matter
        except DataError:
            refused += 1
    assert refused > 40


def test_matches_without_a_checksum_still_load(tmp_path: Path) -> None:
    matches = some_matches(5)
    save_matches(matches, tmp_path / "a.json")
    content = json.loads((tmp_path / "a.json").read_text())
    del content["sha256"]
    (tmp_path / "a.json").write_text(json.dumps(content))
    assert_same_matches(load_matches(tmp_path / "a.json"), matches)
    save_matches(matches, tmp_path / "a.h5")
    header = {name: value for name, value in content.items() if name[:3] not in ("poi", "sco", "ids")}
    with h5py.File(tmp_path / "a.h5", "a") as file:  # as it was: a string of variable length, no checksum
        del file["header"]
        file.create_dataset("header", data=json.dumps(header))
    assert_same_matches(load_matches(tmp_path / "a.h5"), matches)


def record(number: int) -> Record:
    rng = np.random.default_rng(number)
    columns = {"ids": rng.integers(0, 999, 60).astype(np.int32), "xy": rng.normal(size=(60, 2))}
    return Record(columns, {"n": np.array(number), "m": rng.normal(size=(3, 3))}, f"stamp {number}")


RECORDS = {(f"a{n}", f"ü{n}"): record(n) for n in range(8)}
STAMPS = {pair: record.stamp for pair, record in RECORDS.items()}


def assert_whole(journal: PairJournal, pairs: set[tuple[str, str]]) -> None:
    for pair in pairs:
        found, made = journal.read(pair), RECORDS[pair]
        assert found.stamp == made.stamp
        for name in made.columns:
            assert found.columns[name].tobytes() == made.columns[name].tobytes()
        for name in made.values:
            assert found.values[name].tobytes() == made.values[name].tobytes()


def test_a_flipped_bit_costs_some_pairs_and_changes_none(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    journal = PairJournal(path)
    journal.append(RECORDS)
    journal.finish()
    journal.close()
    lost = 0
    for content in flipped(path.read_bytes(), 150, seed=2):
        path.write_bytes(content)
        journal = PairJournal(path)
        missing = journal.missing(STAMPS)
        assert journal.pairs() == sorted(set(RECORDS) - set(missing))
        assert_whole(journal, set(RECORDS) - set(missing))
        if missing:
            lost += 1
            assert journal.damaged > 0
        journal.close()
        (tmp_path / "m.h5.damaged").unlink(missing_ok=True)
    assert lost > 50


def damaged_journal(folder: Path) -> Path:
    """A finished journal of RECORDS in which a value of the pair a3 was changed."""
    path = folder / "m.h5"
    journal = PairJournal(path)
    journal.append(RECORDS)
    journal.finish()
    journal.close()
    with h5py.File(path, "a") as file:
        file["value_n"][3] = 77
    return path


def test_what_was_made_again_replaces_what_was_damaged(tmp_path: Path) -> None:
    path = damaged_journal(tmp_path)
    journal = PairJournal(path)
    assert journal.missing(STAMPS) == [("a3", "ü3")]
    with pytest.raises(KeyError):
        journal.read(("a3", "ü3"))
    journal.append({("a3", "ü3"): record(3)})
    journal.finish(STAMPS)
    again = PairJournal(path)
    assert again.missing(STAMPS) == []
    assert_whole(again, set(RECORDS))
    assert (journal.damaged, again.damaged) == (1, 0)


def test_damage_of_a_pair_that_is_not_wanted_does_not_stop_the_merge(tmp_path: Path) -> None:
    path = damaged_journal(tmp_path)
    journal = PairJournal(path)
    journal.append({("new", "pair"): record(9)})
    journal.finish()
    assert len(journal) == 8
    assert ("a3", "ü3") not in journal


def test_a_journal_without_checksums_still_loads(tmp_path: Path) -> None:
    path = tmp_path / "m.h5"
    with h5py.File(path, "w") as file:  # as it was written before
        file.attrs["format"] = "coam-pairs-1"
        names = np.array([["a", "ü", "s"], ["b", "c", "t"]], object)
        file.create_dataset("names", data=names, dtype=h5py.string_dtype())
        file["start"], file["column_ids"] = np.array([0, 2, 3]), np.array([5, 6, 7])
        file["value_n"] = np.array([1, 2])
    journal = PairJournal(path)
    assert journal.missing({("a", "ü"): "s", ("b", "c"): "t"}) == []
    assert journal.read(("a", "ü")).columns["ids"].tolist() == [5, 6]


def test_a_sealed_json_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    path = write_sealed_json(tmp_path / "a.json", {"points": 1885, "names": ["a", "b"]})
    assert read_json(path) == {"points": 1885, "names": ["a", "b"]}
    path.write_text(path.read_text().replace("1885", "1884"))
    with pytest.raises(DataError, match="its checksum is another"):
        read_json(path)


def test_no_flipped_bit_of_a_sealed_json_file_gives_another_value(tmp_path: Path) -> None:
    """Every bit of it, those of the checksum's own name too."""
    value = {"points": 1885, "names": ["a", "b"], "model_hash": "0" * 64}
    content = write_sealed_json(tmp_path / "a.json", value).read_bytes()
    refused = 0
    for position, bit in itertools.product(range(len(content)), range(8)):
        damaged = bytearray(content)
        damaged[position] ^= 1 << bit
        (tmp_path / "a.json").write_bytes(damaged)
        try:
            assert read_json(tmp_path / "a.json") == value
        except DataError:
            refused += 1
    assert refused > 0.8 * 8 * len(content)  # the others change blanks


def test_digests_by_hand(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"abc")
    assert file_digest(tmp_path / "a").startswith("ba7816bf8f01cfea")  # FIPS 180-2, appendix B.1
    assert rows_checksum("123456789", {}) == 0xCBF43926  # the check value of CRC-32
    ones = np.ones(3)
    assert content_digest({}, {"a": ones}) != content_digest({}, {"a": ones.reshape(3, 1)})
    assert content_digest({}, {"a": ones}) != content_digest({}, {"a": ones.view(np.int64)})

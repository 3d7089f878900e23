"""Many pairs: one file each, kept over a kill, made again when what they depend on changes."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from coam.batch import NamedPhoto, match_files, read_pair_list
from coam.batch.match_files import LONGEST_NAME, pair_names
from coam.errors import DataError
from coam.types import Matches
from support.simple_matchers import matches_of, save, textured


class Counting:
    """A matcher that gives one match a pair, remembers the pairs, and can be stopped."""

    def __init__(self, fingerprint: str = "one", stop_after: int = 10**9) -> None:
        self.fingerprint, self.stop_after = fingerprint, stop_after
        self.seen: list[tuple[str, str]] = []

    def match_many(self, pairs: Iterable[tuple[Path, Path]]) -> Iterator[Matches]:
        for first, second in pairs:
            if len(self.seen) == self.stop_after:
                raise KeyboardInterrupt
            self.seen.append((first.name, second.name))
            yield matches_of([[1, 2]], [[3, 4]], overlap=0.25)


def write_list(folder: Path, count: int = 4) -> Path:
    for number in range(count):
        save(folder / f"{number}.png", textured(number))
    lines = [f"{a}.png {b}.png" for a in range(count) for b in range(a + 1, count)]
    (folder / "pairs.txt").write_text("# all of them\n" + "\n".join(lines) + "\n")
    return folder / "pairs.txt"


def test_every_pair_has_its_file_and_a_line(tmp_path: Path) -> None:
    matcher = Counting()
    results = match_files(matcher, read_pair_list(write_list(tmp_path)), tmp_path / "out")
    assert len(matcher.seen) == len(results) == 6
    assert results[0].file == "0.png--1.png.npz"
    assert Matches.load(tmp_path / "out" / results[0].file).points1.tolist() == [[3, 4]]
    with (tmp_path / "out" / "pairs.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["image0"], row["image1"]) for row in rows] == [
        (f"{a}.png", f"{b}.png") for a in range(4) for b in range(a + 1, 4)
    ]
    assert {(row["matches"], row["overlap"], row["error"]) for row in rows} == {("1", "0.25", "")}


def test_a_stopped_run_goes_on_and_nothing_is_matched_twice(tmp_path: Path) -> None:
    pairs, out = read_pair_list(write_list(tmp_path)), tmp_path / "out"
    first, second, third = Counting(stop_after=2), Counting(), Counting()
    with pytest.raises(KeyboardInterrupt):
        match_files(first, pairs, out)
    assert len(list(out.glob("*.npz"))) == 2
    results = match_files(second, pairs, out)
    assert len(second.seen) == 4
    assert set(first.seen).isdisjoint(second.seen)
    assert sum(result.reused for result in results) == 2
    match_files(third, pairs, out)
    assert third.seen == []


def test_what_has_changed_is_matched_again(tmp_path: Path) -> None:
    pairs, out = read_pair_list(write_list(tmp_path)), tmp_path / "out"
    match_files(Counting(), pairs, out)
    save(tmp_path / "3.png", textured(99))
    (out / "0.png--1.png.npz").write_bytes(b"damaged")
    again = Counting()
    match_files(again, pairs, out)
    assert sorted(again.seen) == [("0.png", "1.png"), *((f"{a}.png", "3.png") for a in range(3))]
    other = Counting("other weights")
    match_files(other, pairs, out)
    assert len(other.seen) == 6


def test_a_photo_that_cannot_be_read_costs_its_pairs_only(tmp_path: Path) -> None:
    pairs = read_pair_list(write_list(tmp_path))
    (tmp_path / "2.png").write_text("no picture")
    matcher = Counting()
    results = match_files(matcher, pairs, tmp_path / "out")
    assert len(matcher.seen) == 3
    failed = [result for result in results if result.error]
    assert len(failed) == 3
    assert all("2.png: is not a picture" in result.error and result.file == "" for result in failed)
    for number in (0, 1, 3):
        (tmp_path / f"{number}.png").unlink()
    with pytest.raises(DataError, match="no such file"):
        match_files(matcher, pairs, tmp_path / "out2")


def test_further_files_are_written_also_for_pairs_that_were_there(tmp_path: Path) -> None:
    pairs, out = read_pair_list(write_list(tmp_path, 3)), tmp_path / "out"
    match_files(Counting(), pairs, out)
    written: list[str] = []

    def write(matches: Matches, paths: list[Path], names: tuple[str, str]) -> None:
        assert math.isclose(matches.overlap, 0.25)
        for path in paths:
            path.write_text(names[0])
            written.append(path.name)

    for _ in range(2):
        match_files(Counting(), pairs, out, also=[".txt"], write=write)
    assert sorted(written) == ["0.png--1.png.txt", "0.png--2.png.txt", "1.png--2.png.txt"]  # once


def test_names_of_files_are_plain_and_unique() -> None:
    def pair(a: str, b: str) -> tuple[NamedPhoto, NamedPhoto]:
        return NamedPhoto(a, Path(a)), NamedPhoto(b, Path(b))

    names = pair_names(
        [
            pair("x/1.jpg", "y/1.jpg"),
            pair("../x/2.jpg", "./y//2.jpg"),
            pair("x-1.jpg", "y-1.jpg"),  # the first one's name
            pair("X/1.JPG", "y/1.jpg"),  # the same on a disk that ignores case
            pair("long" * 60 + ".jpg", "b.jpg"),
        ]
    )
    assert names[:2] == ["x-1.jpg--y-1.jpg", "x-2.jpg--y-2.jpg"]
    assert len({name.lower() for name in names}) == 5
    assert all(len(name) <= LONGEST_NAME and "/" not in name for name in names)


def test_lists_with_spaces_tabs_and_mistakes(tmp_path: Path) -> None:
    listed = tmp_path / "pairs.txt"
    listed.write_text('"my photo.jpg" b.jpg\nc d.jpg\te f.jpg\n/abs/g.jpg h.jpg\n\n# no pair\n')
    found = [(a.name, b.name) for a, b in read_pair_list(listed)]
    assert found == [("my photo.jpg", "b.jpg"), ("c d.jpg", "e f.jpg"), ("/abs/g.jpg", "h.jpg")]
    assert read_pair_list(listed)[0][0].path == tmp_path / "my photo.jpg"
    assert read_pair_list(listed)[2][0].path == Path("/abs/g.jpg")
    listed.write_text("a.jpg b.jpg c.jpg\n")
    with pytest.raises(DataError, match="line 1: has 3 words"):
        read_pair_list(listed)
    listed.write_text("# nothing\n")
    with pytest.raises(DataError, match="holds no pairs"):
        read_pair_list(listed)

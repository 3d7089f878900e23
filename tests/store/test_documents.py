"""Our JSON against its bounds and its shape: the first place that differs is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from coam.errors import DataError
from coam.store.documents import MOST_BYTES, Whole, check_shape, parse_json, read_json

SHAPE = Whole(name=str, points=[[float, float]], rows=[Whole(a=(int, type(None)))], more={str: int})
SOUND: dict[str, Any] = {"name": "x", "points": [[1, 2.5]], "rows": [{"a": None}, {"a": 3}], "more": {"b": 1}}


def test_what_fits_passes_also_with_names_that_nobody_asked_for() -> None:
    check_shape(SOUND | {"other": [1]}, SHAPE)
    check_shape({}, {"name": str})  # a plain object may lack names


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": 3}, "name is no str"),
        ({"points": [[1, 2, 3]]}, r"points\[0\] has 3 values and not 2"),
        ({"points": [[1, "2"]]}, r"points\[0\]\[1\] is no float"),
        ({"rows": [{"a": 1}, {}]}, r"rows\[1\] lacks a"),
        ({"rows": [{"a": True}]}, r"rows\[0\].a is no int or null"),
        ({"more": {"b": 0.5}}, "more.b is no int"),
    ],
)
def test_the_first_place_that_differs_is_named(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        check_shape(SOUND | changes, SHAPE)
    with pytest.raises(ValueError, match="it lacks name"):
        check_shape({name: value for name, value in SOUND.items() if name != "name"}, SHAPE)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 200_000, "it nests too deeply"),
        ('{"a":' * 100_000, "it nests too deeply"),
        ("[" * 65 + "]" * 65, "it nests too deeply"),
        ("NaN", "NaN"),
        ("1e999", "number"),
        ("1" * 5000, "number|digits"),
        ('{"a": ', "not JSON"),
        ('{"a": "\x01"}', "not JSON"),
    ],
    ids=lambda text: text[:12],
)
def test_what_is_no_bounded_json_is_one_line(text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words) as caught:
        parse_json(text)
    assert len(str(caught.value).splitlines()) == 1
    assert len(str(caught.value)) < 300


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(DataError, match="has more than 64 MB"):
        read_json(path, dict, "make it again")

"""Matches survive the disk exactly; what is damaged or foreign is refused in one line; no half files."""

from __future__ import annotations

import json
import os
import pickle
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coam.errors import ConfigError, DataError
from coam.store.match_formats import FORMATS
from coam.store.matches import load_matches, save_matches
from coam.types import Grid, Matches
from support.some_matches import assert_same_matches, some_matches

ENDINGS = (".npz", ".h5", ".json")


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("count", [0, 1, 57, 5000])
def test_exact_round_trip(tmp_path: Path, ending: str, count: int) -> None:
    matches = some_matches(count)
    path = tmp_path / f"ab{ending}"
    assert save_matches(matches, path) == path
    loaded = load_matches(path)
    assert_same_matches(matches, loaded)
    assert loaded.image0 is None
    assert os.listdir(tmp_path) == [path.name], "no temporary file is left"


@pytest.mark.parametrize("ending", ENDINGS)
def test_uncalibrated_overlap_both_grids_and_the_methods_of_matches(tmp_path: Path, ending: str) -> None:
    matches = replace(some_matches(), overlap=float("nan"), grid1=Grid(3, 2, (0.0, 1.0), (2.0, 3.0)), meta={})
    loaded = Matches.load(matches.save(str(tmp_path / f"ab{ending.upper()}")))
    assert_same_matches(matches, loaded)
    assert loaded.grid1 == Grid(3, 2, (0.0, 1.0), (2.0, 3.0))


def test_wrong_types_are_brought_to_the_contract(tmp_path: Path) -> None:
    matches = some_matches(5)
    loose = replace(matches, points0=matches.points0.astype(np.float64), ids1=matches.ids1.astype(np.int32))
    assert_same_matches(matches, load_matches(save_matches(loose, tmp_path / "ab.npz")))


@settings(max_examples=100, deadline=None)
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_json_keeps_every_float32(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    scores = np.array(values, np.float32)
    count = len(scores)
    matches = replace(some_matches(count), scores=scores, points0=np.stack([scores, -scores], 1))
    path = tmp_path_factory.mktemp("json") / "ab.json"
    assert_same_matches(matches, load_matches(save_matches(matches, path)))


@pytest.mark.parametrize("ending", ENDINGS)
def test_every_truncation_is_refused(tmp_path: Path, ending: str) -> None:
    path = save_matches(some_matches(20), tmp_path / f"whole{ending}")
    whole = path.read_bytes()
    cut = tmp_path / f"cut{ending}"
    for length in sorted({0, 1, 7, len(whole) - 2, *range(0, len(whole) - 2, max(1, len(whole) // 40))}):
        cut.write_bytes(whole[:length])
        with pytest.raises(DataError, match="cut") as error:
            load_matches(cut)
        assert "\n" not in str(error.value)


def test_foreign_files_are_refused(tmp_path: Path) -> None:
    class Explosive:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "pickle-was-run"),)

    np.savez(tmp_path / "pickle.npz", header=np.array([Explosive()], dtype=object))
    (tmp_path / "raw.npz").write_bytes(pickle.dumps(Explosive()))
    np.savez(tmp_path / "other.npz", a=np.zeros(3))
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    with h5py.File(tmp_path / "other.h5", "w") as file:
        file["points0"] = np.zeros((3, 2))
    for name, content in {"list": [1], "dict": {}, "number": 7, "format": {"format": "x"}}.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    (tmp_path / "text.h5").write_text("text")
    (tmp_path / "folder.h5").mkdir()
    names = [path.name for path in tmp_path.iterdir()] + ["missing.npz"]
    assert len(names) == 12
    for name in names:
        with pytest.raises(DataError, match=name):
            load_matches(tmp_path / name)
    assert not (tmp_path / "pickle-was-run").exists()


def test_arrays_that_disagree_are_refused(tmp_path: Path) -> None:
    path = save_matches(some_matches(4), tmp_path / "ab.json")
    content = json.loads(path.read_text())
    for name, value in (
        ("scores", [0.5]),
        ("points0", [[1, 2, 3]] * 4),
        ("size0", [1]),
        ("grid0", {"rows": 3}),
    ):
        path.write_text(json.dumps(content | {name: value}))
        with pytest.raises(DataError, match="damaged"):
            load_matches(path)
    path.write_text(json.dumps(content | {"version": 99}))
    with pytest.raises(DataError, match="upgrade"):
        load_matches(path)


def test_unknown_endings_and_values_are_refused(tmp_path: Path) -> None:
    for name in ("ab.txt", "ab", "ab.pkl"):
        with pytest.raises(ConfigError, match=r"\.npz, \.h5, \.json"):
            save_matches(some_matches(), tmp_path / name)
        with pytest.raises(ConfigError, match="ending"):
            load_matches(tmp_path / name)
    for meta in ({"a": object()}, {"a": float("nan")}, {"a": np.float32(1)}):
        with pytest.raises(ConfigError, match="meta"):
            save_matches(replace(some_matches(), meta=meta), tmp_path / "ab.npz")
    with pytest.raises(ConfigError, match="NaN"):
        save_matches(replace(some_matches(1), scores=np.array([np.nan], np.float32)), tmp_path / "ab.json")
    assert list(tmp_path.iterdir()) == []


TOY = """
import json
from coam.store.match_formats import ARRAYS
import numpy as np

def write(path, header, arrays):
    lines = [json.dumps(header), *(json.dumps(arrays[name].tolist()) for name in ARRAYS)]
    path.write_text("\\n".join(lines))

def read(path):
    first, *rest = path.read_text().splitlines()
    columns = zip(ARRAYS.items(), rest, strict=True)
    return json.loads(first), {name: np.array(json.loads(line), kind) for (name, (kind, _)), line in columns}
"""


def test_a_new_format_is_one_file_and_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "toy_format.py").write_text(TOY)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(FORMATS, ".toy", "toy_format")
    points = np.array([[1.5, 2.0], [3.0, 4.25]], np.float32)
    ids = np.array([7, 9])
    saved = Matches(points, points + 1, np.array([0.9, 0.5], np.float32), ids, ids, (10, 20), (30, 40))
    loaded = Matches.load(saved.save(tmp_path / "ab.toy"))
    np.testing.assert_array_equal(loaded.points1, saved.points1)
    assert loaded.ids0.tolist() == [7, 9]
    assert loaded.size1 == (30, 40)
    damaged = (tmp_path / "ab.toy").read_text().replace("4.25", "4.5")
    (tmp_path / "ab.toy").write_text(damaged)
    with pytest.raises(DataError, match="damaged"):
        Matches.load(tmp_path / "ab.toy")

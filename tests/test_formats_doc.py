"""docs/formats.md says what is true: its examples run, and its keys are those of the files."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

import coam
from coam import samples

PAGE = Path(coam.__file__).parents[2] / "docs" / "formats.md"
ARRAYS = {"points0", "points1", "scores", "ids0", "ids1"}

if not PAGE.is_file():
    pytest.skip("an installed package has no docs", allow_module_level=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """a.jpg and b.jpg, 640 x 480, of the courtyard, and their matches."""
    made = tmp_path_factory.mktemp("formats")
    for name, view in (("a.jpg", "day_04"), ("b.jpg", "day_05")):
        Image.open(samples.courtyard().image(view)).save(made / name, quality=95)
    matches = coam.match(made / "a.jpg", made / "b.jpg", device="cpu", resolution=320, looks="once")
    for ending in ("npz", "h5", "json"):
        matches.save(made / f"ab.{ending}")
    return made


def examples() -> list[str]:
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)


def test_the_examples_run(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    (reading,) = examples()
    read: dict[str, Any] = {}
    exec(reading, read)
    assert read["points0"].shape == read["points1"].shape == (len(read["scores"]), 2)
    assert read["header"]["size0"] == [640, 480]


def test_the_keys_are_those_of_the_files(folder: Path) -> None:
    text = PAGE.read_text(encoding="utf-8")
    with np.load(folder / "ab.npz") as file:
        assert set(file.files) == ARRAYS | {"header"}
        header = json.loads(str(file["header"]))
    with h5py.File(folder / "ab.h5") as file:
        assert set(file) == ARRAYS | {"header"}
    assert set(json.loads((folder / "ab.json").read_text())) == ARRAYS | set(header)
    for key in (*ARRAYS, *header, *header["meta"], *header["grid0"]):
        assert f"`{key}`" in text, key

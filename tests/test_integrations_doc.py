"""docs/integrations.md says what is true: its Python examples run and give what they promise."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import coam
from coam import samples
from coam.sfm.interchange.colmap import read_database

PAGE = Path(coam.__file__).parents[2] / "docs" / "integrations.md"
QUICK = 'device="cpu", resolution=256, looks="once"'

if not PAGE.is_file():
    pytest.skip("an installed package has no docs", allow_module_level=True)


@pytest.fixture
def examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The page's examples, quick, in a folder with a.jpg, b.jpg, c.jpg and two folders of photos."""
    yard = samples.courtyard()
    for name, view in (("a", "day_04"), ("b", "day_05"), ("c", "day_06")):
        Image.open(yard.image(view)).save(tmp_path / f"{name}.jpg")
    for folder, views in (("summer", ("day_04", "day_05")), ("winter", ("night_02",))):
        (tmp_path / folder).mkdir()
        for view in views:
            Image.open(yard.image(view)).save(tmp_path / folder / f"{view}.jpg")
    monkeypatch.chdir(tmp_path)
    found = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    return [
        text.replace("load_matcher()", f"load_matcher({QUICK})")
        .replace('load_matcher(looks="once")', f"load_matcher({QUICK})")
        .replace('"b.jpg")\nk', f'"b.jpg", {QUICK})\nk')
        for text in found
    ]


def run(example: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(example, names)
    return names


def test_the_examples_run(examples: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("pycolmap")
    many, opencv, colmap = examples
    run(many)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[:2] for line in lines] == [[f"day_{n}.jpg", "night_02.jpg"] for n in ("04", "05")]
    assert len(list((tmp_path / "out").glob("*.npz"))) == 2
    found = run(opencv)
    assert len(found["matches"]) == len(found["m"]) > 500
    assert found["drawn"].shape == (480, 1280, 3)
    assert found["mask"].sum() > 100
    run(colmap)
    keypoints, matches = read_database(tmp_path / "database.db")
    assert sorted(keypoints) == ["a.jpg", "b.jpg", "c.jpg"]
    assert len(matches) == 3
    assert min(map(len, matches.values())) > 200

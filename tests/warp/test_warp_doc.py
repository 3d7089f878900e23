"""The example of docs/warp.md runs."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

import coam
from coam import samples

PAGE = Path(coam.__file__).parents[2] / "docs" / "warp.md"


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not PAGE.is_file():
        pytest.skip("an installed package has no docs")
    for name, view in (("a.jpg", "day_04"), ("b.jpg", "day_05")):
        Image.open(samples.courtyard().image(view)).save(tmp_path / name, quality=95)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    quick = example.replace("load_matcher()", 'load_matcher(device="cpu", resolution=320)')
    found: dict[str, Any] = {}
    exec(quick, found)
    assert found["warp"].points.shape == (240, 320, 2)
    assert len(found["matches"]) == 2000
    assert found["seen"].shape == (240, 320, 3)
    assert coam.Warp.load("ab.warp.npz").certainty.shape == (240, 320)
    assert Path("ab.flo").stat().st_size == 12 + 240 * 320 * 8

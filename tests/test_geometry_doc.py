"""docs/geometry.md says what is true: its example runs and finds the courtyard's geometry."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import coam
from coam import samples
from coam.geometry.pose import rotation_error
from coam.geometry.ransacs import ESTIMATORS, RansacKeywords

PAGE = Path(coam.__file__).parents[2] / "docs" / "geometry.md"

if not PAGE.is_file():
    pytest.skip("an installed package has no docs", allow_module_level=True)


def test_the_example_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    yard = samples.courtyard()
    for name, view in (("a.jpg", "day_04"), ("b.jpg", "day_05")):
        Image.open(yard.image(view)).save(tmp_path / name, quality=95)
    monkeypatch.chdir(tmp_path)
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    quick = example.replace('"b.jpg")', '"b.jpg", device="cpu", resolution=320, looks="once")')
    assert quick != example
    found: dict[str, Any] = {}
    exec(quick, found)
    assert found["plane"].inliers.sum() > 100
    assert found["two_view"].inliers.mean() > 0.5
    true = yard.pose("day_05").rotation @ yard.pose("day_04").rotation.T
    assert rotation_error(found["pose"].rotation, true) < 1.0
    assert len(found["inliers"]) == found["pose"].inliers.sum()
    assert np.asarray(Image.open("inliers.png")).shape[1] == 1600


def test_every_option_and_estimator_is_named() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name in RansacKeywords.__annotations__:
        assert f"`{name}`" in text
    for name in ESTIMATORS:
        assert f'"{name}"' in text or name in ("opencv", "poselib")

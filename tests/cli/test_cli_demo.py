"""`coam demo` counts correct matches."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coam import samples
from coam.cli.demo import accuracy_against
from coam.types import Matches

Run = Any


def test_demo_writes_the_picture_and_counts(run: Run, tmp_path: Path) -> None:
    result = run("demo", "-o", tmp_path / "demo.png", "--device", "cpu", "--json")
    assert result.exit_code == 0, result.output
    report = json.loads(result.stdout)
    assert report["matches"] > 500
    assert 100 < report["accuracy"]["checked"] <= report["matches"]
    assert 0 <= report["accuracy"]["1px"] <= report["accuracy"]["3px"] <= 1
    with Image.open(tmp_path / "demo.png") as picture:
        assert picture.width > 1000, "both photos side by side"


def test_demo_refuses_what_it_cannot_write(run: Run, tmp_path: Path) -> None:
    result = run("demo", "-o", tmp_path / "demo.mp3")
    assert result.exit_code == 2
    assert ".png" in result.stderr


def test_accuracy_of_true_and_of_moved_matches() -> None:
    pair = samples.motorcycle()
    columns, rows = np.meshgrid(np.arange(20.0, 720, 13), np.arange(20.0, 480, 11))
    points0 = np.stack([columns.ravel(), rows.ravel()], 1).astype(np.float32)
    truth, known = pair.true_points1(points0)
    count = len(points0)
    ids = np.zeros(count, np.int64)
    right = Matches(points0, np.nan_to_num(truth), np.ones(count, np.float32), ids, ids, pair.size, pair.size)
    assert accuracy_against(pair, right) == {"checked": int(known.sum()), "1px": 1.0, "3px": 1.0}
    moved = replace(right, points1=right.points1 + np.float32([0, 2]))
    assert accuracy_against(pair, moved) == {"checked": int(known.sum()), "1px": 0.0, "3px": 1.0}
    half = replace(right, points1=right.points1 + np.float32([9, 0]) * (np.arange(count) % 2 == 0)[:, None])
    assert accuracy_against(pair, half)["3px"] == pytest.approx(
        (known & (np.arange(count) % 2 == 1)).sum() / known.sum()
    )
    assert accuracy_against(pair, right.select(np.zeros(0, np.int64))) == {
        "checked": 0,
        "1px": 0.0,
        "3px": 0.0,
    }

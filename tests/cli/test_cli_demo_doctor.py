"""`coam demo` counts right matches rightly; `coam doctor` finds what is broken and only that."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coam import samples
from coam.cli import doctor
from coam.cli.demo import accuracy_against
from coam.models import registry
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


def test_the_texture_of_the_self_test_is_moved_exactly() -> None:
    first, second = doctor._moved_texture()
    x, y = doctor.SHIFT
    assert first.shape == second.shape == (256, 320, 3)
    np.testing.assert_array_equal(first[y:, x:], second[:-y, :-x])
    assert first.std() > 20, "there is something to see"


def test_doctor_finds_nothing_wrong_here(run: Run) -> None:
    result = run("doctor", "--json", "--device", "cpu")
    report = json.loads(result.stdout)
    assert report["problems"] == []
    assert result.exit_code == 0
    assert report["versions"]["torch"].startswith("2.")
    assert report["devices"][0].startswith("cpu")
    assert {entry["model"] for entry in report["weights"]} == set(registry.MODELS)
    assert report["self_test"]["matches"] > 300
    assert report["self_test"]["share_right"] > (
        doctor.WANTED_SHARE if report["self_test"]["trained"] else 0.3
    )


def test_doctor_reads_for_people_too(run: Run) -> None:
    result = run("doctor", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "nothing is broken" in result.stdout
    assert "not stated" not in result.stdout, "every packaged model has its licence"
    assert "capsnet-cf: capsnet, 12.7 MiB, licence Apache-2.0" in " ".join(result.stdout.split())
    assert "within 3 px" in " ".join(result.stdout.split())


def test_damaged_weights_are_a_problem(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "cdunet-paper.safetensors"
    broken.write_bytes(b"\x10\0\0\0\0\0\0\0{}")
    real = registry.packaged_weights
    monkeypatch.setattr(
        registry, "packaged_weights", lambda name: broken if name == "cdunet-paper" else real(name)
    )
    result = run("doctor", "--json", "--device", "cpu")
    assert result.exit_code == 1
    problems = json.loads(result.stdout)["problems"]
    assert len(problems) == 1
    assert str(broken) in problems[0]


def test_a_trained_model_that_matches_badly_is_a_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from coam.matcher import Matcher

    real = Matcher.match

    def scrambled(self: Matcher, *pair: Any) -> Matches:
        matches = real(self, *pair)
        matches.meta["trained"] = True
        return replace(matches, points1=matches.points1[::-1])

    monkeypatch.setattr(Matcher, "match", scrambled)
    result = run("doctor", "--device", "cpu")
    assert result.exit_code == 1
    assert "problem: self-test" in result.stdout


def test_a_missing_package_or_device_is_a_problem(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    result = run("doctor", "--json", "--device", "abacus")
    assert result.exit_code == 1
    assert "abacus" in json.loads(result.stdout)["problems"][0]
    monkeypatch.setitem(doctor.CORE, "nothing", "coam_no_such_module")
    result = run("doctor", "--json")
    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["versions"]["nothing"] is None
    assert "nothing cannot be imported" in report["problems"][0]
    assert "did not run" in run("doctor").stdout

"""`coam doctor` finds what is broken and only that."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from coam.cli import doctor
from coam.models import registry
from coam.types import Matches

Run = Any


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


def test_every_extra_that_doctor_names_can_be_installed() -> None:
    known = metadata.metadata("coam").get_all("Provides-Extra") or []
    assert set(doctor.EXTRAS.values()) <= set(known)


def test_doctor_reads_for_people_too(run: Run) -> None:
    result = run("doctor", "--device", "cpu")
    assert result.exit_code == 0, result.output
    assert "nothing is broken" in result.stdout
    assert "not stated" not in result.stdout, "every packaged model has its licence"
    assert "capsnet-cf: capsnet, 6.5 MiB, licence Apache-2.0" in " ".join(result.stdout.split())
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

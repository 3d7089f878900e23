"""The registration table and its calibration: what stands in a cell, and which pairs are wrong ones."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from tools.calibrate_registration import Judged, accepted, lowest_limit, wrong_pairs
from tools.docs_tables import Result
from tools.registration_table import table, with_kept

from coam.evaluation.benchmarks.registration import REGISTRATION, load_registration
from coam.evaluation.matchers.by_name import spec_of
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.runner import evaluate
from coam.types import Matches
from support.known_registration import noisy_matches
from support.simple_matchers import save, textured


def shifted(path0: Path, path1: Path) -> Matches:
    """Finds every pair but the one in folder 2, where it is 8 px off."""
    return noisy_matches(lambda points: points + (8.0 if path0.parent.name == "2" else 0.0), size=(640, 480))


def test_a_cell_holds_the_area_and_the_share(tmp_path: Path) -> None:
    points = np.random.default_rng(0).uniform(50, 400, (20, 2)).tolist()
    for kind, name in (("retina", "1"), ("retina", "2"), ("night", "1")):
        folder = tmp_path / "pairs" / kind / name
        for stem in ("move", "fix"):
            save(folder / f"{stem}.png", textured(size=(640, 480)))
        (folder / "landmarks.json").write_text(json.dumps({"move": points, "fix": points}))
    pairs = load_registration(tmp_path / "pairs")
    report = evaluate(REGISTRATION, pairs, spec_of(shifted), tmp_path / "out")
    result = table([report], "a command")
    rows = {row[0]: row[1:] for row in result.rows}
    assert result.columns[0] == "pairs"
    assert rows["night (1)"][0].endswith("; 100%")
    assert rows["retina (2)"] == [rows["retina (2)"][0], "100%"]
    assert rows["retina (2)"][0].endswith("; 50%")  # the other one is 8 * sqrt(2) px off
    assert 0.4 < float(rows["retina (2)"][0].split()[0]) < 0.5
    assert rows["sure but wrong, of those accepted (shares of all)"][0] == "0.333 of 1.000"


def test_wrong_pairs_are_of_one_kind_and_of_two_places() -> None:
    pairs = [
        EvaluationPair(f"{kind}/{n}", Path(f"{kind}{n}a"), Path(f"{kind}{n}b"), kind, (kind,))
        for kind, count in (("retina", 3), ("night", 1), ("courtyard-day", 2))
        for n in range(count)
    ]
    found = wrong_pairs(pairs)
    assert [(str(p.image0), str(p.image1)) for p in found] == [
        ("retina0a", "retina1b"),
        ("retina1a", "retina2b"),
        ("retina2a", "retina0b"),
    ]
    assert all(p.correspondences is None for p in found)


def test_columns_of_matchers_that_were_not_run_are_kept() -> None:
    def made(names: list[str], rows: list[list[str]]) -> Result:
        return Result("a command", "0.1.0", {}, ["pairs", *names, "limit"], rows)

    old = made(["ours", "sift"], [["all (2)", "1", "2", "3"], ["seconds", "4", "5", "-"]])
    new = made(["late", "ours"], [["all (2)", "7", "9", "8"], ["seconds", "6", "0", "-"]])
    kept = with_kept(new, old)
    assert kept.columns == ["pairs", "ours", "sift", "late", "limit"]
    assert kept.rows == [["all (2)", "9", "2", "7", "8"], ["seconds", "0", "5", "6", "-"]]


def test_the_lowest_limit_lets_its_share_of_the_wrong_ones_pass() -> None:
    found = np.array([0.99, 0.9, 0.84, 0.7, 0.2, 0.95, 0.85])
    right = np.array([True, True, False, False, False, False, True])  # wrong: .95, .84, .7, .2
    assert lowest_limit(found, right, 0.0) == pytest.approx(0.96)
    assert lowest_limit(found, right, 0.25) == pytest.approx(0.85)
    assert lowest_limit(found, right, 0.49) == pytest.approx(0.85)  # two of four would be half
    assert lowest_limit(found, right, 1.0) == 0.0
    rows = [Judged(str(n), "kind", str(n), None, None, 0.0, bool(each)) for n, each in enumerate(right)]
    assert accepted(rows, found, 0.85) == ["3 of 3", "1 of 4"]

"""`make bench`: what cannot be measured is said, and times are counted for each pair."""

import shutil
from argparse import Namespace
from pathlib import Path

import cv2
import pytest
import torch

import coam
from benchmarks import from_files, int8, parts, two_versions
from benchmarks.speed import line_of, with_ratio
from coam import samples

OPTIONS = Namespace(size=64, repeats=1, images=8, large=False)


def test_what_is_not_installed_has_a_row_that_says_so(monkeypatch):
    absent = ("kornia", "openvino", "onnxruntime")
    real = parts.find_spec
    monkeypatch.setattr(parts, "find_spec", lambda name: None if name in absent else real(name))
    rows = [*parts.backends(OPTIONS), *parts.peers(OPTIONS)]
    notes = {row["stage"]: row["note"] for row in rows if "note" in row}
    assert notes == {
        "onnxruntime": "not installed: onnxruntime",
        "openvino": "not installed: openvino",
        "XFeat, 2048 keypoints, mutual": "not installed: kornia",
        "LightGlue alone, 2048 keypoints given": "not installed: kornia",
    }
    measured = [row for row in rows if "note" not in row]
    assert len(measured) == 7  # three backends, two stages each, and SIFT
    lines = [line_of(with_ratio(row, measured[0])) for row in rows]
    assert sum("not installed" in line for line in lines) == 4
    assert "1.00" in lines[0]


def test_many_photos_are_timed_for_each_pair():
    rows = list(parts.many(OPTIONS))
    assert [row["pairs"] for row in rows] == [1, 5, 13]  # of 2, 4 and 8 photos
    for row in rows:
        assert row["seconds_per_pair"] == pytest.approx(row["seconds"] / row["pairs"])
        assert row["cpu_seconds_per_pair"] == pytest.approx(row["cpu_seconds"] / row["pairs"])
    assert rows[2]["seconds"] > rows[0]["seconds"]
    line = line_of(rows[2] | {"ratio": 1.0, "seconds_per_pair": 0.5, "cpu_seconds_per_pair": 0.25})
    assert line.endswith("  a pair: 0.500 s, 0.250 cpu s")


def test_growth_with_size_and_grid(monkeypatch):
    monkeypatch.setattr(parts, "SIZES", (64,))
    monkeypatch.setattr(parts, "GRIDS", (16, 64))
    rows = list(parts.growth(OPTIONS))
    grids = [row for row in rows if "grid" in row["stage"]]
    assert [row["stage"].split()[-1] for row in grids] == ["16^2", "64^2"]
    assert grids[1]["cpu_seconds"] > 2 * grids[0]["cpu_seconds"]  # 256 times as many similarities
    assert len(rows) == 3


def test_pairs_of_a_folder_are_timed_by_kind(tmp_path, monkeypatch):
    for name in "abc":
        shutil.copy(samples.motorcycle().left, tmp_path / f"{name}.png")
    (tmp_path / "pairs.txt").write_text("a.png b.png 1\na.png c.png 0\nb.png c.png 1\n")
    seen = []
    found = {name: lambda a, b, name=name: seen.append((name, a.stem + b.stem)) for name in ("coam", "other")}
    monkeypatch.setattr(from_files, "matchers", lambda: found)
    rows = list(from_files.from_files(2, tmp_path))
    assert [row["stage"] for row in rows] == [
        "coam: right pairs",
        "coam: different places",
        "other: right pairs",
    ]
    # One round to warm up and two that count, each pair by both matchers in turn.
    assert seen == [(name, pair) for pair in ("ab", "bc", "ac") for name in found] * 3
    assert all(0 < row["seconds"] < 1 for row in rows)


def test_a_version_beside_itself_finds_the_same_matches(tmp_path, monkeypatch, capsys):
    photo = cv2.imread(str(samples.motorcycle().left))
    for name in ("a.png", "b.png"):
        cv2.imwrite(str(tmp_path / name), cv2.resize(photo, (160, 96)))
    (tmp_path / "pairs.txt").write_text("a.png b.png 1\n")
    source = str(Path(coam.__file__).parents[1])
    arguments = ["two_versions", source, source, "--rounds", "1", "--photos", str(tmp_path)]
    monkeypatch.setattr("sys.argv", arguments)
    two_versions.main()
    head, line = capsys.readouterr().out.splitlines()
    assert head == "pairs | old | new | new / old | same matches"
    kind, old, new, ratio, same = line.split(" | ")
    assert (kind, same) == ("right", "1.000")
    assert float(old) > 0
    assert float(ratio) == pytest.approx(float(new) / float(old), abs=0.02)


def test_weights_in_8_bits_have_a_scale_for_each_output():
    weight, scale = int8.quantised_weight(torch.tensor([[0.25, -1.0], [0.02, 0.005]]))
    assert weight.tolist() == [[32, -127], [127, 32]]
    torch.testing.assert_close(scale, torch.tensor([1 / 127, 0.02 / 127]))

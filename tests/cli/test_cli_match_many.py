"""`coam match` on many pairs: lists, folders and videos, resumed after a kill; what it refuses."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coam import samples
from coam.types import Matches
from support.simple_matchers import save, textured
from support.videos import write_pan

Run = Any
QUICK = ("--resolution", "128", "--device", "cpu", "--looks", "once")


@pytest.fixture
def folders(tmp_path: Path) -> tuple[Path, Path]:
    """Two textures in A; in B the same, moved by (16, 8), and a file that is no picture."""
    for seed, name in ((1, "x.png"), (2, "y.png")):
        whole = textured(seed, (160, 128))
        save(tmp_path / "A" / name, whole[:96, :128])
        save(tmp_path / "B" / name, whole[8:104, 16:144])
    (tmp_path / "B" / "broken.jpg").write_text("no picture")
    return tmp_path / "A", tmp_path / "B"


def test_a_folder_against_a_folder(run: Run, folders: tuple[Path, Path], tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = run("match", *folders, *QUICK, "-o", out, "--also", "png")
    assert result.exit_code == 0, result.output
    assert "6 pairs, " in result.stdout
    assert "2 left out" in result.stdout
    assert f"wrote {out}" in result.stdout
    assert result.stderr.count("broken.jpg: is not a picture") == 1
    expected = {f"{a}.png--{b}.png" for a in "xy" for b in "xy"}
    assert {path.stem for path in out.glob("*.npz")} == {path.stem for path in out.glob("*.png")} == expected
    for name in "xy":
        matches = Matches.load(out / f"{name}.png--{name}.png.npz")
        inside = (matches.points0 >= (16, 8)).all(axis=1)
        moved = matches.points0[inside] - matches.points1[inside]
        assert np.abs(np.median(moved, axis=0) - (16, 8)).max() < 1
    before = {path.name: path.stat().st_mtime_ns for path in out.glob("*.npz")}
    again = run("match", *folders, *QUICK, "-o", out, "--json")
    summary = json.loads(again.stdout)
    assert (summary["pairs"], summary["reused"], summary["failed"]) == (6, 4, 2)
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("*.npz")} == before
    other = json.loads(run("match", *folders, *QUICK, "-o", out, "--json", "--max-matches", "7").stdout)
    assert other["reused"] == 0
    assert {row["matches"] for row in other["results"] if row["image0"] == row["image1"]} == {7}


def test_a_list_of_pairs_and_strict(run: Run, folders: tuple[Path, Path], tmp_path: Path) -> None:
    listed = tmp_path / "pairs.txt"
    listed.write_text("A/x.png B/x.png\nA/x.png B/y.png\n")
    options = ("--pairs", listed, *QUICK, "-o", tmp_path / "out")
    results = json.loads(run("match", *options, "--json").stdout)["results"]
    right, wrong = (row["overlap"] for row in results)
    assert right > 0.9
    assert wrong < 0.5
    assert run("match", *options, "--min-overlap", wrong).exit_code == 0
    refused = run("match", *options, "--strict")
    assert refused.exit_code == 1
    assert refused.stderr == "1 of 2 pairs have an overlap below 0.5, or none\n"


def test_a_video_against_a_photo(run: Run, tmp_path: Path) -> None:
    video = write_pan(tmp_path / "walk.avi", range(0, 320, 8))
    photo = tmp_path / "photo.png"
    Image.fromarray(textured(3, (312 + 320, 240))[:, 150:470]).save(photo)
    result = run("match", video, photo, *QUICK, "-o", tmp_path / "out", "--frames", "4", "--json")
    assert result.exit_code == 0, result.output
    rows = json.loads(result.stdout)["results"]
    assert [row["image0"] for row in rows] == [f"walk.avi/{number:04d}.jpg" for number in range(1, 5)]
    assert len(list((tmp_path / "out" / "frames" / "A" / "walk.avi").glob("*.jpg"))) == 4
    assert (tmp_path / "out" / "walk.avi-0002.jpg--photo.png.npz").is_file()


def test_what_makes_no_sense_is_refused_in_one_line(
    run: Run, folders: tuple[Path, Path], tmp_path: Path
) -> None:
    listed = tmp_path / "pairs.txt"
    listed.write_text("A/x.png B/x.png\n")
    for arguments, what in (
        ((*folders,), "-o DIR"),
        ((*folders, "-o", "a", "-o", "b"), "-o DIR"),
        ((*folders, "-o", "out.png"), "is the name of a file"),
        ((*folders, "-o", tmp_path / "out", "--also", "gif"), "--also gif: choose of png"),
        ((folders[0], "-o", tmp_path / "out"), "B is missing"),
        ((folders[0], tmp_path / "none", "-o", tmp_path / "out"), "no such file or folder"),
        ((*folders, "--pairs", listed, "-o", tmp_path / "out"), "either --pairs FILE, or A and B"),
        (("--pairs", tmp_path / "none.txt", "-o", tmp_path / "out"), "no such file"),
        ((), "give two photos, A and B, or --pairs FILE"),
    ):
        result = run("match", *arguments)
        assert result.exit_code == 2, (arguments, result.output)
        assert what in result.stderr, arguments
        assert result.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    """SIGKILL after the first pairs; the second run computes only what is missing."""
    for number in range(4):
        save(tmp_path / "A" / f"{number}.png", textured(number, (128, 96)))
    out = tmp_path / "out"
    line = [sys.executable, "-m", "coam", "match", "A", "A", *QUICK, "-o", str(out), "--json"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    options: dict[str, Any] = {"cwd": tmp_path, "env": environment, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(line, **options) as process:
        end = time.monotonic() + 60
        while len(list(out.glob("[!.]*.npz"))) < 2 and process.poll() is None and time.monotonic() < end:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
    kept = {path.name: path.stat().st_mtime_ns for path in out.glob("[!.]*.npz")}
    assert len(kept) >= 2
    again = subprocess.run(line, **options, check=True)
    summary = json.loads(again.stdout)
    assert (summary["pairs"], summary["reused"]) == (6, len(kept))
    assert all((out / name).stat().st_mtime_ns == stamp for name, stamp in kept.items())
    assert len(list(out.glob("[!.]*.npz"))) == 6
    assert list(out.glob(".coam-*")) == []


def test_strict_leaves_with_one_where_two_places_are_shown(run: Run, tmp_path: Path) -> None:
    yard = samples.courtyard()
    other = tmp_path / "other.png"
    save(other, textured(5, (320, 240)))
    quick = ("--resolution", "320", "--device", "cpu", "--looks", "once")
    same = run("match", yard.image("day_04"), yard.image("day_05"), *quick, "--strict")
    assert same.exit_code == 0, same.output
    wrong = run("match", yard.image("day_04"), other, *quick, "--strict", "-o", tmp_path / "o.npz")
    assert wrong.exit_code == 1
    assert "is below 0.5" in wrong.stderr
    assert (tmp_path / "o.npz").is_file()  # written all the same
    assert run("match", yard.image("day_04"), other, *quick).exit_code == 0
    unknown = run("match", yard.image("day_04"), other, *quick, "--strict", "--preset", "paper")
    assert unknown.exit_code == 2
    assert "none is calibrated" in unknown.stderr


def test_models_without_weights_are_refused_unless_asked_for(run: Run, tmp_path: Path) -> None:
    photo = tmp_path / "a.png"
    save(photo, textured(1, (96, 64)))
    for line in (
        ("match", photo, photo, "--model", "cdunet-paper"),
        ("sfm", tmp_path, "-o", tmp_path / "model", "--model", "capsnet"),
        ("stylize", photo, photo, "-o", tmp_path / "s.png", "--model", "cdunet-paper"),
        ("data", "align", tmp_path, "-o", tmp_path / "aligned", "--model", "capsnet-c"),
    ):
        result = run(*line)
        assert result.exit_code == 2, result.output
        assert "has no trained weights here" in result.stderr
        assert "cdunet-lite1, cdunet-paper-lite1, capsnet-cf" in result.stderr
        assert "--allow-untrained" in result.stderr
        assert result.stderr.count("\n") == 1
    allowed = run(
        "match",
        photo,
        photo,
        "--model",
        "capsnet",
        "--allow-untrained",
        "--resolution",
        "64",
        "--looks",
        "once",
    )
    assert allowed.exit_code == 0, allowed.output
    assert allowed.stderr.splitlines()[-1] == "warning: capsnet is untrained, so its matches mean nothing"

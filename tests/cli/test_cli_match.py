"""`coam match` and the root: what is printed, what is written, and what is refused."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import coam.matcher.matcher
from coam import samples
from coam.cli import GROUPS, build_app
from coam.cli import match as match_command
from coam.matching.settings import CHOICES, PRESETS, MatcherConfig
from coam.models.registry import DEFAULT_MODEL
from coam.types import Matches

Run = Any
Pair = tuple[Path, Path]
SMALL = ("--resolution", "128", "--device", "cpu")


def error_line(result: Any) -> str:
    """The one line of a refusal."""
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    lines = result.stderr.splitlines()
    assert len(lines) == 1, result.stderr
    assert lines[0].startswith("error: ")
    return str(lines[0])


def test_every_kind_of_output_holds_the_same_matches(run: Run, pair: Pair, tmp_path: Path) -> None:
    outputs = [tmp_path / "new" / name for name in ("o.png", "o.jpg", "o.npz", "o.h5", "o.json", "o.html")]
    options = [option for path in outputs for option in ("-o", path)]
    result = run("match", *pair, *SMALL, *options)
    assert result.exit_code == 0, result.output
    loaded = [Matches.load(path) for path in outputs[2:5]]
    count = len(loaded[0])
    assert count > 50
    assert result.stdout.startswith(f"{count} matches in ")
    assert all(f"wrote {path}" in result.stdout for path in outputs)
    for other in loaded[1:]:
        np.testing.assert_array_equal(loaded[0].points1, other.points1)
    assert loaded[0].size0 == (128, 96)
    for path in outputs[:2]:
        with Image.open(path) as picture:
            assert picture.width > picture.height >= 96, "side by side"
            assert picture.format == {".png": "PNG", ".jpg": "JPEG"}[path.suffix]
    assert "<html" in outputs[5].read_text().lower()
    assert sorted(os.listdir(tmp_path / "new")) == sorted(path.name for path in outputs)


def test_the_warp_of_every_pixel(run: Run, pair: Pair, tmp_path: Path) -> None:
    names = ("o.warp.npz", "o.flo", "o.flow.png", "o.warped.jpg", "o.npz")
    outputs = [tmp_path / name for name in names]
    result = run("match", *pair, *SMALL, *(option for path in outputs for option in ("-o", path)))
    assert result.exit_code == 0, result.output
    warp = coam.Warp.load(outputs[0])
    assert warp.points.shape == (96, 128, 2)
    assert outputs[1].read_bytes()[:4] == b"PIEH"
    assert len(outputs[1].read_bytes()) == 12 + 96 * 128 * 8
    for path in outputs[2:4]:
        with Image.open(path) as picture:
            assert picture.size == (128, 96)
    assert len(Matches.load(outputs[4])) > 50  # a plain .npz holds matches, as ever
    assert error_line(run("match", *pair, "-o", tmp_path / "o.flow.txt"))


def test_json_is_one_object_with_the_numbers(run: Run, pair: Pair) -> None:
    result = run("match", *pair, *SMALL, "--json", "--max-matches", "40")
    assert result.exit_code == 0, result.output
    summary = json.loads(result.stdout)
    assert summary["matches"] == 40
    assert summary["size0"] == [128, 96]
    assert summary["image1"] == str(pair[1])
    assert summary["seconds"] > 0
    assert summary["outputs"] == []
    assert summary["overlap"] is None or 0 <= summary["overlap"] <= 1


def test_matches_follow_the_shift(run: Run, pair: Pair, tmp_path: Path) -> None:
    run("match", *pair, *SMALL, "-o", tmp_path / "o.npz")
    matches = Matches.load(tmp_path / "o.npz")
    inside = (matches.points0 >= (16, 8)).all(axis=1)  # the others have left the second photo
    errors = np.linalg.norm(matches.points0 - matches.points1 - np.float32([16, 8]), axis=1)[inside]
    assert np.median(errors) < 3.0, "even untrained, a network sees a plain shift"


def test_min_score_keeps_the_better_ones(run: Run, pair: Pair, tmp_path: Path) -> None:
    run("match", *pair, *SMALL, "-o", tmp_path / "all.npz")
    scores = Matches.load(tmp_path / "all.npz").scores
    limit = float(np.sort(scores)[len(scores) // 2])
    run("match", *pair, *SMALL, "-o", tmp_path / "some.npz", "--min-score", limit)
    assert len(Matches.load(tmp_path / "some.npz")) == int((scores >= np.float32(limit)).sum())
    for more in ((), ("--json",)):
        nothing = run("match", *pair, *SMALL, "--min-score", "1", *more)
        assert nothing.exit_code == 0
        assert nothing.stderr == "no match has a score of 1 or more; try a lower --min-score\n"


def test_a_model_without_a_pair_score_says_why_there_is_no_overlap(run: Run, pair: Pair) -> None:
    result = run("match", *pair, *SMALL, "--model", "capsnet-cf", "--looks", "once")
    assert "overlap unknown: no pair score is calibrated for this model and preset" in result.stdout
    assert "the same place" not in result.stdout


def test_looks_and_preset_reach_the_matcher(run: Run, pair: Pair, tmp_path: Path) -> None:
    once, search = (run("match", *pair, *SMALL, "--looks", looks, "--json") for looks in ("once", "search"))
    assert json.loads(once.stdout)["looks"] == 1
    assert json.loads(search.stdout)["looks"] > 1  # aligned where the geometry is found, else the search
    refused = run("match", *pair, *SMALL, "--looks", "sideways")
    assert refused.exit_code == 2
    assert "once, align, search" in refused.output
    result = run("match", *pair, *SMALL, "--preset", "paper", "-o", tmp_path / "paper.npz")
    assert result.exit_code == 0, result.output
    assert Matches.load(tmp_path / "paper.npz").grid0.columns == 128


def test_the_help_tells_the_defaults_and_choices_of_the_matcher(run: Run) -> None:
    defaults = MatcherConfig()
    text = " ".join(run("match", "--help").stdout.replace("│", " ").split())
    for value in (
        defaults.resolution,
        defaults.max_matches,
        defaults.min_score,
        defaults.looks,
        DEFAULT_MODEL,
    ):
        assert f"[default: ({value})]" in text
    assert all("|".join(choices) in text for choices in (PRESETS, CHOICES["looks"]))


def test_tiles_are_matched_at_full_resolution(run: Run, tmp_path: Path) -> None:
    yard, output = samples.courtyard(), tmp_path / "o.npz"
    options = ("--device", "cpu", "--resolution", "320", "--looks", "once", "--max-matches", "3000")
    result = run("match", yard.image("day_04"), yard.image("day_05"), *options, "--tiles", "-o", output)
    assert result.exit_code == 0, result.output
    matches = Matches.load(output)
    assert matches.meta["tiles"] == 6  # 640 x 480 pixels in tiles of 320
    assert matches.grid0 is not None
    assert matches.grid0.step == (4.0, 4.0)
    assert 0 < len(matches) <= 3000


def test_the_number_of_looks_is_told(run: Run, pair: Pair) -> None:
    first = run("match", *pair, *SMALL, "--looks", "once", "--max-matches", "1").stdout.splitlines()[0]
    assert re.fullmatch(r"1 match in \d+\.\d\d s, 1 look, on cpu with \S+", first), first
    first = run("match", *pair, *SMALL).stdout.splitlines()[0]
    assert re.fullmatch(r"\d+ matches in \d+\.\d\d s, \d+ looks, on cpu with \S+", first), first


def test_a_tiny_photo_is_warned_about(run: Run, pair: Pair, tmp_path: Path) -> None:
    tiny = tmp_path / "tiny.png"
    Image.open(pair[0]).resize((80, 63)).save(tiny)
    result = run("match", pair[0], tiny, *SMALL, "--looks", "once")
    assert result.exit_code == 0
    assert result.stderr.startswith(f"warning: {tiny}: only 80 x 63 pixels")
    assert result.stderr.count("\n") == 1
    assert run("match", *pair, *SMALL, "--looks", "once").stderr == ""


def test_saved_matches_find_their_photos_again(
    run: Run, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    run("match", pair[0].name, pair[1].name, *SMALL, "--looks", "once", "-o", "o.npz", "-o", "o.png")
    monkeypatch.chdir(tmp_path.parent)
    drawn = np.asarray(Matches.load(tmp_path / "o.npz").draw())
    np.testing.assert_array_equal(drawn, np.asarray(Image.open(tmp_path / "o.png")))


def test_patience_speaks_only_late_and_only_on_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[str] = []
    monkeypatch.setattr("rich.status.Status.start", lambda self: shown.append(str(self.status)))
    with match_command.patience("waiting", after=0.0):
        time.sleep(0.05)
    assert shown == []
    monkeypatch.setattr("rich.console.Console.is_terminal", True)
    with match_command.patience("quick", after=5.0):
        pass
    with match_command.patience("slow", after=0.01):
        time.sleep(0.2)
    assert shown == ["slow"]


def test_bad_options_are_refused_in_one_line(run: Run, pair: Pair, tmp_path: Path) -> None:
    for options, what in (
        (("-o", "out.txt"), ".png"),
        (("-o", "out"), "ending"),
        (("-o", tmp_path / "x.png" / "y.png", "-o", "out.exe"), ".exe"),
        (("--model", "nothing"), "cdunet-lite1"),
        (("--model", "missing.safetensors"), "missing.safetensors"),
        (("--preset", "nothing"), "paper"),
        (("--device", "abacus"), "no device abacus; choose auto, cpu, cuda, cuda:1 or mps"),
    ):
        assert what in error_line(run("match", *pair, *options))
    for options in (("--resolution", "5"), ("--max-matches", "0"), ("--min-score", "2"), ("--nonsense",)):
        result = run("match", *pair, *options)
        assert result.exit_code == 2
        assert "Traceback" not in result.stderr


def test_an_input_is_never_overwritten(run: Run, pair: Pair, tmp_path: Path) -> None:
    before = [path.read_bytes() for path in pair]
    link = tmp_path / "link.png"
    link.symlink_to(pair[1])
    hard = tmp_path / "hard.png"
    os.link(pair[0], hard)
    for output in (pair[0], pair[1], link, hard, f"{tmp_path}/./a.png"):
        assert "input" in error_line(run("match", *pair, *SMALL, "-o", output))
    assert [path.read_bytes() for path in pair] == before


def test_all_outputs_or_none(run: Run, pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder.png").mkdir()
    out = tmp_path / "out"
    out.mkdir()
    for blocked in (tmp_path / "file" / "o.png", tmp_path / "folder.png"):
        error_line(run("match", *pair, *SMALL, "-o", out / "good.npz", "-o", blocked))
        assert os.listdir(out) == []


def test_a_full_disk_is_one_line_and_leaves_the_old_file(
    run: Run, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = tmp_path / "old.npz"
    old.write_bytes(b"old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert "the disk is full; free some space" in error_line(run("match", *pair, *SMALL, "-o", old))
    assert old.read_bytes() == b"old"
    assert sorted(os.listdir(tmp_path)) == ["a.png", "b.png", "old.npz"]


@pytest.mark.parametrize(
    ("error", "code", "what"),
    [
        (KeyboardInterrupt(), 130, "stopped"),
        (MemoryError(), 2, "memory"),
        (RuntimeError("CUDA out of memory. Tried to allocate 20 GiB\nmore"), 2, "memory"),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried"), 2, "memory"),
        (OSError(28, "No space left on device"), 2, "No space left"),
    ],
)
def test_trouble_in_the_middle_is_one_line(
    run: Run, pair: Pair, monkeypatch: pytest.MonkeyPatch, error: BaseException, code: int, what: str
) -> None:
    def trouble(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(coam.matcher.matcher.Matcher, "match", trouble)
    result = run("match", *pair, *SMALL)
    assert result.exit_code == code
    assert result.stderr.count("\n") == 1
    assert what in result.stderr


def test_a_bug_is_not_dressed_as_bad_input(run: Run, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    def bug(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(coam.matcher.matcher.Matcher, "match", bug)
    result = run("match", *pair, *SMALL)
    assert result.exit_code == 1
    assert isinstance(result.exception, ZeroDivisionError)


# ---- the real program


def program(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coam", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **options)


def test_help_names_every_group_and_imports_nothing_heavy() -> None:
    code = (
        "import sys; sys.argv = ['coam', '--help']\n"
        "from coam.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert not end.code\n"
        "print([name for name in ('torch', 'numpy', 'cv2', 'PIL', 'h5py') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert result.stdout.splitlines()[-1] == "[]"
    for name in ("match", "demo", "doctor"):
        assert f" {name} " in result.stdout


def test_what_is_cheap_to_check_is_checked_before_torch_is_imported(pair: Pair, tmp_path: Path) -> None:
    text = tmp_path / "text.jpg"
    text.write_text("not a photo")
    code = (
        "import sys\n"
        "from coam.cli import main\n"
        "try: main()\n"
        "except SystemExit as end: assert end.code == 2\n"
        "assert 'torch' not in sys.modules"
    )
    for arguments, what in (
        (("no.jpg", pair[1]), "no such file"),
        ((pair[0], text), "not a picture"),
        (("https://example.org/a.jpg", pair[1]), "https://example.org/a.jpg: URLs are not read"),
        ((*pair, "--preset", "nothing"), "default, paper"),
        ((*pair, "--looks", "twice"), "once, align, search"),
        ((*pair, "-o", "out.txt"), ".png"),
    ):
        line = [sys.executable, "-c", code, "match", *map(str, arguments)]
        result = subprocess.run(line, capture_output=True, text=True, timeout=60, check=True)
        assert what in result.stderr
        assert result.stderr.count("\n") == 1


def test_groups_that_are_not_there_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coam.cli.GROUPS", (*GROUPS, "no_such_group"))
    assert {command.name for command in build_app().registered_commands} >= {"match", "demo", "doctor"}


def test_the_program_prints_one_line_and_its_version(pair: Pair, tmp_path: Path) -> None:
    assert program("--version").stdout == f"coam {coam.__version__}\n"
    odd = tmp_path / "new\nline.png"
    odd.write_text("text")
    result = program("match", pair[0], odd, "-o", tmp_path / "out.png")
    assert result.returncode == 2
    assert result.stderr.count("\n") == 1
    assert "Traceback" not in result.stderr
    assert not (tmp_path / "out.png").exists()


def test_a_bug_in_the_program_is_one_line_unless_asked(pair: Pair) -> None:
    code = (
        "import coam.cli.match as command; from coam.cli import main\n"
        "def bug(*a, **k): raise ZeroDivisionError('planted')\n"
        "command.check_outputs = bug; main()"
    )
    for debug in ("", "1"):
        command = [sys.executable, "-c", code, "match", *map(str, pair)]
        environment = {**os.environ, "COAM_DEBUG": debug}
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=60, check=False, env=environment
        )
        assert result.returncode == 1
        assert "planted" in result.stderr
        assert ("Traceback" in result.stderr) == bool(debug)


def test_ctrl_c_ends_with_130_and_no_file(pair: Pair, tmp_path: Path) -> None:
    code = (
        "import signal, time, coam.cli.match as command; from coam.cli import main\n"
        # A shell that runs the tests in the background hands an ignored SIGINT down.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "def wait(*a, **k): print('waiting', flush=True); time.sleep(60)\n"
        "command.check_outputs = wait; main()"
    )
    command = [sys.executable, "-c", code, "match", *map(str, pair), "-o", str(tmp_path / "out.npz")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "waiting\n"
        time.sleep(0.1)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert errors == "error: stopped\n"
    assert not (tmp_path / "out.npz").exists()


def test_masks_leave_regions_out(run: Run, pair: Pair, tmp_path: Path) -> None:
    right = np.zeros((96, 128), np.uint8)
    right[:, 64:] = 255
    Image.fromarray(right).save(tmp_path / "mask.png")
    for more in ((), ("--tiles",)):
        result = run(
            "match", *pair, *SMALL, *more, "--mask0", tmp_path / "mask.png", "-o", tmp_path / "m.npz"
        )
        assert result.exit_code == 0, result.output
        found = Matches.load(tmp_path / "m.npz")
        assert len(found) > 20
        assert (found.points0[:, 0] > 63.4).all()
        assert (found.points1[:, 0] < 60).any()  # masked in A alone
    Image.fromarray(right[1:]).save(tmp_path / "mask.png")
    line = error_line(run("match", *pair, *SMALL, "--mask1", tmp_path / "mask.png"))
    assert line.endswith("mask.png: is not of the size of its photo, but 128 x 95; make it 128 x 96")
    line = error_line(
        run("match", *pair, *SMALL, "--mask1", tmp_path / "mask.png", "-o", tmp_path / "mask.png")
    )
    assert "mask.png" in line

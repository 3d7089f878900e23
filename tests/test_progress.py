"""Progress: plain lines where stderr is no terminal, a bar where it is, and how long the rest will take."""

from __future__ import annotations

import pytest

import coam.progress
from coam.progress import progress, stages, time_left


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time in seconds, to be moved by hand."""
    now = [0.0]
    monkeypatch.setattr(coam.progress.time, "monotonic", lambda: now[0])
    return now


@pytest.mark.parametrize(
    ("seconds", "done", "left", "words"),
    [
        (10.0, 10, 40, "about 40 s left"),
        (0.1, 5, 2, "about 1 s left"),
        (30.0, 1, 10, "about 5 min left"),
        (36.0, 1, 1000, "about 10.0 h left"),
        (10.0, 50, 0, ""),
    ],
)
def test_time_left_by_the_mean_speed_of_this_run(seconds: float, done: int, left: int, words: str) -> None:
    assert time_left(seconds, done, left) == words


def test_a_log_gets_a_line_every_ten_seconds_and_counts_what_was_done_before(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("matching pairs", total=100, done=40, unit="pairs") as bar:
        for second in range(1, 31):
            clock[0] = float(second)
            bar.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "matching pairs: 50 of 100 pairs, about 50 s left",  # ten in ten seconds: the forty cost nothing now
        "matching pairs: 60 of 100 pairs, about 40 s left",
        "matching pairs: 70 of 100 pairs, about 30 s left",
    ]


def test_lines_of_a_long_run_come_further_apart(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with progress("training", unit="steps") as bar:
        for second in range(24 * 3600):
            clock[0] = float(second)
            bar.update(second, "loss 1.00")
    lines = capsys.readouterr().err.splitlines()
    assert 100 < len(lines) < 200
    assert lines[0] == "training: 10 steps, loss 1.00"


def test_quick_or_silent_work_says_nothing(clock: list[float], capsys: pytest.CaptureFixture[str]) -> None:
    with progress("quick", total=2) as bar:
        clock[0] = 9.0
        bar.update(2)
    with progress("silent", total=2, shown=False) as bar:
        clock[0] = 99.0
        bar.update(1)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""


def test_a_terminal_gets_a_bar_on_stderr(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich then takes stderr for a terminal
    with progress("reading", total=4) as bar:
        bar.update(1)
        bar.begin("matching", total=8, done=2)
        bar.update(5, "loss 0.50")
    captured = capsys.readouterr()
    assert "matching" in captured.err
    assert "5/8" in captured.err
    assert "loss 0.50" in captured.err
    assert captured.out == ""


def test_a_stage_begins_when_it_or_its_total_is_heard_of_first(
    clock: list[float], capsys: pytest.CaptureFixture[str]
) -> None:
    with stages("preparing") as report:
        for second, (stage, done, total) in enumerate(
            [("a", 0, 9), ("a", 3, 9), ("b", 1, 2), ("b", 1, 4)], 1
        ):
            clock[0] = 20.0 * second
            report(stage, done, total)
    assert capsys.readouterr().err.splitlines() == [
        "a: 0 of 9",
        "a: 3 of 9, about 40 s left",
        "b: 1 of 2, about 1 s left",
        "b: 1 of 4, about 1 s left",
    ]

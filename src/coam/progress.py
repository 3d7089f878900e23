"""Progress of long work: a bar on a terminal, and now and then a plain line where stderr is a log file."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

FIRST_LINE = 10.0  # seconds of silence in a log file
EVERY_SHARE = 0.05  # of the time so far between two lines after that: an hour gives about 80, a day 150


class Progress(Protocol):
    """What long work tells about itself."""

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None:
        """A (new) stage of `total` steps begins; `done` of them were made by an earlier run."""
        ...

    def update(self, done: int, note: str = "") -> None:
        """So many steps of the stage are done; `note`: figures to show beside them."""
        ...

    def advance(self, steps: int = 1) -> None:
        """So many more steps of the stage are done."""
        ...


@contextmanager
def progress(
    label: str, total: int | None = None, done: int = 0, shown: bool = True, unit: str = ""
) -> Iterator[Progress]:
    """Show the progress of the block on stderr. unit: of the steps, for the lines of a log ("pairs")."""
    from rich.console import Console

    console = Console(stderr=True)
    if shown and console.is_terminal:
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeElapsedColumn
        from rich.progress import Progress as RichBar

        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with RichBar(*columns, console=console, transient=True) as rich_bar:
            bar = _Bar(rich_bar)
            bar.begin(label, total, done)
            yield bar
        return
    write = partial(console.print, markup=False, highlight=False, soft_wrap=True)
    lines = _Lines(write if shown else lambda line: None, unit)
    lines.begin(label, total, done)
    yield lines


@contextmanager
def stages(label: str, unit: str = "") -> Iterator[Callable[[str, int, int], None]]:
    """As `progress`, told (stage, done, total): a stage begins when it, or its total, is heard of first."""
    with progress(label, unit=unit) as bar:
        known: tuple[str, int] | None = None

        def report(stage: str, done: int, total: int) -> None:
            nonlocal known
            if known != (stage, total):
                known = stage, total
                bar.begin(stage, total)
            bar.update(done)

        yield report


class _Stage:
    """Where a stage stands, and how long the rest of it will take."""

    def __init__(self) -> None:
        self.begin("")

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None:
        self.label, self.total, self.done, self.before = label, total, done, done
        self.began = time.monotonic()

    def update(self, done: int, note: str = "") -> None:
        self.done = done
        self.show(note)

    def advance(self, steps: int = 1) -> None:
        self.update(self.done + steps)

    def show(self, note: str) -> None:
        raise NotImplementedError

    def left(self) -> str:
        """Time left in words."""
        made = self.done - self.before
        if self.total is None or made <= 0:
            return ""
        return time_left(time.monotonic() - self.began, made, self.total - self.done)


class _Bar(_Stage):
    """A bar of rich for each stage."""

    def __init__(self, bar: object) -> None:
        self.bar: Any = bar
        self.task: Any = None
        super().__init__()

    def begin(self, label: str, total: int | None = None, done: int = 0) -> None:
        super().begin(label, total, done)
        if label:
            if self.task is not None:
                self.bar.remove_task(self.task)
            self.task = self.bar.add_task(label, total=total, completed=done, note="")

    def show(self, note: str) -> None:
        words = "  ".join(word for word in (note, self.left()) if word)
        self.bar.update(self.task, completed=self.done, note=words)


class _Lines(_Stage):
    """Plain lines, further and further apart."""

    def __init__(self, write: Callable[[str], None], unit: str) -> None:
        self.write, self.unit = write, unit
        self.first = self.last = time.monotonic()
        super().__init__()

    def show(self, note: str) -> None:
        now = time.monotonic()
        if now - self.last < max(FIRST_LINE, EVERY_SHARE * (now - self.first)):
            return
        self.last = now
        of = "" if self.total is None else f" of {self.total}"
        parts = (f"{self.label}: {self.done}{of} {self.unit}".rstrip(), note, self.left())
        self.write(", ".join(part for part in parts if part))


def time_left(seconds: float, done: int, left: int) -> str:
    """Time left in words, from the mean speed of this run: `done` steps in `seconds`."""
    if left <= 0:
        return ""
    seconds *= left / done
    if seconds < 90:
        return f"about {max(1, round(seconds))} s left"
    minutes = seconds / 60
    return f"about {minutes:.0f} min left" if minutes < 90 else f"about {minutes / 60:.1f} h left"

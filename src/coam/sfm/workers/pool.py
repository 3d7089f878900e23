"""Tasks cut into chunks and handed to workers; one, many or dying workers give the same results.

A worker gets one chunk at a time. Only the process that started the work keeps results. A worker that dies
loses its chunk, which another does again. What comes of an item depends on the item and its files alone,
never on the worker, so any number of workers gives the same.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from coam.errors import CoamError, DataError

# What a worker does: (jobs, file of each name that they read) -> results, as they come.
Work = Callable[[Iterable[Any], Mapping[str, Path]], Iterable[Any]]
MAX_LOSSES_IN_A_ROW = 5  # workers that die without finishing anything: then it is the work, not the worker


def _same(item: Any) -> Any:
    return item


def _nothing(item: Any) -> Sequence[str]:
    return ()


@dataclass(frozen=True)
class Task:
    """What is to be done with many items."""

    start: Callable[[], Work]  # called once by every worker; picklable, as are jobs and results
    items: Sequence[Any]  # in an order that suits caches
    chunk: int  # items that a worker gets at once, and that are lost with it
    job: Callable[[Any], Any] = _same  # item -> what a worker is sent of it, made when it is handed out
    files: Mapping[str, Path] = field(default_factory=dict)  # all that jobs may read, by name
    reads: Callable[[Any], Iterable[str]] = _nothing  # item -> names of the files that its job reads
    network: bool = False  # a worker computes with a network: it is given a GPU where there are any


class Workers(Protocol):
    """Where tasks are done."""

    def run(self, task: Task) -> Iterator[Any]:
        """The results of a task, in any order; workers are there as long as one asks for results."""
        ...

    def close(self) -> None:
        """Give back what was opened for more than one task."""
        ...


class ThisProcess:
    """No workers: everything is done here, one after the other, in the order of the items."""

    def run(self, task: Task) -> Iterator[Any]:
        """The results of a task."""
        if task.items:
            yield from task.start()((task.job(item) for item in task.items), task.files)

    def close(self) -> None:
        """Nothing is open."""


HERE = ThisProcess()


class WorkerDied(Exception):
    """A worker, or the machine under it, is gone with its chunk."""


@dataclass(frozen=True)
class Outcome:
    """What came of a chunk: all its results, or the first error."""

    results: list[Any] = field(default_factory=list)
    error: Exception | None = None


class Bench:
    """A worker's side: the work, started with the first chunk, so that a failure there is its outcome."""

    def __init__(self, start: Callable[[], Work]) -> None:
        self._start = start
        self._work: Work | None = None

    def do(self, jobs: list[Any], paths: Mapping[str, Path]) -> Outcome:
        """Do a chunk. paths: name -> file."""
        try:
            if self._work is None:
                self._work = self._start()
            return Outcome(list(self._work(jobs, paths)))
        except Exception as error:
            return Outcome(error=_portable(error))


def _portable(error: Exception) -> Exception:
    """What an error says, in a form that any process can read; a bug keeps its traceback as text."""
    if isinstance(error, CoamError):
        return CoamError(str(error))
    return RuntimeError("in a worker:\n" + "".join(traceback.format_exception(error)))


class Worker(Protocol):
    """One worker, seen by who gives it work."""

    def give(self, jobs: list[Any], files: Mapping[str, Path]) -> None:
        """A chunk to do. That it is dead is noticed by `take`."""
        ...

    def take(self) -> Outcome:
        """What came of the chunk; waits for it. Raises `WorkerDied`."""
        ...

    def stop(self) -> None:
        """End it, dead or alive."""
        ...


W = TypeVar("W", bound=Worker)


class Pool(ABC, Generic[W]):
    """Workers of one kind: the one way in which chunks are handed out, taken back and done again."""

    def __init__(self, count: int) -> None:
        self.count = count

    @abstractmethod
    def hire(self, task: Task) -> W:
        """A new worker for a task."""

    @abstractmethod
    def first_done(self, busy: Collection[W]) -> W:
        """Wait until one of them has done its chunk, or is dead; gives it."""

    def finished(self, task: Task, chunk: Sequence[Any]) -> None:
        """A chunk is done: what was kept for its items alone is not needed any more."""

    def close(self) -> None:
        """Give back what was opened for more than one task."""

    def run(self, task: Task) -> Iterator[Any]:
        """The results of a task, chunk by chunk as they are done."""
        waiting = [task.items[begin : begin + task.chunk] for begin in range(0, len(task.items), task.chunk)]
        waiting.reverse()  # chunks are taken from the end
        busy: dict[W, Sequence[Any]] = {}
        losses = 0

        def give(worker: W) -> None:
            chunk = waiting.pop()
            busy[worker] = chunk
            names = {name for item in chunk for name in task.reads(item)}
            worker.give([task.job(item) for item in chunk], {name: task.files[name] for name in names})

        try:
            for _ in range(min(self.count, len(waiting))):
                give(self.hire(task))
            while busy:
                worker = self.first_done(busy)
                try:
                    outcome = worker.take()
                except WorkerDied:
                    waiting.append(busy.pop(worker))
                    worker.stop()
                    losses += 1
                    if losses > MAX_LOSSES_IN_A_ROW:
                        raise DataError(
                            f"{losses} workers died one after another; there may be too little memory, "
                            "try fewer --workers"
                        ) from None
                    give(self.hire(task))
                    continue
                losses = 0
                self.finished(task, busy.pop(worker))
                if outcome.error is not None:
                    worker.stop()
                    raise outcome.error
                if waiting:
                    give(worker)  # before the results are kept: that may take a while
                else:
                    worker.stop()
                yield from outcome.results
        finally:
            for worker in busy:
                worker.stop()

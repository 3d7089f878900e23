"""Workers that are processes of this machine."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from multiprocessing import connection, get_context
from pathlib import Path
from typing import Any

from coam.sfm.workers.pool import Bench, Outcome, Pool, Task, Work, WorkerDied


class _Process:
    def __init__(self, start: Callable[[], Work], gpu: int | None) -> None:
        context = get_context("spawn")  # not fork: torch's threads and CUDA do not survive a fork
        self.pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, start, gpu), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe ends when the process does

    def give(self, jobs: list[Any], files: Mapping[str, Path]) -> None:
        with suppress(BrokenPipeError, ConnectionError):
            self.pipe.send((jobs, files))

    def take(self) -> Outcome:
        try:
            outcome: Outcome = self.pipe.recv()
        except (EOFError, OSError) as error:
            raise WorkerDied from error
        return outcome

    def stop(self) -> None:
        self._process.terminate()
        self._process.join()
        self.pipe.close()


class Processes(Pool[_Process]):
    """`count` processes of one thread each. Those that compute with a network take turns on the GPUs."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self._hired = 0

    def hire(self, task: Task) -> _Process:
        """A new process."""
        gpus = sys.modules["torch"].cuda.device_count() if task.network and "torch" in sys.modules else 0
        gpu = self._hired % gpus if gpus > 1 else None  # one GPU needs no choice
        self._hired += 1
        return _Process(task.start, gpu)

    def first_done(self, busy: Collection[_Process]) -> _Process:
        """The first of them that has something to say; the pipe of a dead one ends, which counts."""
        by_pipe: dict[Any, _Process] = {worker.pipe: worker for worker in busy}
        return by_pipe[connection.wait(list(by_pipe))[0]]


def _serve(pipe: Any, start: Callable[[], Work], gpu: int | None) -> None:
    """The life of a worker process: chunks in, outcomes out, until the pipe ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the process that keeps the results
    bench = Bench(_prepared(start, gpu))
    with suppress(EOFError, BrokenPipeError, ConnectionError):
        while True:
            pipe.send(bench.do(*pipe.recv()))


def _prepared(start: Callable[[], Work], gpu: int | None) -> Callable[[], Work]:
    """The start of a worker of one thread. gpu: what the device "cuda" without a number means to it."""

    def prepared() -> Work:
        if gpu is not None:
            import torch

            torch.cuda.set_device(gpu)
        work = start()
        if "torch" in sys.modules:
            sys.modules["torch"].set_num_threads(1)
        if "cv2" in sys.modules:
            sys.modules["cv2"].setNumThreads(1)
        return work

    return prepared

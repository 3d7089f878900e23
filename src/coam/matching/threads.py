"""Work cut by hand into one share per core.

torch cuts each operation into as many parts as it has threads. An operation of a tenth of a millisecond gains
nothing from that: waking the other thread takes as long. Two shares of many small operations, each on one
core, are done in half the time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Result = TypeVar("Result")

_alone = threading.Lock()  # torch's number of threads belongs to the process


def run_side_by_side(tasks: Sequence[Callable[[], Result]]) -> list[Result]:
    """Results of the tasks, each run in a thread of its own in which torch uses one core.

    One task, or a second caller at the same time: they are run here, one after the other. What torch keeps
    per thread, such as no_grad, the tasks must set themselves.
    """
    if len(tasks) == 1 or not _alone.acquire(blocking=False):
        return [task() for task in tasks]
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)  # new threads begin with this number
        with ThreadPoolExecutor(len(tasks)) as pool:
            return [future.result() for future in [pool.submit(task) for task in tasks]]
    finally:
        torch.set_num_threads(threads)
        _alone.release()

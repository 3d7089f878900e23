"""Graceful stop: Ctrl-C and SIGTERM end a run after the step that is under way, so that no step is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType

HINT = b"stopping after this step (once more: at once, without saving)\n"


class Stopped(KeyboardInterrupt):
    """A run was asked to stop and did, with all that it has done saved."""

    def __init__(self, step: int, number: int, first_process: bool = True) -> None:
        super().__init__(f"stopped at step {step}; run the same line again to go on")
        self.step = step
        self.number = number  # of the signal
        self.first_process = first_process  # False in the others of a run on several devices


@dataclass
class StopRequest:
    """Whether someone has asked."""

    number: int | None = None  # of the signal


@contextmanager
def stop_requests() -> Iterator[StopRequest]:
    """Inside, the first SIGINT or SIGTERM is only noted; a second one works as it always does."""
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request  # Python handles signals in the main thread only
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    # What is ignored (a job in the background) or handled outside of Python stays so.
    before = {number: old for number, old in before.items() if old not in (None, signal.SIG_IGN)}

    def put_back() -> None:
        for number, old in before.items():
            signal.signal(number, old)

    def note(number: int, frame: FrameType | None) -> None:
        put_back()
        request.number = number
        if os.isatty(2):
            os.write(2, HINT)  # print is not safe inside a signal handler

    for number in before:
        signal.signal(number, note)
    try:
        yield request
    finally:
        put_back()

"""Jobs: work that tells what it does, ends at its time limit, and answers a tab or a program.

A job is a generator: it yields words while it works and returns its `Answer`. What it raises as a `CoamError`
is shown; a tab gets words and the values of its parts, a program (the HTTP API) the facts and the files.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import wraps
from inspect import signature
from typing import Any

from coam.app.page import refusal
from coam.errors import CoamError, ConfigError, DataError


@dataclass(frozen=True)
class Answer:
    """What a job came to."""

    words: str  # a line of Markdown
    shown: tuple[Any, ...]  # values of the tab's parts
    files: list[str] = field(default_factory=list)  # to download
    facts: dict[str, Any] = field(default_factory=dict)  # the same for programs, in JSON values


Steps = Generator[str, None, Answer]
Job = Callable[..., Steps]
# One queue, one job at a time, whoever asks.
ONE_JOB = {"concurrency_id": "one-job", "concurrency_limit": 1}
PRIVATE = {"api_visibility": "private"}


def with_deadline(job: Callable[..., Generator[Any, Any, Any]], seconds: float) -> Callable[..., Any]:
    """The job, which gets a `DataError` at its first step after so many seconds, and may answer to it.

    A step that runs cannot be ended from outside; sizes and numbers are bounded so that none takes long.
    """

    @wraps(job)
    def limited(*arguments: Any) -> Generator[Any, None, Any]:
        ends = time.monotonic() + seconds
        with closing(job(*arguments)) as steps:
            while True:
                try:
                    step = next(steps)
                except StopIteration as end:
                    return end.value
                yield step
                if time.monotonic() > ends:
                    yield steps.throw(DataError(f"this took more than {seconds:.0f} s, so it was ended"))
                    return None

    return limited


def _started(job: Job, inputs: Sequence[Any]) -> Steps:
    """The job with arguments of the kinds that its signature names: a request may hold anything."""
    for value, wanted in zip(inputs, signature(job).parameters.values(), strict=True):
        kinds = str(wanted.annotation).split(" | ")
        if value is None and ("None" in kinds or kinds[0] == "str"):  # jobs tell which photo is missing
            continue
        if kinds[0] in ("int", "float") and not (isinstance(value, int | float) and math.isfinite(value)):
            raise ConfigError(f"{wanted.name} must be a number")
        if kinds[0] == "str" and not isinstance(value, str):
            raise ConfigError(f"{wanted.name} must be a text")
    return job(*inputs)


def for_tab(gradio: Any, job: Job, parts: int) -> Callable[..., Generator[Any, None, None]]:
    """The job as an event of the page: (words, value of each of `parts` parts, files) at every step.

    The parts are emptied when it starts, so that no answer stands beside photos it is not about.
    """
    nothing = (None,) * parts

    @wraps(job)
    def run(*inputs: Any) -> Generator[Any, None, None]:
        try:
            with closing(_started(job, inputs)) as steps:
                while True:
                    try:
                        words = next(steps)
                    except StopIteration as end:
                        answer: Answer = end.value
                        break
                    yield words, *nothing, None
            yield answer.words, *answer.shown, answer.files or None
        except CoamError as error:
            yield refusal(gradio, error), *nothing, None

    run.__name__ = f"{job.__name__}_tab"  # the endpoint for programs has the job's own name
    return run


def for_programs(gradio: Any, job: Job, seconds: float) -> Callable[..., tuple[dict[str, Any], list[str]]]:
    """The job as an endpoint: its facts and files; an error comes as one line."""

    @wraps(job)
    def run(*inputs: Any) -> tuple[dict[str, Any], list[str]]:
        ends = time.monotonic() + seconds
        try:
            with closing(_started(job, inputs)) as steps:
                while True:
                    try:
                        next(steps)
                    except StopIteration as end:
                        answer: Answer = end.value
                        return answer.facts, answer.files
                    if time.monotonic() > ends:
                        raise DataError(f"this took more than {seconds:.0f} s, so it was ended")
        except CoamError as error:
            raise gradio.Error(str(error), print_exception=False) from error

    return run


def connect_job(
    gradio: Any,
    controls: tuple[Any, Any, Any],
    job: Job,
    inputs: list[Any],
    parts: list[Any],
    files: Any,
    seconds: float,
    cancel: Callable[..., str] = lambda: "cancelled",
) -> Any:
    """Start `job` on a click; gives the event. Cancelling shows what `cancel` returns."""
    start, stop, status = controls
    event = start.click(
        with_deadline(for_tab(gradio, job, len(parts)), seconds),
        inputs,
        [status, *parts, files],
        show_progress_on=[status],
        **ONE_JOB,
        **PRIVATE,
    )
    stop.click(cancel, None, status, cancels=[event], queue=False, **PRIVATE)
    return event

"""Trials of mutants: a process that has torch loaded forks, and the child imports the mutant and runs tests.

Files are never changed. The child compiles the mutated text when the module is imported; importing torch
and the other heavy packages once, before the fork, saves most of the time of a trial.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import math
import os
import resource
import signal
import sys
import threading
import time
from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

HEAVY = (
    "torch",
    "numpy",
    "cv2",
    "h5py",
    "PIL.Image",
    "scipy.spatial",
    "scipy.optimize",
    "pycolmap",
    "poselib",
    "hypothesis",
    "pytest",
    "skimage",
    "safetensors.torch",
    "rich",
    "typer",
    "yaml",
    "matplotlib.pyplot",
)
PASSED, NO_TESTS = 0, 5  # exit codes of pytest
WAITING = 10.0  # times the limit of processor time that the clock may show: other work slows a trial down


def load_heavy_packages() -> None:
    """Everything of others that tests import, before any fork; nothing of coam."""
    for name in HEAVY:
        with suppress(ImportError):
            importlib.import_module(name)
    assert not any(name.split(".")[0] == "coam" for name in sys.modules)


class _Mutant(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, source: str) -> None:
        super().__init__(name, path)
        self.source = source

    def get_code(self, fullname: str) -> CodeType:  # past every cache of compiled files
        return compile(self.source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, name: str, path: str, source: str) -> None:
        self.name, self.path, self.source = name, path, source

    def find_spec(self, fullname: str, path: Any = None, target: ModuleType | None = None) -> Any:
        if fullname != self.name:
            return None
        return importlib.util.spec_from_file_location(
            fullname, self.path, loader=_Mutant(fullname, self.path, self.source)
        )


def try_mutant(module: str, path: str, source: str, tests: list[str], limit: float, log: Path) -> str:
    """What becomes of a mutant: "killed", "survived", or "timeout" after `limit` processor seconds."""
    child = os.fork()
    if child == 0:
        hardest = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(limit), hardest))
        sys.meta_path.insert(0, _Finder(module, path, source))
        _run_tests(["-x", *tests], log)
    code = _wait(child, WAITING * limit)
    if code in (None, -signal.SIGXCPU):
        return "timeout"
    if code == NO_TESTS:
        raise RuntimeError(f"pytest found none of {tests[:3]}...; see {log}")
    return "survived" if code == PASSED else "killed"


def lines_of_tests(room: Path, tests: list[str], log: Path) -> dict[str, Any]:
    """Which test runs which lines of a room: {"seconds": {test: s}, "lines": {file: {line: [tests]}}}.

    What the first test of a file sets up may serve all of that file, so these lines belong to all of them.
    """
    answer = log.with_suffix(".json")
    answer.unlink(missing_ok=True)
    child = os.fork()
    if child == 0:
        _run_tests(tests, log, _LineRecorder(str(room) + os.sep, answer))
    if _wait(child, 3600) != PASSED or not answer.is_file():
        raise SystemExit(f"the tests of {room} do not pass as they are; see {log}")
    found: dict[str, Any] = json.loads(answer.read_text())
    return found


class _LineRecorder:
    """A pytest plug-in that writes `answer` at the end."""

    def __init__(self, below: str, answer: Path) -> None:
        self.below, self.answer = below, answer
        self.seconds: dict[str, float] = {}
        self.hit: dict[tuple[str, str], set[tuple[str, int]]] = defaultdict(set)
        self.now: set[tuple[str, int]] = set()

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        name = frame.f_code.co_filename
        if not name.startswith(self.below):
            return None

        def line(inner: FrameType, event: str, _: Any) -> Any:
            self.now.add((name, inner.f_lineno))
            return line

        self.now.add((name, frame.f_lineno))
        return line

    def record(self, item: Any, phase: str) -> Any:
        import time as clock

        self.now = self.hit[(item.nodeid, phase)]
        began = clock.monotonic()
        threading.settrace(self.trace)
        sys.settrace(self.trace)
        try:
            return (yield)
        finally:
            sys.settrace(None)
            threading.settrace(None)  # type: ignore[arg-type]
            self.seconds[item.nodeid] = self.seconds.get(item.nodeid, 0.0) + clock.monotonic() - began

    def finish(self) -> None:
        files: dict[str, list[str]] = defaultdict(list)
        for test in self.seconds:
            files[test.split("::")[0]].append(test)
        lines: dict[str, dict[int, set[str]]] = defaultdict(lambda: defaultdict(set))
        for (test, phase), hits in self.hit.items():
            for name, number in hits:
                lines[name][number].update(files[test.split("::")[0]] if phase == "setup" else [test])
        plain = {name: {n: sorted(tests) for n, tests in hits.items()} for name, hits in lines.items()}
        self.answer.write_text(json.dumps({"seconds": self.seconds, "lines": plain}))


def _plugin(recorder: _LineRecorder) -> Any:
    import pytest

    class Plugin:
        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_setup(self, item: Any) -> Any:
            return (yield from recorder.record(item, "setup"))

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(self, item: Any) -> Any:
            return (yield from recorder.record(item, "call"))

        def pytest_sessionfinish(self) -> None:
            recorder.finish()

    return Plugin()


def _run_tests(arguments: list[str], log: Path, recorder: _LineRecorder | None = None) -> None:
    """In the child: run pytest and leave, without what the parent would do at its end."""
    code = 1
    try:
        os.setsid()
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        for stream in (1, 2):
            os.dup2(output, stream)
        import pytest

        plugins = [_plugin(recorder)] if recorder else []
        code = int(pytest.main(["-p", "no:cacheprovider", "-p", "no:xdist", *arguments], plugins=plugins))
    finally:
        sys.stdout.flush()
        os._exit(code)


def _wait(child: int, limit: float) -> int | None:
    """The exit code of a child; None where it had to be ended."""
    end = time.monotonic() + limit
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.02)
    with suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None

"""Commands of coam in processes of their own, which can be ended at any moment: `sfm`, `localize`."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence

from coam.errors import DataError

_POLL_SECONDS = 0.4  # between two questions whether a command still runs


class Command:
    """A running `coam` command: what it says, and its end."""

    def __init__(self, arguments: Sequence[str], seconds: float) -> None:
        """It is ended after so many seconds, whoever waits for it."""
        command = [sys.executable, "-m", "coam.app.talkative", *arguments]
        self.lines: list[str] = []
        self.began = time.monotonic()
        self._late = False
        self._process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            errors="replace",
        )  # fmt: skip
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self._limit, self._timer = seconds, threading.Timer(seconds, self._end_late)
        self._timer.daemon = True
        self._timer.start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.strip():
                self.lines.append(line.strip())

    def _end_late(self) -> None:
        self._late = True
        self.stop()

    @property
    def running(self) -> bool:
        return self._process.poll() is None

    @property
    def seconds(self) -> float:
        """Since it began."""
        return time.monotonic() - self.began

    def stop(self) -> None:
        """End the process now; harmless when it has ended."""
        if self.running:
            self._process.kill()
        self._process.wait()
        self._timer.cancel()

    def wait(self) -> Iterator[None]:
        """A step now and then while it runs; then raises what went wrong."""
        while self.running:
            yield
            time.sleep(_POLL_SECONDS)
        self.check()

    def check(self) -> None:
        """Raise what went wrong, once the process has ended."""
        self._process.wait()
        self._timer.cancel()
        self._reader.join(timeout=5)
        if self._late:
            raise DataError(f"this took more than {self._limit:.0f} s, so it was ended")
        if self._process.returncode < 0:
            raise DataError("this was cancelled")
        if self._process.returncode != 0:
            words = next((line for line in reversed(self.lines) if line.startswith("error:")), "")
            raise DataError(words.removeprefix("error:").strip() or "this failed; try other photos")

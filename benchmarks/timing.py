"""Time and memory of an action in this process."""

from __future__ import annotations

import contextlib
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def measure(part: str, stage: str, action: Callable[[], Any], repeats: int, warm_up: bool = True) -> Row:
    """Fastest wall-clock and processor time of `repeats` runs, and the extra memory of the first."""
    reset_peak()
    before = memory("VmRSS")
    if warm_up:
        action()
    wall, processor = [], []
    for _ in range(repeats):
        wall_start, processor_start = time.perf_counter(), time.process_time()
        action()
        wall.append(time.perf_counter() - wall_start)
        processor.append(time.process_time() - processor_start)
    return {
        "part": part,
        "stage": stage,
        "seconds": min(wall),
        "cpu_seconds": min(processor),
        "extra_mib": max(peak() - before, 0) / 1024,
        "peak_mib": peak() / 1024,
    }


def reset_peak() -> None:
    """Let the kernel forget the process's peak memory, where it can (Linux); else peaks only grow."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak() -> int:
    """Largest resident memory since the last reset, in KiB."""
    return memory("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def memory(field: str) -> int:
    """A memory field of this process in KiB; 0 where there is no /proc."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(field)), 0)

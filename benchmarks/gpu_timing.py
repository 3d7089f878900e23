"""Time, memory and kernels of actions on a CUDA device."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

Row = dict[str, Any]
START = time.perf_counter()
CALLS_IN_A_GRAPH = 20


def say(line: str) -> None:
    """A line with the seconds since the start, at once."""
    print(f"[{time.perf_counter() - START:6.1f}] {line}", flush=True)


def line_of(row: Row) -> str:
    """A row as name=value."""
    return "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in row.items())


def milliseconds(action: Callable[[], Any], repeats: int = 10, warm_ups: int = 3) -> float:
    """Median time from call to result on the device."""
    for _ in range(warm_ups):
        action()
    times = []
    for _ in range(repeats):
        torch.cuda.synchronize()
        start = time.perf_counter()
        action()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - start))
    return sorted(times)[len(times) // 2]


def measure(name: str, action: Callable[[], Any], operations: float = 0.0, **facts: Any) -> Row:
    """Time, rate and extra memory of an action, printed."""
    action()
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    elapsed = milliseconds(action)
    extra = (torch.cuda.max_memory_allocated() - before) / 2**20
    row = {"what": name, **facts, "ms": elapsed, "extra_mib": extra}
    if operations:
        row["tflops"] = operations / elapsed / 1e9
    say(line_of(row))
    return row


def microseconds(action: Callable[[], Any]) -> float:
    """Time of one of many calls in a CUDA graph: no start from Python, data as warm as in a network."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(benchmark=True):
        for _ in range(2):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(CALLS_IN_A_GRAPH):
            action()
    times = []
    for _ in range(6):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1e3 * start.elapsed_time(end) / CALLS_IN_A_GRAPH)
    return min(times)


def profile_graphs(graphs: dict[str, Callable[[], Any]], shown: int = 24) -> list[Row]:
    """Kernels by time of each action, which replays one CUDA graph: number, busy and from first to last."""
    rows = []
    for name, action in graphs.items():
        for _ in range(6):
            action()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as report:
            for _ in range(5):
                action()
            torch.cuda.synchronize()
        events = [e for e in report.events() if e.device_type == torch.autograd.DeviceType.CUDA]
        events.sort(key=lambda event: event.time_range.start)
        last = events[-(len(events) // 5) :]
        busy = sum(event.time_range.elapsed_us() for event in last)
        span = last[-1].time_range.end - last[0].time_range.start
        rows.append({"graph": name, "kernels": len(last), "busy_us": busy, "span_us": span})
        say(line_of(rows[-1]))
        kinds: dict[str, list[float]] = {}
        for event in last:
            kinds.setdefault(event.name[:110], []).append(event.time_range.elapsed_us())
        for kind, times in sorted(kinds.items(), key=lambda item: -sum(item[1]))[:shown]:
            say(f"{sum(times):8.1f} us {len(times):4d} {kind}")
    return rows

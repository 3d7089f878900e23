"""Check and time the fused mutual-nearest-neighbour kernel on a CUDA device.

    PYTHONPATH=src python -m benchmarks.gpu_check [--tune] [--json FILE]

Needs torch with CUDA and Triton, nothing else. Ends with code 1 if a check fails.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from coam.matching.mutual import dual_softmax_nearest, mutual_nearest
from coam.matching.mutual_triton import (
    KernelShape,
    _search_slab,
    default_shape,
    fused_mutual_nearest,
)

DEVICE = "cuda"
TORCH_CHUNK = 1024  # a given chunk selects the plain torch path
TYPES = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def tied(count: int, size: int, seed: int) -> Tensor:
    """-1, 0, 1: sums are exact in every type and order, so equal is equal."""
    return (
        torch.randint(-1, 2, (count, size), generator=torch.Generator().manual_seed(seed)).float().to(DEVICE)
    )


def sixteenths(count: int, size: int, seed: int) -> Tensor:
    """Nearly unit vectors of multiples of 1/16: exact as well."""
    return unit(count, size, seed).mul(16).round().div(16)


def unit(count: int, size: int, seed: int) -> Tensor:
    """Random unit vectors."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, size, generator=generator), dim=1).to(DEVICE)


def pairs_of(matches: Any) -> Tensor:
    """One number per match, to compare sets of matches."""
    return matches.index0 * 2**31 + matches.index1


def check() -> list[dict[str, Any]]:
    """The kernel against the plain path; exact inputs must agree exactly, others in 99.9 % of the matches."""
    sizes = [(1, 1), (7, 5), (127, 1000), (4096, 5000), (16384, 16384), (70000, 300)]
    results = []
    for type_name, dtype in TYPES.items():
        for make in (tied, sixteenths, unit):
            for rows, columns in sizes:
                for size in (64, 48) if rows < 10_000 else (64,):
                    a, b = make(rows, size, 1).to(dtype), make(columns, size, 2).to(dtype)
                    fused, plain = mutual_nearest(a, b), mutual_nearest(a, b, chunk=TORCH_CHUNK)
                    common = torch.isin(pairs_of(fused), pairs_of(plain)).sum().item()
                    share = common / max(len(fused), len(plain), 1)
                    exact = make is not unit
                    passed = (
                        share == 1.0 and torch.equal(fused.similarity, plain.similarity)
                        if exact
                        else share > 0.999
                    )
                    results.append(
                        {
                            "type": type_name,
                            "input": make.__name__,
                            "rows": rows,
                            "columns": columns,
                            "size": size,
                            "matches": len(plain),
                            "same": share,
                            "passed": bool(passed),
                        }
                    )
    results += [check_softmax(name, dtype) for name, dtype in TYPES.items()]
    return results


def check_softmax(type_name: str, dtype: torch.dtype) -> dict[str, Any]:
    """Dual softmax probabilities of the kernel against those of the whole matrix in float64."""
    a, b = sixteenths(3000, 64, 3).to(dtype), sixteenths(4001, 64, 4).to(dtype)
    fused = dual_softmax_nearest(a, b, 0.05)
    logits = a.double() @ b.double().t() / 0.05
    expected = (logits.softmax(0) * logits.softmax(1))[fused.index0, fused.index1]
    assert fused.probability is not None
    error = (fused.probability.double() - expected).abs().max().item()
    return {
        "type": type_name,
        "input": "dual softmax",
        "rows": 3000,
        "columns": 4001,
        "size": 64,
        "matches": len(fused),
        "same": 1.0 - error,
        "passed": error < 1e-5,
    }


def milliseconds(action: Callable[[], Any], repeats: int = 10) -> float:
    """Median time on the device after a warm-up."""
    for _ in range(3):
        action()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        action()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


def measure(name: str, action: Callable[[], Any], flops: float) -> dict[str, Any]:
    """Time, rate and extra memory of an action."""
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    elapsed = milliseconds(action)
    extra = torch.cuda.max_memory_allocated() - before
    return {"what": name, "ms": elapsed, "tflops": flops / elapsed / 1e9, "extra_mib": extra / 2**20}


def time_sizes() -> list[dict[str, Any]]:
    """The kernel, the whole search, the plain path and a bare matrix product of the same shape."""
    rows: list[dict[str, Any]] = []
    big = torch.randn(8192, 8192, device=DEVICE, dtype=torch.bfloat16)
    rows.append(measure("matrix product 8192^3, bfloat16 (the ceiling)", lambda: big @ big, 2 * 8192**3))
    for count in (16384, 65536):
        for type_name, dtype in TYPES.items():
            a, b = unit(count, 64, 5).to(dtype), unit(count, 64, 6).to(dtype)
            flops = 2.0 * count * count * 64
            shape = default_shape(dtype, with_sums=False)
            actions: dict[str, Callable[[], Any]] = {
                "kernel and its reductions": lambda a=a, b=b, s=shape: _search_slab(a, b, None, 0.0, s),
                "mutual_nearest, fused": lambda a=a, b=b: mutual_nearest(a, b),
                "dual_softmax_nearest, fused": lambda a=a, b=b: dual_softmax_nearest(a, b, 0.05),
                "mutual_nearest, plain torch": lambda a=a, b=b: mutual_nearest(a, b, chunk=TORCH_CHUNK),
            }
            if count * count * a.element_size() < 20e9:
                actions["torch.matmul, matrix written"] = lambda a=a, b=b: a @ b.t()
            for name, action in actions.items():
                rows.append({"count": count, "type": type_name, **measure(name, action, flops)})
    return rows


def tune() -> list[dict[str, Any]]:
    """Time of the fused search by kernel shape; shapes that do not fit the device say so."""
    a, b = unit(65536, 64, 7).half(), unit(65536, 64, 8).half()
    rows = []
    for block, tile, warps, stages in itertools.product(
        (64, 128, 256), (32, 64, 128, 256), (4, 8), (2, 3, 4)
    ):
        if not 16 <= block * tile / (32 * warps) <= 64:  # entries per thread; three or four registers each
            continue
        shape = KernelShape(block, tile, warps, stages)
        rows.append(
            {
                "block": block,
                "tile": tile,
                "warps": warps,
                "stages": stages,
                "mutual_ms": time_or_inf(lambda s=shape: fused_mutual_nearest(a, b, shape=s)),
                "softmax_ms": time_or_inf(lambda s=shape: fused_mutual_nearest(a, b, 0.05, 1.01, shape=s)),
            }
        )
    return sorted(rows, key=lambda row: row["mutual_ms"])


def time_or_inf(action: Callable[[], Any]) -> float:
    """Milliseconds; infinite where the shape does not fit the device."""
    try:
        return milliseconds(action, repeats=5)
    except Exception as error:
        print(f"left out: {type(error).__name__}: {str(error).splitlines()[0]}")
        return float("inf")


def print_table(title: str, rows: list[dict[str, Any]]) -> None:
    """A plain table; the columns are the keys of the widest row."""
    print(f"\n{title}", flush=True)
    keys = list(max(rows, key=len))
    cells = [[_cell(row.get(key, "")) for key in keys] for row in rows]
    widths = [max(len(key), *(len(line[i]) for line in cells)) for i, key in enumerate(keys)]
    for line in [keys, *cells]:
        print("  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)), flush=True)


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def main() -> None:
    """Check, then time, then write JSON if asked."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tune", action="store_true", help="also time many kernel shapes (minutes)")
    parser.add_argument("--json", type=Path, help="write all figures here")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("there is no CUDA device here")
    report: dict[str, Any] = {"device": torch.cuda.get_device_name(), "torch": torch.__version__}
    print(report)
    report["checks"] = check()
    failed = [row for row in report["checks"] if not row["passed"]]
    print_table(
        f"checks: {len(report['checks']) - len(failed)} passed, {len(failed)} failed", report["checks"]
    )
    report["times"] = time_sizes()
    print_table("times", report["times"])
    if options.tune:
        report["shapes"] = tune()
        print_table("kernel shapes, 65536 x 65536 x 64, float16, whole search", report["shapes"])
    if options.json:
        options.json.write_text(json.dumps(report, indent=1))
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()

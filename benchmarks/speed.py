"""Time and peak memory of encoding, decoding and matching, per preset, and of the search alone.

    python -m benchmarks [--size 512] [--threads 2] [--repeats 3] [--large] [--json FILE]

Every preset runs in a process of its own, so that its memory is its own. All times come from one run on one
machine. Compare ratios between machines: each is processor time over that of the reference, one float32
matrix product of the search's size (16384 x 64 x 16384); other work on the machine disturbs it least.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

PRESETS: dict[str, dict[str, Any]] = {
    "default": {"model": "cdunet-lite1", "preset": "default"},
    "paper": {"model": "cdunet-paper", "preset": "paper"},
    "paper, EfficientNet-B1": {"model": "cdunet-paper-b1", "preset": "paper"},
}
POSITIONS = 128 * 128
Row = dict[str, Any]


def main() -> None:
    """Run every part in a child process, print one table, write JSON beside it if asked."""
    options = parse()
    if options.part:
        torch.set_num_threads(options.threads)
        rows = search_rows(options) if options.part == "search" else preset_rows(options.part, options)
        print(json.dumps(rows))
        return
    reference = run_part("search", options)
    rows = [*reference, *(row for name in PRESETS for row in run_part(name, options))]
    for row in rows:
        row["ratio"] = row["cpu_seconds"] / reference[0]["cpu_seconds"]
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}, {options.size} px")
    print_table(rows)
    if options.json:
        report = {"threads": options.threads, "size": options.size, "torch": torch.__version__, "rows": rows}
        options.json.write_text(json.dumps(report, indent=1))


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512, help="side of both images in pixels")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many runs counts")
    parser.add_argument("--large", action="store_true", help="also the search on 256 x 256 positions")
    parser.add_argument("--json", type=Path, help="write all figures here")
    parser.add_argument("--part", choices=["search", *PRESETS], help=argparse.SUPPRESS)
    return parser.parse_args()


def run_part(part: str, options: argparse.Namespace) -> list[Row]:
    """The rows of one part, measured in a child process."""
    command = [sys.executable, "-m", "benchmarks.speed", "--part", part, "--size", str(options.size)]
    command += ["--threads", str(options.threads), "--repeats", str(options.repeats)]
    command += ["--large"] if options.large else []
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        sys.exit(f"the part {part!r} failed:\n{child.stderr}")
    rows: list[Row] = json.loads(child.stdout.splitlines()[-1])
    return rows


def search_rows(options: argparse.Namespace) -> list[Row]:
    """The search alone, on random descriptors; the first row is the reference of all ratios."""
    from coam.matching import dual_softmax_nearest, mutual_nearest

    a, b = random_units(POSITIONS, 0), random_units(POSITIONS, 1)
    rows = [
        measure(
            "search", "reference: matrix product, 128^2 a side", lambda: product_in_panels(a, b), options
        ),
        measure("search", "two argmax passes over chunks", lambda: two_argmax_passes(a, b), options),
        measure("search", "mutual_nearest", lambda: mutual_nearest(a, b), options),
        measure(
            "search", "dual_softmax_nearest, T = 1/20", lambda: dual_softmax_nearest(a, b, 0.05), options
        ),
        measure(
            "search", "dual_softmax_nearest, T = 1/100", lambda: dual_softmax_nearest(a, b, 0.01), options
        ),
    ]
    if options.large:
        a, b = random_units(4 * POSITIONS, 2), random_units(4 * POSITIONS, 3)
        rows.append(measure("search", "mutual_nearest, 256^2 a side", lambda: mutual_nearest(a, b), options))
        dual = "dual_softmax_nearest, 256^2 a side"
        rows.append(measure("search", dual, lambda: dual_softmax_nearest(a, b, 0.05), options))
    return rows


def preset_rows(name: str, options: argparse.Namespace) -> list[Row]:
    """Encode, decode, match and whole pairs of one preset on the CPU."""
    import coam

    matcher = coam.load_matcher(device="cpu", resolution=options.size, **PRESETS[name])
    image0, image1 = sample_images(options.size)
    with torch.inference_mode():
        first, second = matcher.prepare(image0), matcher.prepare(image1)
        dense = matcher.describe(first, second)
        stages: dict[str, Callable[[], Any]] = {
            "encode one image": lambda: matcher.prepare(image0),
            "decode a pair": lambda: matcher.describe(first, second),
            "match (sample, search, refine)": lambda: matcher.matching.between(*dense),
            "pair, features at hand": lambda: matcher.match(first, second),
            "pair, from pixels": lambda: matcher.match(image0, image1),
        }
        return [measure(name, stage, action, options) for stage, action in stages.items()]


def sample_images(size: int) -> tuple[np.ndarray, np.ndarray]:
    """The bundled real pair at size x size."""
    from PIL import Image

    from coam import samples

    pair = samples.motorcycle()
    left, right = (
        np.asarray(Image.open(path).convert("RGB").resize((size, size))) for path in (pair.left, pair.right)
    )
    return left, right


def random_units(count: int, seed: int) -> torch.Tensor:
    """Random unit descriptors (count, 64)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.nn.functional.normalize(torch.randn(count, 64, generator=generator), dim=1)


def product_in_panels(a: torch.Tensor, b: torch.Tensor) -> None:
    """All similarities, thrown away panel by panel."""
    out = torch.empty(256, len(b))
    for rows in a.split(256):
        torch.mm(rows, b.t(), out=out)


def two_argmax_passes(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The obvious way: best column of every row, best row of every column, compare."""
    forward = torch.cat([(rows @ b.t()).argmax(1) for rows in a.split(1024)])
    backward = torch.cat([(rows @ a.t()).argmax(1) for rows in b.split(1024)])
    return torch.nonzero(backward[forward] == torch.arange(len(a)))


def measure(part: str, stage: str, action: Callable[[], Any], options: argparse.Namespace) -> Row:
    """Fastest wall-clock and processor time of `repeats` runs, and the extra memory of the first."""
    reset_peak()
    before = memory("VmRSS")
    action()
    extra = peak() - before
    wall, processor = [], []
    for _ in range(options.repeats):
        wall_start, processor_start = time.perf_counter(), time.process_time()
        action()
        wall.append(time.perf_counter() - wall_start)
        processor.append(time.process_time() - processor_start)
    return {
        "part": part,
        "stage": stage,
        "seconds": min(wall),
        "cpu_seconds": min(processor),
        "extra_mib": max(extra, 0) / 1024,
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


def print_table(rows: list[Row]) -> None:
    """One line per stage."""
    print(f"{'part':24}{'stage':42}{'seconds':>9}{'cpu s':>8}{'ratio':>8}{'extra MiB':>11}{'peak MiB':>10}")
    for row in rows:
        print(
            f"{row['part']:24}{row['stage']:42}{row['seconds']:9.3f}{row['cpu_seconds']:8.3f}"
            f"{row['ratio']:8.2f}{row['extra_mib']:11.0f}{row['peak_mib']:10.0f}"
        )


if __name__ == "__main__":
    main()

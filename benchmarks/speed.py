"""Time and peak memory on the CPU: search, presets, backends, peers, many photos, growth with size and grid.

    python -m benchmarks [--size 512] [--threads 2] [--repeats 3] [--parts default,peers] [--json FILE]

Every part runs in a process of its own, so that its memory is its own. All times come from one run on one
machine. Compare ratios between machines: each is processor time over that of the reference, one float32
matrix product of the search's size (16384 x 64 x 16384); other work on the machine disturbs it least.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path

# Read when torch is imported; as the command line does
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("GOMP_SPINCOUNT", "3000")

import torch

from benchmarks.parts import PARTS
from benchmarks.timing import Row


def main() -> None:
    """Run every part in a child process, print the table as it grows, then write JSON."""
    options = parse()
    if options.part:
        torch.set_num_threads(options.threads)
        for row in PARTS[options.part](options):
            print(json.dumps(row), flush=True)
        return
    print(f"{platform.machine()}, {options.threads} threads, torch {torch.__version__}, {options.size} px")
    print(f"{'part':24}{'stage':46}{'seconds':>9}{'cpu s':>8}{'ratio':>8}{'extra MiB':>11}{'peak MiB':>10}")
    wanted = [name for name in PARTS if not options.parts or name in options.parts.split(",")]
    rows: list[Row] = []
    for part in wanted if "search" in wanted else ["search", *wanted]:
        for row in run_part(part, options):
            rows.append(with_ratio(row, (rows or [row])[0]))
            print(line_of(rows[-1]), flush=True)
    report = {"threads": options.threads, "size": options.size, "torch": torch.__version__, "rows": rows}
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_text(json.dumps(report, indent=1))
    print(f"figures: {options.json}")


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--size", type=int, default=512, help="side of both images in pixels")
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    parser.add_argument("--repeats", type=int, default=3, help="the fastest of so many runs counts")
    parser.add_argument("--images", type=int, default=50, help="photos of match_many")
    parser.add_argument(
        "--photos", type=Path, help="pairs for the part `pairs`, as `coam eval pair-score` takes them"
    )
    parser.add_argument("--parts", help=f"only these, by comma: {', '.join(PARTS)}")
    parser.add_argument("--large", action="store_true", help="also the search on 256 x 256 positions")
    parser.add_argument("--json", type=Path, default=Path("out/bench.json"), help="where all figures go")
    parser.add_argument("--part", choices=list(PARTS), help=argparse.SUPPRESS)
    return parser.parse_args()


def run_part(part: str, options: argparse.Namespace) -> list[Row]:
    """The rows of one part, measured in a child process."""
    command = [sys.executable, "-m", "benchmarks.speed", "--part", part, "--size", str(options.size)]
    command += ["--threads", str(options.threads), "--repeats", str(options.repeats)]
    command += ["--images", str(options.images)] + (["--large"] if options.large else [])
    command += ["--photos", str(options.photos)] if options.photos else []
    child = subprocess.run(command, capture_output=True, text=True)
    if child.returncode:
        sys.exit(f"the part {part!r} failed:\n{child.stderr}")
    return [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]


def with_ratio(row: Row, reference: Row) -> Row:
    """A row with its processor time over that of the reference, where it was measured."""
    return row if "note" in row else row | {"ratio": row["cpu_seconds"] / reference["cpu_seconds"]}


def line_of(row: Row) -> str:
    """One line of the table."""
    label = f"{row['part']:24}{row['stage']:46}"
    if "note" in row:
        return f"{label}  {row['note']}"
    figures = f"{row['seconds']:9.3f}{row['cpu_seconds']:8.3f}{row['ratio']:8.2f}"
    memory = f"{row['extra_mib']:11.0f}{row['peak_mib']:10.0f}"
    if "pairs" not in row:
        return label + figures + memory
    each = f"  a pair: {row['seconds_per_pair']:.3f} s, {row['cpu_seconds_per_pair']:.3f} cpu s"
    return label + figures + memory + each


if __name__ == "__main__":
    main()

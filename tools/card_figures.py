"""The figures of a model card, by one command: every set at hand, every matcher, one table.

    python tools/card_figures.py DATA OUT [-m cdunet-lite1 -m rootsift] [--workers 2]

DATA may hold dev_homography/ and dev_pose/, aligned_val/ (held-out groups of aligned photos, of which a
benchmark with known homographies is made), aligned_val_fit/ (the same after `coam data align`), posed/
(photos and pairs_with_gt.txt) and pair_score/ (photos and pairs.txt). Each part is the `coam eval` command
that is printed, so a run that was killed goes on where it stopped; what is not there is named. OUT gets all
reports, figures.md and figures.json with 95 % intervals.
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BASELINES = ("sift", "rootsift", "orb")  # they have no pair score
MMA = ("MMA@1", "MMA@3", "MMA@5", "MMA@10", "matches")
POSE = ("AUC@5", "AUC@10", "AUC@20", "rotation acc@10", "translation acc@10", "epipolar precision@1")


@dataclass(frozen=True)
class Part:
    """One `coam eval` command and the figures of its report that a card shows."""

    folder: str  # below DATA
    command: tuple[str, ...]
    figures: tuple[str, ...]
    made_by: str | None = None  # a tool that makes the benchmark out of the folder
    baselines: bool = True


PARTS = (
    Part("dev_homography", ("hpatches",), MMA),
    Part("aligned_val", ("hpatches",), MMA, made_by="make_aligned_benchmark.py"),
    Part("aligned_val_fit", ("hpatches",), MMA, made_by="make_aligned_benchmark.py"),
    Part("dev_pose", ("posed-pairs", "--estimator", "poselib"), POSE),
    Part("posed", ("posed-pairs", "--estimator", "opencv"), POSE),
    Part("posed", ("posed-pairs", "--estimator", "plane"), POSE),
    Part("pair_score", ("pair-score",), ("FPR at 95 % TPR", "ROC AUC"), baselines=False),
)


def call(command: list[str]) -> None:
    """Run a command, printed so that it can be repeated."""
    print("$", shlex.join(command), flush=True)
    subprocess.run(command, check=True)


def root_of(part: Part, data: Path, out: Path) -> Path:
    """The folder that `coam eval` reads; a benchmark is made once."""
    if part.made_by is None:
        return data / part.folder
    made = out / f"benchmark_{part.folder}"
    if not made.is_dir():
        tool = Path(__file__).parent / part.made_by
        call([sys.executable, str(tool), str(data / part.folder), str(made)])
    return made


def evaluate(part: Part, matcher: str, data: Path, out: Path, workers: int) -> dict[str, Any]:
    """The report of one command, also kept as OUT/reports/NAME.json and .html."""
    folder = out / f"{part.folder}_{Path(matcher).stem}"  # estimators share matches
    options = ["--root", str(root_of(part, data, out)), "-m", matcher, "-o", str(folder)]
    if workers > 1:
        options += ["--workers", str(workers)]
    call([sys.executable, "-m", "coam", "eval", *part.command, *options])
    (out / "reports").mkdir(exist_ok=True)
    name = "_".join([folder.name, *(word.strip("-") for word in part.command)])
    for suffix in (".json", ".html"):
        shutil.copy(folder / f"report{suffix}", out / "reports" / f"{name}{suffix}")
    report: dict[str, Any] = json.loads((folder / "report.json").read_text())
    return report


def cell(figure: dict[str, float | None]) -> str:
    """0.911 [0.850, 0.960], or 2048."""
    value, low, high = (figure.get(key) for key in ("value", "low", "high"))
    if value is None:
        return "-"
    if abs(value) >= 10:
        return f"{value:.0f}"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} [{low:.3f}, {high:.3f}]"


def rows_of(part: Part, reports: list[dict[str, Any]]) -> list[list[str]]:
    """One row per table of the report and figure, one column per report; an empty report gives a dash."""
    tables: dict[str, Any] = next(report["tables"] for report in reports if report)
    return [
        [" ".join([part.folder, *part.command]), table, figure]
        + [cell(report.get("tables", {}).get(table, {}).get(figure, {})) for report in reports]
        for table in tables
        for figure in part.figures
        if figure in tables[table]
    ]


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("-m", "--matcher", action="append", help="name or .safetensors file; repeatable")
    parser.add_argument("--workers", type=int, default=1)
    options = parser.parse_args()
    matchers = options.matcher or ["cdunet-lite1", "rootsift"]
    options.out.mkdir(parents=True, exist_ok=True)
    rows = []
    for part in PARTS:
        if not (options.data / part.folder).is_dir():
            print(f"left out: {options.data / part.folder} is not there")
            continue
        reports = [
            evaluate(part, matcher, options.data, options.out, options.workers)
            if part.baselines or matcher not in BASELINES
            else {}
            for matcher in matchers
        ]
        if any(reports):
            rows += rows_of(part, reports)
    head = ["benchmark", "pairs", "figure", *(Path(m).stem for m in matchers)]
    lines = ["| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows]]
    (options.out / "figures.md").write_text("\n".join(lines) + "\n")
    named = [dict(zip(head, row, strict=True)) for row in rows]
    (options.out / "figures.json").write_text(json.dumps(named, indent=1))
    print("\n".join(lines))


if __name__ == "__main__":
    main()

"""Predictions first, figures second: one matcher on one benchmark of photo pairs, and its report."""

from __future__ import annotations

import inspect
import json
import math
import os
import platform
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coam import __version__
from coam.errors import DataError
from coam.evaluation.matchers import MatcherSpec, spec_of, timed_matches
from coam.evaluation.pairs import Array, EvaluationPair, limit_pairs
from coam.evaluation.predictions import PredictionStore, Progress, predict
from coam.evaluation.summary import Figure, Row, json_ready, per_sequence, ranked, summarise
from coam.types import Matches

REPORT = "report.json"
Curve = dict[str, list[tuple[float, float]]]  # label -> (x, y) points


# Figures of one pair from its matches: score(pair, matches, **settings)
ScorePair = Callable[..., Row]


@dataclass(frozen=True)
class PairBenchmark:
    """A benchmark in which a matcher sees pairs of photos and each pair is scored alone."""

    name: str
    protocol: str  # how it is measured and where that comes from, in prose
    score: ScorePair
    figures: tuple[Figure, ...]
    rank_by: str  # entry of the rows that orders pairs from worst to best
    rank_higher_is_better: bool
    match_errors: Callable[[EvaluationPair, Matches], Array] | None = None  # pixels (N,), for pictures
    correct_below: float = 3.0  # pixels below which a picture shows a match as correct
    curves: Callable[[Sequence[EvaluationPair], Sequence[Row]], Curve] | None = None
    curve_axes: tuple[str, str] = ("", "")
    settings: dict[str, Any] = field(
        default_factory=dict
    )  # defaults of what `score` takes besides pair and matches


def evaluate(
    benchmark: PairBenchmark,
    pairs: Sequence[EvaluationPair],
    spec: MatcherSpec,
    output: Path,
    *,
    settings: dict[str, Any] | None = None,
    limit: int | None = None,
    workers: int = 1,
    resume: bool = True,
    resamples: int = 1000,
    progress: Progress = lambda done: None,
) -> dict[str, Any]:
    """Match the pairs (or take the cached matches), score them, write OUTPUT/report.json and return its
    content.

    `settings` change the scoring only (estimator, threshold): the matches are not computed again for them.
    """
    chosen = limit_pairs(pairs, limit)
    applied = benchmark.settings | (settings or {})
    store = PredictionStore(output, spec.identity | {"benchmark": benchmark.name}, resume=resume)
    computed = predict(chosen, spec, store, workers=workers, progress=progress)
    rows, seconds = score_cached(benchmark, chosen, store, applied)
    report = build_report(benchmark, chosen, rows, spec, applied, available=len(pairs), resamples=resamples)
    report["run"] = {"computed_now": computed, "median_seconds_per_pair": _median(seconds)}
    write_json(output / REPORT, report)
    return report


def build_report(
    benchmark: PairBenchmark,
    pairs: Sequence[EvaluationPair],
    rows: Sequence[Row],
    spec: MatcherSpec,
    settings: dict[str, Any],
    *,
    available: int,
    resamples: int = 1000,
) -> dict[str, Any]:
    """Everything that follows from the rows: tables, curves, ranking, and what was run on what."""
    higher = benchmark.rank_higher_is_better
    return {
        "benchmark": benchmark.name,
        "protocol": inspect.cleandoc(benchmark.protocol),
        "matcher": spec.identity | {"licence": spec.licence},
        "settings": settings,
        "pairs_available": available,
        "tables": summarise(pairs, rows, benchmark.figures, resamples=resamples),
        "curves": benchmark.curves(pairs, rows) if benchmark.curves else {},
        "curve_axes": benchmark.curve_axes,
        "sequences": per_sequence(pairs, rows, benchmark.figures),
        "ranking": {
            "by": benchmark.rank_by,
            "worst_first": ranked(pairs, rows, benchmark.rank_by, higher_is_better=higher),
        },
        "pairs": [
            {"name": p.name, "sequence": p.sequence, "subsets": list(p.subsets), "row": encode_row(r)}
            for p, r in zip(pairs, rows, strict=True)
        ],
        "run": {"computed_now": len(pairs), "median_seconds_per_pair": math.nan},
        "environment": environment(),
    }


def measure(
    benchmark: PairBenchmark, pairs: Sequence[EvaluationPair], matcher: Any, **settings: Any
) -> dict[str, dict[str, float]]:
    """subset -> figure -> value, at once and without any file: for use while training.

    `matcher`: anything with match_many(pairs of paths), or a function (path0, path1) -> Matches.
    """
    applied = benchmark.settings | settings
    ready = spec_of(matcher).create()
    found = timed_matches(ready, [(pair.image0, pair.image1) for pair in pairs], "the matcher")
    rows = [benchmark.score(pair, matches, **applied) for pair, matches in zip(pairs, found, strict=True)]
    tables = summarise(pairs, rows, benchmark.figures, resamples=0)
    return {s: {name: entry["value"] for name, entry in figures.items()} for s, figures in tables.items()}


def score_cached(
    benchmark: PairBenchmark,
    pairs: Sequence[EvaluationPair],
    store: PredictionStore,
    settings: dict[str, Any],
) -> tuple[list[Row], list[float]]:
    """Rows and seconds of the pairs from cached matches alone."""
    rows, seconds = [], []
    for pair, matches in zip(pairs, store.read(pairs), strict=True):
        rows.append(benchmark.score(pair, matches, **settings))
        seconds.append(float(matches.meta.get("seconds", math.nan)))
    return rows, seconds


def _median(values: Sequence[float]) -> float:
    finite = [v for v in values if math.isfinite(v)]
    return float(np.median(finite)) if finite else math.nan


def encode_row(row: Row) -> dict[str, float | str]:
    """A row for JSON: infinities and nan as the strings that float() reads back."""
    return {key: float(value) if math.isfinite(value) else str(float(value)) for key, value in row.items()}


def decode_row(row: dict[str, Any]) -> Row:
    """What `encode_row` wrote."""
    return {key: float(value) for key, value in row.items()}


def write_json(path: Path, value: Any) -> None:
    """Plain JSON (nan and infinities as null), written under a temporary name and renamed."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(json.dumps(json_ready(value), indent=1) + "\n")
    os.replace(temporary, path)


def read_report(path: Path) -> dict[str, Any]:
    """The report of an evaluation folder (or of a report.json)."""
    file = path / REPORT if path.is_dir() else path
    try:
        content = json.loads(file.read_text())
    except (OSError, ValueError) as error:
        raise DataError(f"{file} is not a readable report; run coam eval first") from error
    if not isinstance(content, dict) or "benchmark" not in content:
        raise DataError(f"{file} is not a report of coam eval")
    return content


def environment() -> dict[str, Any]:
    """The machine and versions, without host name, user or paths."""
    from importlib.metadata import PackageNotFoundError, version

    versions = {"coam": __version__}
    for package in ("torch", "numpy", "opencv-python-headless", "poselib", "pycolmap", "kornia"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "gpu": _gpu(),
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine()
    )


def _gpu() -> str | None:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else None

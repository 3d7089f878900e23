"""What a benchmark declares, and one matcher on it: matches first (cached), figures second, then a report."""

from __future__ import annotations

import inspect
import math
import os
import platform
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from coam import __version__
from coam.errors import ConfigError, DataError
from coam.evaluation.matchers.by_name import MatcherSpec, spec_of, timed_matches
from coam.evaluation.metrics.tables import (
    CurveMaker,
    Metric,
    Row,
    json_ready,
    per_sequence,
    ranked,
    summarise,
)
from coam.evaluation.pairs import Array, EvaluationPair, limit_pairs
from coam.evaluation.predictions import PredictionStore, Progress, predict
from coam.store import atomic as store
from coam.store.documents import Whole, check_shape, read_json
from coam.store.lock import folder_lock
from coam.types import Matches

REPORT = "report.json"
# Options that the command of a benchmark with `score` shares with others; see coam/cli/eval.py.
PER_PAIR = ("limit", "workers", "resume", "max_matches", "preset")
Report = dict[str, Any]  # the content of report.json


@dataclass(frozen=True)
class Option:
    """An option of a benchmark's command."""

    name: str  # parameter of the function that takes it, and --name
    type: Any  # bool, str, Path, Path | None, ...
    default: Any  # `...`: it must be given
    help: str
    flags: tuple[str, ...] = ()  # what to type instead of --name
    min: float | None = None  # of a number
    max: float | None = None


@dataclass(frozen=True)
class Benchmark:
    """The declaration of a benchmark: its command and its report are made from this.

    Exactly one of `score`, `measure` and `run` measures:

    - score(pair, matches, **settings) -> Row: one pair from its matches, which are cached.
    - measure(matcher, pairs, **options) -> rows, one by one: all pairs, from more than matches.
    - run(loaded, spec, folder, *, say, **options) -> Report: scenes; it writes its report itself.
    """

    name: str
    load: Callable[..., Any]  # load(root, **options) -> list[EvaluationPair], or what `run` takes
    options: tuple[Option, ...] = ()  # of `load`
    score: Callable[..., Row] | None = None
    measure: Callable[..., Iterable[Row]] | None = None
    run: Callable[..., Report] | None = None
    run_options: tuple[Option | str, ...] = ()  # of `measure` or `run`: own ones, or names of shared ones
    shared: tuple[str, ...] = PER_PAIR  # shared options that apply, beside those that every command has
    # --preset -> options (of the matcher, or of `run`) that it stands for where they are not given
    presets: dict[str, dict[str, Any]] = field(default_factory=dict)
    labelled_by: str = "root"  # the option whose folder names the results

    # Reports of pairs (`score`, `measure`)
    metrics: tuple[Metric, ...] = ()
    # What `score` takes further: name -> default, or -> `Option`, which the command then has; `estimator` and
    # `threshold` (of a robust estimator) are options that commands share
    settings: dict[str, Any] = field(default_factory=dict)
    rank_by: str = ""  # entry of the rows that orders pairs from worst to best
    rank_higher_is_better: bool = True
    match_errors: Callable[[EvaluationPair, Matches], Array] | None = None  # pixels (N,), for pictures
    correct_below: float = 3.0  # pixels below which a picture shows a match as correct
    curves: CurveMaker | None = None
    curve_axes: tuple[str, str] = ("", "")

    # Reports of scenes (`run`)
    text: Callable[[Report], str] | None = None  # the report for a terminal
    result: str = ""  # entry of the report that --json prints

    def __post_init__(self) -> None:
        if sum(function is not None for function in (self.score, self.measure, self.run)) != 1:
            raise ValueError(f"{self.name}: declare exactly one of score, measure and run")
        if self.run is None and not (self.metrics and self.rank_by):
            raise ValueError(f"{self.name}: a benchmark of pairs declares metrics and rank_by")

    @property
    def default_settings(self) -> dict[str, Any]:
        """Defaults of `settings`."""
        plain = {key: value.default for key, value in self.settings.items() if isinstance(value, Option)}
        return self.settings | plain

    def filled(self, values: dict[str, Any]) -> dict[str, Any]:
        """The options of a command, those that were not given (None) as its --preset has them."""
        if not self.presets:
            return values
        name = values.get("preset") or "default"
        if name not in self.presets:
            raise ConfigError(f"--preset {name}: choose {', '.join(self.presets)}")
        unset = {key: value for key, value in self.presets[name].items() if values.get(key) is None}
        return values | unset

    @property
    def protocol(self) -> str:
        """How it is measured and where that comes from: the docstring of the file that has `load`."""
        return inspect.cleandoc(sys.modules[self.load.__module__].__doc__ or "")

    def score_pair(self, pair: EvaluationPair, matches: Matches, settings: dict[str, Any]) -> Row:
        """The figures of one pair from its matches."""
        if self.score is None:
            raise ConfigError(f"{self.name} is not measured on matches alone; use `evaluate`")
        row = self.score(pair, matches, **settings)
        if self.rank_by not in row:
            raise ConfigError(f"{self.name}: rank_by is {self.rank_by!r}; its rows have {', '.join(row)}")
        return row


def require_dense(matcher: Any, method: str, benchmark: str) -> None:
    """Refuse a matcher that has no `describe` or `warp`, which only ours have."""
    if not hasattr(matcher, method):
        raise ConfigError(f"{benchmark} needs dense descriptors: give one of our models as --matcher")


def evaluate(
    benchmark: Benchmark,
    pairs: Sequence[EvaluationPair],
    spec: MatcherSpec,
    output: Path,
    *,
    settings: dict[str, Any] | None = None,
    options: dict[str, Any] | None = None,
    limit: int | None = None,
    workers: int = 1,
    resume: bool = True,
    resamples: int = 1000,
    progress: Progress = lambda done: None,
) -> Report:
    """Match the pairs (or take cached matches), score them, write OUTPUT/report.json and return its content.

    `settings` change the scoring only (estimator, threshold): the matches are not computed again for them.
    `options` go to the benchmark's `measure`, which caches nothing.
    """
    chosen = limit_pairs(pairs, limit)
    applied = benchmark.default_settings | (settings or {})
    rows: list[Row] = []
    seconds: list[float] = []
    computed = len(chosen)
    if benchmark.measure is not None:
        for row in benchmark.measure(spec.create(), chosen, **(options or {})):
            rows.append(row)
            progress(1)
    else:
        identity = spec.identity | {"benchmark": benchmark.name}
        with folder_lock(output):
            predictions = PredictionStore(output, identity, resume=resume)
            computed = predict(chosen, spec, predictions, workers=workers, progress=progress)
            for pair, matches in zip(chosen, predictions.read(chosen), strict=True):
                rows.append(benchmark.score_pair(pair, matches, applied))
                seconds.append(float(matches.meta["seconds"]))
    report = build_report(benchmark, chosen, rows, spec, applied, available=len(pairs), resamples=resamples)
    finite = [value for value in seconds if math.isfinite(value)]
    median = float(np.median(finite)) if finite else math.nan
    report["run"] = {"computed_now": computed, "median_seconds_per_pair": median}
    write_json(output / REPORT, report)
    return report


def build_report(
    benchmark: Benchmark,
    pairs: Sequence[EvaluationPair],
    rows: Sequence[Row],
    spec: MatcherSpec,
    settings: dict[str, Any],
    *,
    available: int,
    resamples: int = 1000,
) -> Report:
    """Everything that follows from the rows: tables, curves, ranking, and what was run on what."""
    higher = benchmark.rank_higher_is_better
    return {
        "benchmark": benchmark.name,
        "protocol": benchmark.protocol,
        "matcher": spec.identity | {"licence": spec.licence},
        "settings": settings,
        "pairs_available": available,
        "kinds": {metric.name: metric.kind for metric in benchmark.metrics},
        "tables": summarise(pairs, rows, benchmark.metrics, resamples=resamples),
        "curves": benchmark.curves(pairs, rows) if benchmark.curves else {},
        "curve_axes": benchmark.curve_axes,
        "sequences": per_sequence(pairs, rows, benchmark.metrics),
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
    benchmark: Benchmark, pairs: Sequence[EvaluationPair], matcher: Any, **settings: Any
) -> dict[str, dict[str, float]]:
    """subset -> metric -> value, at once and without any file: for use while training.

    `matcher`: anything with match_many(pairs of paths), or a function (path0, path1) -> Matches.
    """
    applied = benchmark.default_settings | settings
    ready = spec_of(matcher).create()
    found = timed_matches(ready, [(pair.image0, pair.image1) for pair in pairs], "the matcher")
    rows = [benchmark.score_pair(*each, applied) for each in zip(pairs, found, strict=True)]
    tables = summarise(pairs, rows, benchmark.metrics, resamples=0)
    return {s: {name: entry["value"] for name, entry in figures.items()} for s, figures in tables.items()}


def encode_row(row: Row) -> dict[str, float | str]:
    """A row for JSON: infinities and nan as the strings that float() reads back."""
    return {key: float(value) if math.isfinite(value) else str(float(value)) for key, value in row.items()}


def write_json(path: Path, value: Any) -> None:
    """Plain JSON (nan and infinities as null), whole or not at all."""
    store.write_json(path, json_ready(value), indent=1)


# What `coam eval compare` takes from the report of a benchmark of pairs
PAIRS_REPORT = Whole(
    benchmark=str,
    matcher=Whole(matcher=str),
    settings=dict,
    pairs=[Whole(name=str, sequence=str, subsets=[str], row={str: (float, str)})],
    curves={str: [[(float, type(None)), (float, type(None))]]},
    curve_axes=[str, str],
)


def read_report(path: Path) -> Report:
    """The report of an evaluation folder (or of a report.json)."""
    file = path / REPORT if path.is_dir() else path
    content: Report = read_json(file, dict, "run coam eval first")
    if "benchmark" not in content:
        raise DataError(f"{file} is not a report of coam eval")
    try:
        check_shape(content, PAIRS_REPORT if "pairs" in content else {"benchmark": str})
        for pair in content.get("pairs", ()):
            pair["row"] = {name: float(value) for name, value in pair["row"].items()}
    except ValueError as error:
        raise DataError(f"{file}: is damaged ({error}); run coam eval again") from error
    return content


def environment() -> dict[str, Any]:
    """The machine and versions, without host name, user or paths."""
    from importlib.metadata import PackageNotFoundError, version

    import torch

    versions = {"coam": __version__}
    for package in ("torch", "numpy", "opencv-python-headless", "poselib", "pycolmap", "kornia"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    processor = platform.machine()
    with suppress(OSError, StopIteration):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        processor = next(line for line in lines if line.startswith("model name")).split(":", 1)[1].strip()
    return {
        "processor": processor,
        "cores": os.cpu_count(),
        "gpu": torch.cuda.get_device_name(0) if torch.cuda.is_available() else None,
        "system": platform.system(),
        "python": platform.python_version(),
        "versions": versions,
    }

"""Two matchers on the same pairs: a paired bootstrap test of their difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import DataError
from coam.evaluation.metrics.bootstrap import FEW, compare_paired
from coam.evaluation.metrics.tables import Metric, Table, by_subset, on_table
from coam.evaluation.reports.html import curves_figure, interval_below, page, table
from coam.evaluation.reports.text import figure_kind, format_value
from coam.evaluation.runner import Benchmark, Report, write_json
from coam.store.atomic import write_text


def compare_reports(benchmark: Benchmark, a: Report, b: Report, *, resamples: int = 1000) -> dict[str, Any]:
    """Paired bootstrap of b - a on the pairs that two reports of `benchmark` share: subset -> figure."""
    if a["benchmark"] != b["benchmark"]:
        raise DataError(
            f"cannot compare {a['benchmark']} with {b['benchmark']}; give two reports of one benchmark"
        )
    if not benchmark.metrics:
        raise DataError(f"reports of {benchmark.name} have no pairs to compare; read their tables")
    if "pairs" not in a or "pairs" not in b:  # only a report that has them was checked for all the rest
        raise DataError("one of the reports has lost its pairs; run coam eval again")
    if a["settings"] != b["settings"]:
        raise DataError(
            f"the reports were scored differently ({a['settings']} and {b['settings']}); score them alike"
        )
    rows_a = {p["name"]: p for p in a["pairs"]}
    rows_b = {p["name"]: p for p in b["pairs"]}
    shared = [name for name in rows_a if name in rows_b]
    if not shared:
        raise DataError("the two reports have no pair in common")
    try:
        tables = {
            subset: _compare_subset([shared[i] for i in chosen], rows_a, rows_b, benchmark.metrics, resamples)
            for subset, chosen in by_subset(rows_a[name]["subsets"] for name in shared).items()
        }
    except (KeyError, ValueError) as error:
        raise DataError(f"the reports lack figures of some pairs ({error}); run coam eval again") from error
    return {
        "benchmark": a["benchmark"],
        "a": a["matcher"],
        "b": b["matcher"],
        "pairs": len(shared),
        "left_out": len(rows_a) + len(rows_b) - 2 * len(shared),
        "kinds": {metric.name: metric.kind for metric in benchmark.metrics},
        "tables": tables,
        "curves": {
            f"{label}: {report['matcher']['matcher']}": report["curves"]["all"]
            for label, report in (("A", a), ("B", b))
            if report["curves"].get("all")
        },
        "curve_axes": a["curve_axes"],
    }


def _compare_subset(
    names: list[str],
    rows_a: dict[str, Any],
    rows_b: dict[str, Any],
    metrics: Sequence[Metric],
    resamples: int,
) -> dict[str, dict[str, Any]]:
    members_a, members_b = (
        Table.of([{key: float(value) for key, value in rows[name]["row"].items()} for name in names])
        for rows in (rows_a, rows_b)
    )
    sequences = [rows_a[name]["sequence"] for name in names]
    result = {}
    for metric in metrics:
        a, b = on_table(metric, members_a), on_table(metric, members_b)
        compared = compare_paired(a, b, sequences, resamples=resamples)
        whole = np.arange(len(names))
        better = compared.probability_b_better
        result[metric.name] = {
            "a": a(whole),
            "b": b(whole),
            "difference": compared.difference._asdict(),
            "probability_b_better": better if metric.higher_is_better else 1.0 - better,
            "sequences": compared.sequences,
            "too_few": compared.too_few,
            "significant": compared.significant,
        }
    return result


def verdict(entry: dict[str, Any]) -> str:
    """Whether the difference of one figure is real, for people."""
    if entry["too_few"]:
        return "too few to tell"
    return "real" if entry["significant"] else "not settled"


def comparison_text(comparison: dict[str, Any]) -> str:
    """The comparison for a terminal."""
    lines = [
        f"A = {comparison['a']['matcher']}, B = {comparison['b']['matcher']}, "
        f"{comparison['pairs']} shared pairs"
    ]
    for subset, figures in comparison["tables"].items():
        count = next((entry["sequences"] for entry in figures.values()), 0)
        lines.append(f"{subset} ({count} sequence{'' if count == 1 else 's'}):")
        for name, entry in figures.items():
            kind, gap = figure_kind(comparison, name), entry["difference"]
            values = f"A {format_value(entry['a'], kind)}  B {format_value(entry['b'], kind)}"
            value, low, high = (_signed(gap[key], kind) for key in ("value", "low", "high"))
            change = f"B-A {value} [{low}, {high}]"
            lines.append(f"  {name:26s} {values}  {change}  {verdict(entry)}")
    return "\n".join(lines)


def _signed(value: float | None, kind: str) -> str:
    text = format_value(value, kind)
    return f"+{text}" if value is not None and 0 < value < math.inf else text


def write_comparison(comparison: dict[str, Any], folder: Path) -> None:
    """Write compare.json and compare.html."""
    write_json(folder / "compare.json", comparison)
    a, b = (escape(comparison[side]["matcher"]) for side in "ab")
    parts = [f"<h1>{escape(comparison['benchmark'])}: {a} against {b}</h1>"]
    note = "B - A with 95 % bootstrap intervals, same resampled sequences. Real: the interval leaves out 0"
    note += f" and rests on at least {FEW} sequences."
    parts.append(f'<p class="lead">A is {a}, B is {b}; {comparison["pairs"]} shared pairs. {note}</p>')
    if comparison["curves"]:
        parts.append(curves_figure(comparison["curves"], comparison["curve_axes"]))
    for subset, figures in comparison["tables"].items():
        rows = []
        for name, entry in figures.items():
            kind, gap = figure_kind(comparison, name), entry["difference"]
            signed = partial(_signed, kind=kind)
            style = "yes" if entry["significant"] else "no"
            rows.append([
                escape(name), format_value(entry["a"], kind), format_value(entry["b"], kind),
                signed(gap["value"]) + interval_below(gap, signed),
                format_value(entry["probability_b_better"]),
                f'<span class="{style}">{verdict(entry)}</span>',
            ])  # fmt: skip
        head = ["", "A", "B", "B - A", "P(B better)", "difference"]
        parts.append(f"<h2>{escape(subset)}</h2>" + table(head, rows))
    write_text(folder / "compare.html", page("comparison", "".join(parts)))

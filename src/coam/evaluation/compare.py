"""Two matchers on the same pairs: is the difference real?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from coam.errors import DataError
from coam.evaluation.benchmarks import find_benchmark
from coam.evaluation.html_report import page, table
from coam.evaluation.runner import decode_row, read_report, write_json
from coam.evaluation.statistics import FEW, compare_paired
from coam.evaluation.summary import Figure, Table, on_table
from coam.evaluation.svg import line_plot
from coam.evaluation.text_report import figure_kind, format_value


def compare_reports(path_a: Path, path_b: Path, *, resamples: int = 1000) -> dict[str, Any]:
    """Paired comparison b - a on the pairs that both reports hold: subset -> figure -> values."""
    a, b = read_report(path_a), read_report(path_b)
    if a["benchmark"] != b["benchmark"]:
        raise DataError(
            f"cannot compare {a['benchmark']} with {b['benchmark']}; give two reports of one benchmark"
        )
    if a["settings"] != b["settings"]:
        raise DataError(
            f"the reports were scored differently ({a['settings']} and {b['settings']}); score them alike"
        )
    rows_a = {p["name"]: p for p in a["pairs"]}
    rows_b = {p["name"]: p for p in b["pairs"]}
    shared = [name for name in rows_a if name in rows_b]
    if not shared:
        raise DataError("the two reports have no pair in common")
    subsets: dict[str, list[str]] = {"all": shared}
    for name in shared:
        for subset in rows_a[name]["subsets"]:
            subsets.setdefault(subset, []).append(name)
    figures = find_benchmark(a["benchmark"]).figures
    tables = {
        subset: _compare_subset(names, rows_a, rows_b, figures, resamples)
        for subset, names in subsets.items()
    }
    return {
        "benchmark": a["benchmark"],
        "a": a["matcher"],
        "b": b["matcher"],
        "pairs": len(shared),
        "left_out": len(rows_a) + len(rows_b) - 2 * len(shared),
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
    figures: Sequence[Figure],
    resamples: int,
) -> dict[str, dict[str, Any]]:
    members_a = Table.of([decode_row(rows_a[name]["row"]) for name in names])
    members_b = Table.of([decode_row(rows_b[name]["row"]) for name in names])
    sequences = [rows_a[name]["sequence"] for name in names]
    result = {}
    for figure in figures:
        a, b = on_table(figure, members_a), on_table(figure, members_b)
        compared = compare_paired(a, b, sequences, resamples=resamples)
        whole = np.arange(len(names))
        better = compared.probability_b_better
        result[figure.name] = {
            "a": a(whole),
            "b": b(whole),
            "difference": asdict(compared.difference),
            "probability_b_better": better if figure.higher_is_better else 1.0 - better,
            "sequences": compared.sequences,
            "too_few": compared.too_few,
            "significant": compared.significant,
        }
    return result


def _verdict(entry: dict[str, Any]) -> str:
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
            kind, gap = figure_kind(name), entry["difference"]
            values = f"A {format_value(entry['a'], kind)}  B {format_value(entry['b'], kind)}"
            value, low, high = (_signed(gap[key], kind) for key in ("value", "low", "high"))
            change = f"B-A {value} [{low}, {high}]"
            lines.append(f"  {name:26s} {values}  {change}  {_verdict(entry)}")
    return "\n".join(lines)


def _signed(value: float, kind: str) -> str:
    text = format_value(value, kind)
    return f"+{text}" if text not in ("-", "inf") and value > 0 else text


def write_comparison(comparison: dict[str, Any], folder: Path) -> None:
    """Write compare.json and compare.html."""
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "compare.json", comparison)
    a, b = (escape(comparison[side]["matcher"]) for side in "ab")
    parts = [f"<h1>{escape(comparison['benchmark'])}: {a} against {b}</h1>"]
    note = "B - A with 95 % bootstrap intervals, same resampled sequences. Real: the interval leaves out 0"
    note += f" and rests on at least {FEW} sequences."
    parts.append(f'<p class="lead">A is {a}, B is {b}; {comparison["pairs"]} shared pairs. {note}</p>')
    if comparison["curves"]:
        axes = (comparison["curve_axes"][0], comparison["curve_axes"][1])
        parts.append(f"<figure>{line_plot(comparison['curves'], axes)}</figure>")
    for subset, figures in comparison["tables"].items():
        rows = []
        for name, entry in figures.items():
            kind, gap = figure_kind(name), entry["difference"]
            value, low, high = (_signed(gap[key], kind) for key in ("value", "low", "high"))
            interval = "" if "-" in (low, high) else f"<small>{low} to {high}</small>"
            style = "yes" if entry["significant"] else "no"
            rows.append([
                escape(name), format_value(entry["a"], kind), format_value(entry["b"], kind),
                value + interval, format_value(entry["probability_b_better"]),
                f'<span class="{style}">{_verdict(entry)}</span>',
            ])  # fmt: skip
        head = ["", "A", "B", "B - A", "P(B better)", "difference"]
        parts.append(f"<h2>{escape(subset)}</h2>" + table(head, rows))
    (folder / "compare.html").write_text(page("comparison", "".join(parts)), encoding="utf-8")

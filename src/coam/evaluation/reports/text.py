"""Reports as text: the terminal's tables and report.md."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from coam.errors import printable
from coam.evaluation.metrics.bootstrap import FEW
from coam.evaluation.metrics.tables import by_subset
from coam.evaluation.runner import Report


def format_value(value: float | None, kind: str = "share") -> str:
    """A figure as people write it; "-" where it is not defined."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    return f"{value:.0f}" if kind == "count" else f"{value:.3f}"


def figure_kind(report: Report, name: str) -> str:
    """How a figure of a report (or of a comparison) is printed; the number of pairs is a count."""
    return "count" if name == "pairs" else str(report["kinds"].get(name, "share"))


def headlines(report: Report) -> list[str]:
    """The columns of the table of sequences: the number of pairs and the headline figures."""
    return list(next(iter(report["sequences"].values()), {}))


def figure_rows(report: Report, cell: Callable[[dict[str, Any] | None, str], str]) -> list[list[str]]:
    """A row per figure: its name, and what `cell` makes of its entry in each subset."""
    tables = report["tables"]
    names = [name for name in tables["all"] if name != "pairs"]
    return [[n, *(cell(tables[s].get(n), figure_kind(report, n)) for s in tables)] for n in names]


def sequence_rows(report: Report) -> list[list[str]]:
    """A row per sequence: its name and its `headlines`."""
    columns = headlines(report)
    return [
        [name, *(format_value(row[c], figure_kind(report, c)) for c in columns)]
        for name, row in report["sequences"].items()
    ]


def table_text(report: Report) -> str:
    """The tables of a report for a terminal: a row per figure, a column per subset, 95 % intervals."""
    tables = report["tables"]
    header = [f"{report['benchmark']}: {report['matcher']['matcher']}"]
    header += [f"{subset} ({tables[subset]['pairs']['value']:.0f})" for subset in tables]
    lines = [header, *figure_rows(report, figure_cell)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    rows = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(rows + few_note(report))


def few_note(report: Report) -> list[str]:
    """One line that names the tables that rest on too few sequences; none where all rest on enough."""
    pairs = report["pairs"]
    members = by_subset(pair["subsets"] for pair in pairs)
    counts = {subset: len({pairs[i]["sequence"] for i in chosen}) for subset, chosen in members.items()}
    few = [f"{subset} ({count})" for subset, count in counts.items() if count < FEW]
    if not few:
        return []
    return [f"fewer than {FEW} independent sequences, so the intervals say little: {', '.join(few)}"]


def figure_cell(entry: dict[str, float] | None, kind: str) -> str:
    """A figure with its 95 % interval, where it has one: 0.911 [0.850, 0.960]."""
    value, low, high = (format_value((entry or {}).get(key), kind) for key in ("value", "low", "high"))
    return value if "-" in (low, high) else f"{value} [{low}, {high}]"


def markdown_report(report: Report) -> str:
    """report.md: tables with intervals, per-sequence table, worst pairs, what was run on what."""
    tables, matcher = report["tables"], report["matcher"]
    heads = [f"{subset} ({tables[subset]['pairs']['value']:.0f} pairs)" for subset in tables]
    sequences = [[markdown_name(name), *cells] for name, *cells in sequence_rows(report)]
    lines = [
        f"# {report['benchmark']}: {matcher['matcher']}",
        "",
        *markdown_table(["figure", *heads], figure_rows(report, figure_cell)),
        "",
        "95 % bootstrap intervals in brackets; whole sequences are resampled.",
        *few_note(report),
        "",
        "## Sequences",
        "",
        *markdown_table(["sequence", *headlines(report)], sequences),
    ]
    ranking = report["ranking"]
    lines += ["", f"## Worst pairs by {ranking['by']}", ""]
    lines += [
        f"- {markdown_name(name)}: {format_value(value)}" for name, value in ranking["worst_first"][:10]
    ]
    lines += ["", "## How it was measured", "", report["protocol"], ""]
    lines += [f"- settings: {report['settings']}", f"- matcher settings: {matcher['config']}"]
    lines += [f"- weights SHA-256: {matcher['model_hash'] or 'none'}"]
    lines += [f"- pairs: {tables['all']['pairs']['value']:.0f} of {report['pairs_available']}"]
    lines += [f"- median seconds per pair: {format_value(report['run']['median_seconds_per_pair'])}"]
    lines += [f"- {key}: {value}" for key, value in report["environment"].items()]
    return "\n".join(lines) + "\n"


def markdown_name(name: str) -> str:
    """A name of a file or sequence as it stands, whatever Markdown or a terminal would make of it."""
    plain = re.sub(r"([\\`*\[\]<>|&])", r"\\\1", printable(name))
    return plain.replace("\n", "\\n").replace("\t", "\\t")


def markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    """The lines of a table."""
    return [f"| {' | '.join(head)} |", "|" + "---|" * len(head), *(f"| {' | '.join(row)} |" for row in rows)]

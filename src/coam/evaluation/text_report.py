"""Reports as text: the terminal's tables and report.md."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from coam.evaluation.statistics import FEW


def format_value(value: float | None, kind: str = "share") -> str:
    """A figure as people write it; "-" where it is not defined."""
    if value is None or math.isnan(value):
        return "-"
    if math.isinf(value):
        return "inf"
    return f"{value:.0f}" if kind == "count" else f"{value:.3f}"


def figure_kind(name: str) -> str:
    """How a column is printed, from its name: counts as whole numbers, everything else with three digits."""
    return "count" if name in ("matches", "inliers", "pairs") else "share"


def table_text(report: dict[str, Any]) -> str:
    """The tables of a report for a terminal: a row per figure, a column per subset, 95 % intervals."""
    tables = report["tables"]
    names = [name for name in tables["all"] if name != "pairs"]
    header = [f"{report['benchmark']}: {report['matcher']['matcher']}"]
    header += [f"{subset} ({tables[subset]['pairs']['value']:.0f})" for subset in tables]
    lines = [header] + [
        [name] + [_cell(tables[s].get(name), figure_kind(name)) for s in tables] for name in names
    ]
    widths = [max(len(line[i]) for line in lines) for i in range(len(header))]
    rows = ["  ".join(cell.ljust(w) for cell, w in zip(line, widths, strict=True)).rstrip() for line in lines]
    return "\n".join(rows + few_note(report))


def few_note(report: dict[str, Any]) -> list[str]:
    """One line that names the tables that rest on too few sequences; none where all rest on enough."""
    members: dict[str, set[str]] = {"all": set()}
    for pair in report["pairs"]:
        for subset in ("all", *pair["subsets"]):
            members.setdefault(subset, set()).add(pair["sequence"])
    few = [f"{subset} ({len(names)})" for subset, names in members.items() if len(names) < FEW]
    if not few:
        return []
    return [f"fewer than {FEW} independent sequences, so the intervals say little: {', '.join(few)}"]


def _cell(entry: dict[str, float] | None, kind: str) -> str:
    if entry is None:
        return "-"
    low, high = entry.get("low"), entry.get("high")
    text = format_value(entry["value"], kind)
    if low is None or high is None or math.isnan(low) or math.isnan(high):
        return text
    return f"{text} [{format_value(low, kind)}, {format_value(high, kind)}]"


def markdown_report(report: dict[str, Any]) -> str:
    """report.md: tables with intervals, per-sequence table, worst pairs, what was run on what."""
    tables = report["tables"]
    names = [name for name in tables["all"] if name != "pairs"]
    matcher = report["matcher"]
    lines = [f"# {report['benchmark']}: {matcher['matcher']}", ""]
    heads = [f"{subset} ({tables[subset]['pairs']['value']:.0f} pairs)" for subset in tables]
    lines += _markdown_table(
        ["figure", *heads],
        [[name, *(_cell(tables[s].get(name), figure_kind(name)) for s in tables)] for name in names],
    )
    lines += [
        "",
        "95 % bootstrap intervals in brackets; whole sequences are resampled.",
        *few_note(report),
        "",
        "## Sequences",
        "",
    ]
    sequences = report["sequences"]
    columns = list(next(iter(sequences.values()))) if sequences else []
    lines += _markdown_table(
        ["sequence", *columns],
        [[name, *(format_value(row[c], figure_kind(c)) for c in columns)] for name, row in sequences.items()],
    )
    ranking = report["ranking"]
    lines += ["", f"## Worst pairs by {ranking['by']}", ""]
    lines += [f"- {name}: {format_value(value)}" for name, value in ranking["worst_first"][:10]]
    lines += ["", "## How it was measured", "", report["protocol"], ""]
    lines += [f"- settings: {report['settings']}", f"- matcher settings: {matcher['config']}"]
    lines += [f"- weights SHA-256: {matcher['model_hash'] or 'none'}"]
    lines += [f"- pairs: {tables['all']['pairs']['value']:.0f} of {report['pairs_available']}"]
    lines += [f"- median seconds per pair: {format_value(report['run']['median_seconds_per_pair'])}"]
    lines += [f"- {key}: {value}" for key, value in report["environment"].items()]
    return "\n".join(lines) + "\n"


def _markdown_table(head: list[str], rows: list[list[str]]) -> list[str]:
    return [
        "| " + " | ".join(head) + " |",
        "|" + "---|" * len(head),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def write_markdown(report: dict[str, Any], path: Path) -> None:
    """Write report.md."""
    path.write_text(markdown_report(report), encoding="utf-8")

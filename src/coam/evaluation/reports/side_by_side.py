"""Several matchers on the same pairs: one table with intervals, seconds, and for each metric who leads.

The lead of a matcher is "real" where the paired bootstrap of its difference to the runner-up leaves out 0
and rests on enough sequences; see `compare_paired`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from coam.evaluation.reports.compare import compare_reports, verdict
from coam.evaluation.reports.text import few_note, figure_cell, figure_kind, format_value, markdown_table
from coam.evaluation.runner import Benchmark, Report


def side_by_side(benchmark: Benchmark, reports: Sequence[Report]) -> dict[str, Any]:
    """Reports of one benchmark as one; its "tables" are subset -> metric -> {values, leader, verdict}.

    Headline metrics only. `values` has one {value, low, high} for each matcher, in the order of the reports.
    """
    headlines = [metric for metric in benchmark.metrics if metric.headline]
    names = [str(report["matcher"]["matcher"]) for report in reports]
    between = {
        (a, b): compare_reports(benchmark, reports[a], reports[b])["tables"]
        for b in range(len(reports))
        for a in range(b)
    }
    tables: dict[str, dict[str, Any]] = {}
    for subset in reports[0]["tables"]:
        tables[subset] = {}
        for metric in headlines:
            entries = [report["tables"][subset][metric.name] for report in reports]
            order = _best_first([entry["value"] for entry in entries], metric.higher_is_better)
            row: dict[str, Any] = {"values": entries, "leader": None, "verdict": "-"}
            first, second = [*order, 0, 0][:2]
            if len(order) < 2 or metric.kind == "count":  # more matches are not better matches
                pass
            elif entries[first]["value"] == entries[second]["value"]:
                row["verdict"] = "tie"
            else:
                entry = between[min(first, second), max(first, second)][subset][metric.name]
                row |= {"leader": names[first], "verdict": verdict(entry)}
            tables[subset][metric.name] = row
    return {
        "benchmark": benchmark.name,
        "matchers": names,
        "licences": {name: report["matcher"]["licence"] for name, report in zip(names, reports, strict=True)},
        "pairs": {subset: reports[0]["tables"][subset]["pairs"]["value"] for subset in tables},
        "kinds": reports[0]["kinds"],
        "tables": tables,
        "seconds": [report["run"]["median_seconds_per_pair"] for report in reports],
        "notes": few_note(reports[0]),
        "environment": reports[0]["environment"],
    }


def _best_first(values: Sequence[float | None], higher_is_better: bool) -> list[int]:
    known = {i: v for i, v in enumerate(values) if v is not None and not math.isnan(v)}
    return sorted(known, key=lambda i: known[i], reverse=higher_is_better)


def side_by_side_text(table: dict[str, Any]) -> str:
    """The table in Markdown, which a terminal shows as well."""
    blocks = []
    for subset, metrics in table["tables"].items():
        head = [f"{table['benchmark']}, {subset} ({table['pairs'][subset]:.0f} pairs)"]
        rows = []
        for name, row in metrics.items():
            kind = figure_kind(table, name)
            lead = row["verdict"] if row["leader"] is None else f"{row['leader']} ({row['verdict']})"
            rows.append([name, *(figure_cell(entry, kind) for entry in row["values"]), lead])
        rows.append(["seconds a pair, median", *(format_value(s, "value") for s in table["seconds"]), "-"])
        blocks.append("\n".join(_aligned([[*head, *table["matchers"], "leads"], *rows])))
    licences = [f"{name}: {licence}" for name, licence in table["licences"].items() if licence]
    notes = ["95 % bootstrap intervals in brackets; whole sequences are resampled.", *table["notes"]]
    notes += [f"Licences: {'; '.join(licences)}."] if licences else []
    return "\n\n".join([*blocks, "\n".join(notes)])


def _aligned(rows: list[list[str]]) -> list[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    padded = [[cell.ljust(width) for cell, width in zip(row, widths, strict=True)] for row in rows]
    return markdown_table(padded[0], padded[1:])

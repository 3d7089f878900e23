"""Reports as HTML: report.html is one self-contained file that requests nothing from the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from html import escape
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from coam.errors import MissingExtraError
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.predictions import PredictionStore
from coam.evaluation.reports.text import (
    few_note,
    figure_kind,
    figure_rows,
    format_value,
    headlines,
    markdown_report,
    sequence_rows,
)
from coam.evaluation.runner import Benchmark, Report
from coam.store.atomic import write_text

STYLE = """
:root{color-scheme:light dark;--ink:#1c2733;--dim:#5b6875;--line:#d9e0e6;--paper:#fff;--soft:#f4f7f9}
@media(prefers-color-scheme:dark){
:root{--ink:#e6ebf0;--dim:#9aa7b3;--line:#39434d;--paper:#14191e;--soft:#1d242b}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);
max-width:1080px;margin:2rem auto;padding:0 1rem}
h1{font-size:1.7rem;margin-bottom:.2rem}h2{margin-top:2.2rem;font-size:1.2rem}
p.lead{color:var(--dim);margin-top:0}.scroll{overflow-x:auto}
table{border-collapse:collapse;font-variant-numeric:tabular-nums;font-size:.92rem;width:100%}
th,td{padding:.35rem .6rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td:first-child{text-align:left}th{background:var(--soft)}
table.facts td{text-align:left;white-space:normal;overflow-wrap:anywhere}
small{color:var(--dim);display:block;font-size:.78rem}
svg{max-width:760px;width:100%;height:auto;font:13px system-ui,sans-serif}
svg text{fill:var(--ink)}
figure{margin:1rem 0}figcaption{color:var(--dim);font-size:.9rem}
img{max-width:100%;height:auto;border-radius:6px}
pre{white-space:pre-wrap;background:var(--soft);padding:.8rem;border-radius:6px;font-size:.85rem}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}
.card{background:var(--soft);border-radius:8px;padding:.7rem 1rem;min-width:7rem}
.card b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums}
.yes{color:#0072B2;font-weight:600}.no{color:var(--dim)}
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def page(title: str, body: str) -> str:
    """A complete page; the policy forbids every request."""
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta http-equiv="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{STYLE}</style></head>'
        f"<body>{body}</body></html>"
    )


def table(head: Sequence[str], rows: Sequence[Sequence[str]], kind: str = "figures") -> str:
    """An HTML table; cells are HTML already."""
    top = "".join(f'<th scope="col">{cell}</th>' for cell in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    whole = f'<table class="{kind}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="scroll">{whole}</div>'


def curves_figure(curves: Mapping[str, Sequence[Sequence[float]]], axes: Sequence[str]) -> str:
    """Curves of (x, y) points as a figure of the page; one line instead where matplotlib is missing."""
    from coam.viz.curves import curves_svg

    columns = {name: ([p[0] for p in points], [p[1] for p in points]) for name, points in curves.items()}
    try:
        drawn = curves_svg(columns, x_label=axes[0], y_label=axes[1], y_range=(0.0, 1.0))
    except MissingExtraError as error:
        return f"<p>No curves: {escape(str(error))}</p>"
    label = escape(f"{axes[1]} against {axes[0]}")
    return f'<figure role="img" aria-label="{label}">{drawn}</figure>'


def _cell(entry: dict[str, Any] | None, kind: str) -> str:
    if entry is None:
        return "-"
    return format_value(entry["value"], kind) + interval_below(entry, lambda value: format_value(value, kind))


def interval_below(entry: dict[str, Any], shown: Callable[[float | None], str]) -> str:
    """The bootstrap interval of an entry in small print, where there is one."""
    low, high = shown(entry.get("low")), shown(entry.get("high"))
    return "" if "-" in (low, high) else f"<small>{low} to {high}</small>"


def html_report(report: Report, pictures: Mapping[str, str] = MappingProxyType({})) -> str:
    """The whole report as one page; pictures: caption -> data URI."""
    matcher, tables = report["matcher"], report["tables"]
    count = f"{tables['all']['pairs']['value']:.0f} of {report['pairs_available']} pairs"
    parts = [f"<h1>{escape(report['benchmark'])}: {escape(matcher['matcher'])}</h1>"]
    parts += [
        f'<p class="lead">{count}; 95 % bootstrap intervals, whole sequences resampled</p>',
        _cards(report),
    ]
    if report["curves"]:
        parts.append("<h2>Curves</h2>" + curves_figure(report["curves"], report["curve_axes"]))
    heads = [f"{escape(s)}<small>{tables[s]['pairs']['value']:.0f} pairs</small>" for s in tables]
    rows = [[escape(name), *cells] for name, *cells in figure_rows(report, _cell)]
    parts.append("<h2>Figures</h2>" + table(["", *heads], rows))
    parts += [f"<p>{escape(line)}</p>" for line in few_note(report)]
    if pictures:
        shown = "".join(
            f'<figure><img src="{uri}" alt="{caption}"><figcaption>{caption}</figcaption></figure>'
            for caption, uri in ((escape(caption), uri) for caption, uri in pictures.items())
        )
        parts.append(f"<h2>Best, median and worst pairs</h2>{shown}")
    parts += [_sequence_table(report), _worst_table(report["ranking"]), _provenance(report)]
    return page(f"{report['benchmark']}: {matcher['matcher']}", "".join(parts))


def _cards(report: Report) -> str:
    figures = report["tables"]["all"]
    cards = "".join(
        f'<div class="card"><b>{format_value(figures[name]["value"], figure_kind(report, name))}</b>'
        f"{escape(name)}</div>"
        for name in headlines(report)
        if name in figures and name != "pairs"
    )
    return f'<div class="cards">{cards}</div>'


def _sequence_table(report: Report) -> str:
    rows = [[escape(name), *cells] for name, *cells in sequence_rows(report)]
    return "<h2>Sequences</h2>" + table(["sequence", *map(escape, headlines(report))], rows)


def _worst_table(ranking: dict[str, Any]) -> str:
    rows = [[escape(name), format_value(value)] for name, value in ranking["worst_first"][:10]]
    return f"<h2>Worst pairs by {escape(ranking['by'])}</h2>" + table(["pair", escape(ranking["by"])], rows)


def _provenance(report: Report) -> str:
    matcher = report["matcher"]
    facts = {
        "matcher settings": matcher["config"],
        "weights SHA-256": matcher["model_hash"] or "none",
        "licence of the weights": matcher.get("licence")
        or ("this project" if matcher["model_hash"] else "none"),
        "scoring": report["settings"],
        "median seconds per pair": format_value(report["run"]["median_seconds_per_pair"]),
    }
    return provenance(report["protocol"], facts | report["environment"])


def provenance(protocol: str, facts: Mapping[str, Any]) -> str:
    """The last part of a report: how it was measured, and what was run on what."""
    rows = [[escape(key), escape(fact_text(value))] for key, value in facts.items() if value is not None]
    measured = f"<h2>How it was measured</h2><pre>{escape(protocol.strip())}</pre>"
    return measured + "<h2>What was run</h2>" + table(["", ""], rows, "facts")


def fact_text(value: Any) -> str:
    """A setting or version list as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact_text(item)}" for key, item in value.items()) or "none"
    return str(value)


def draw_cases(
    benchmark: Benchmark,
    pairs: Sequence[EvaluationPair],
    store: PredictionStore,
    worst_first: Sequence[tuple[str, float]],
) -> dict[str, str]:
    """Caption -> data URI of the two best, the median and the three worst pairs, right and wrong matches."""
    from coam.viz import draw_matches
    from coam.viz.html import photo_uri

    if benchmark.match_errors is None or not worst_first:
        return {}
    labels: dict[str, str] = {}
    spots = [("best", -1), ("second best", -2), ("median", len(worst_first) // 2)]
    for label, index in [*spots, ("worst", 0), ("second worst", 1), ("third worst", 2)]:
        if -len(worst_first) <= index < len(worst_first):
            labels.setdefault(worst_first[index][0], label)
    by_name, values = {pair.name: pair for pair in pairs}, dict(worst_first)
    chosen = [by_name[name] for name in labels]
    pictures = {}
    for pair, matches in zip(chosen, store.read(chosen), strict=True):
        correct = np.asarray(benchmark.match_errors(pair, matches) <= benchmark.correct_below)
        drawn = draw_matches(matches, (pair.image0, pair.image1), correct=correct, width=1200, max_lines=150)
        share = f"{int(correct.sum())} of {len(correct)} matches within {benchmark.correct_below:g} px"
        figure = f"{benchmark.rank_by} {format_value(values[pair.name])}"
        caption = f"{labels[pair.name]}: {pair.name}, {figure}, {share}"
        pictures[caption] = photo_uri(np.asarray(drawn.convert("RGB")), quality=82)
    return pictures


def write_reports(
    benchmark: Benchmark, pairs: Sequence[EvaluationPair], report: Report, folder: Path
) -> None:
    """Write report.html and report.md beside report.json; pictures come from the cached matches."""
    drawn: dict[str, str] = {}
    if benchmark.match_errors is not None:
        identity = {key: report["matcher"][key] for key in ("matcher", "config", "model_hash")}
        store = PredictionStore(folder, identity | {"benchmark": benchmark.name})
        drawn = draw_cases(benchmark, pairs, store, report["ranking"]["worst_first"])
    write_text(folder / "report.html", html_report(report, drawn))
    write_text(folder / "report.md", markdown_report(report))

"""report.html: one file that shows everything and asks nothing of the network."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.predictions import PredictionStore
from coam.evaluation.runner import PairBenchmark
from coam.evaluation.svg import line_plot
from coam.evaluation.text_report import few_note, figure_kind, format_value, write_markdown
from coam.types import Matches

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
svg text{fill:var(--ink)}svg .grid{stroke:var(--line)}
figure{margin:1rem 0}figcaption{color:var(--dim);font-size:.9rem}
img{max-width:100%;height:auto;border-radius:6px}
pre{white-space:pre-wrap;background:var(--soft);padding:.8rem;border-radius:6px;font-size:.85rem}
.cards{display:flex;flex-wrap:wrap;gap:.8rem;margin:1rem 0}
.card{background:var(--soft);border-radius:8px;padding:.7rem 1rem;min-width:7rem}
.card b{display:block;font-size:1.5rem;font-variant-numeric:tabular-nums}
.yes{color:#0072B2;font-weight:600}.no{color:var(--dim)}
"""
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


@dataclass(frozen=True)
class Picture:
    """A pair drawn for the report."""

    caption: str
    data_uri: str


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


def _cell(entry: dict[str, Any] | None, name: str) -> str:
    if entry is None:
        return "-"
    kind = figure_kind(name)
    low, high = format_value(entry.get("low"), kind), format_value(entry.get("high"), kind)
    interval = "" if "-" in (low, high) else f"<small>{low} to {high}</small>"
    return escape(format_value(entry["value"], kind)) + interval


def html_report(report: dict[str, Any], pictures: Sequence[Picture] = ()) -> str:
    """The whole report as one page."""
    matcher, tables = report["matcher"], report["tables"]
    names = [name for name in tables["all"] if name != "pairs"]
    count = f"{tables['all']['pairs']['value']:.0f} of {report['pairs_available']} pairs"
    parts = [f"<h1>{escape(report['benchmark'])}: {escape(matcher['matcher'])}</h1>"]
    parts += [
        f'<p class="lead">{count}; 95 % bootstrap intervals, whole sequences resampled</p>',
        _cards(report),
    ]
    if report["curves"]:
        axes = (report["curve_axes"][0], report["curve_axes"][1])
        parts.append(f"<h2>Curves</h2><figure>{line_plot(report['curves'], axes)}</figure>")
    heads = [f"{escape(s)}<small>{tables[s]['pairs']['value']:.0f} pairs</small>" for s in tables]
    rows = [[escape(name), *(_cell(tables[s].get(name), name) for s in tables)] for name in names]
    parts.append("<h2>Figures</h2>" + table(["", *heads], rows))
    parts += [f"<p>{escape(line)}</p>" for line in few_note(report)]
    if pictures:
        shown = "".join(
            f'<figure><img src="{p.data_uri}" alt="{escape(p.caption)}">'
            f"<figcaption>{escape(p.caption)}</figcaption></figure>"
            for p in pictures
        )
        parts.append(f"<h2>Best, median and worst pairs</h2>{shown}")
    parts += [_sequence_table(report["sequences"]), _worst_table(report["ranking"]), _provenance(report)]
    return page(f"{report['benchmark']}: {matcher['matcher']}", "".join(parts))


def _cards(report: dict[str, Any]) -> str:
    wanted = ("MMA@3", "AUC@5", "recall@5", "homography AUC@3", "AUC@20", "ROC AUC", "matches")
    figures = report["tables"]["all"]
    cards = "".join(
        f'<div class="card"><b>{format_value(figures[name]["value"], figure_kind(name))}</b>'
        f"{escape(name)}</div>"
        for name in wanted
        if name in figures
    )
    return f'<div class="cards">{cards}</div>'


def _sequence_table(sequences: dict[str, dict[str, float]]) -> str:
    if not sequences:
        return ""
    columns = list(next(iter(sequences.values())))
    rows = [
        [escape(name), *(format_value(row[c], figure_kind(c)) for c in columns)]
        for name, row in sequences.items()
    ]
    return "<h2>Sequences</h2>" + table(["sequence", *(escape(c) for c in columns)], rows)


def _worst_table(ranking: dict[str, Any]) -> str:
    rows = [[escape(name), format_value(value)] for name, value in ranking["worst_first"][:10]]
    return f"<h2>Worst pairs by {escape(ranking['by'])}</h2>" + table(["pair", escape(ranking["by"])], rows)


def _provenance(report: dict[str, Any]) -> str:
    matcher = report["matcher"]
    entries = {
        "matcher settings": matcher["config"],
        "weights SHA-256": matcher["model_hash"] or "none",
        "licence of the weights": matcher.get("licence")
        or ("this project" if matcher["model_hash"] else "none"),
        "scoring": report["settings"],
        "median seconds per pair": format_value(report["run"]["median_seconds_per_pair"]),
    } | report["environment"]
    rows = [[escape(key), escape(fact_text(value))] for key, value in entries.items() if value is not None]
    measured = f"<h2>How it was measured</h2><pre>{escape(report['protocol'])}</pre>"
    return measured + "<h2>What was run</h2>" + table(["", ""], rows, "facts")


def fact_text(value: Any) -> str:
    """A setting or version list as people read it."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {fact_text(item)}" for key, item in value.items()) or "none"
    return str(value)


def draw_cases(
    benchmark: PairBenchmark,
    pairs: Sequence[EvaluationPair],
    store: PredictionStore,
    worst_first: Sequence[tuple[str, float]],
) -> list[Picture]:
    """Pictures of the two best, the median and the three worst pairs, right and wrong matches told apart."""
    if benchmark.match_errors is None or not worst_first:
        return []
    by_name = {pair.name: pair for pair in pairs}
    chosen: dict[str, str] = {}
    spots = [("best", -1), ("second best", -2), ("median", len(worst_first) // 2)]
    for label, index in [*spots, ("worst", 0), ("second worst", 1), ("third worst", 2)]:
        if -len(worst_first) <= index < len(worst_first):
            chosen.setdefault(worst_first[index][0], label)
    values = dict(worst_first)
    names = list(chosen)
    cached = list(store.read([by_name[name] for name in names]))
    return [
        _draw_case(benchmark, by_name[name], matches, chosen[name], values[name])
        for name, matches in zip(names, cached, strict=True)
    ]


def _draw_case(
    benchmark: PairBenchmark, pair: EvaluationPair, matches: Matches, label: str, value: float
) -> Picture:
    from coam.viz import draw_matches

    assert benchmark.match_errors is not None
    correct = np.asarray(benchmark.match_errors(pair, matches) <= benchmark.correct_below)
    drawn = draw_matches(matches, (pair.image0, pair.image1), correct=correct, width=1200, max_lines=150)
    buffer = io.BytesIO()
    drawn.convert("RGB").save(buffer, "JPEG", quality=82)
    uri = "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")
    share = f"{int(correct.sum())} of {len(correct)} matches within {benchmark.correct_below:g} px"
    return Picture(f"{label}: {pair.name}, {benchmark.rank_by} {format_value(value)}, {share}", uri)


def write_reports(
    benchmark: PairBenchmark,
    pairs: Sequence[EvaluationPair],
    report: dict[str, Any],
    folder: Path,
    *,
    pictures: bool = True,
) -> None:
    """Write report.html and report.md beside report.json and predictions.h5."""
    drawn: list[Picture] = []
    if pictures:
        identity = {key: report["matcher"][key] for key in ("matcher", "config", "model_hash")}
        store = PredictionStore(folder, identity | {"benchmark": benchmark.name})
        drawn = draw_cases(benchmark, pairs, store, report["ranking"]["worst_first"])
    (folder / "report.html").write_text(html_report(report, drawn), encoding="utf-8")
    write_markdown(report, folder / "report.md")

"""From rows of single pairs to tables: figures per subset with intervals, per sequence, worst cases."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.statistics import Statistic, bootstrap

Row = dict[str, float]  # the figures of one pair by name
Array = npt.NDArray[np.float64]


class Table:
    """Rows as columns, and any selection of them; the bootstrap asks for thousands of selections."""

    def __init__(self, columns: Mapping[str, Array], index: npt.NDArray[np.int64] | None = None) -> None:
        self.columns, self.index = columns, index

    @staticmethod
    def of(rows: Sequence[Row]) -> Table:
        """The table of some rows, which all have the same entries."""
        keys = rows[0] if rows else {}
        return Table({key: np.asarray([row[key] for row in rows], dtype=np.float64) for key in keys})

    def __getitem__(self, key: str) -> Array:
        column = self.columns[key]
        return column if self.index is None else column[self.index]

    def take(self, index: npt.NDArray[np.int64]) -> Table:
        """The rows at `index`, of a table that is not a selection itself."""
        return Table(self.columns, index)


Summary = Callable[[Table], float]


@dataclass(frozen=True)
class Figure:
    """A column of a table: how to compute it from rows and how to print it."""

    name: str
    compute: Summary
    kind: str = "share"  # "share" in [0, 1], "count", "degrees", "pixels", "value"
    headline: bool = False  # shown first
    higher_is_better: bool = True


def mean_of(key: str) -> Summary:
    """Mean over pairs of one entry of their rows; pairs where it is nan (not defined) are left out."""

    def summary(table: Table) -> float:
        values = table[key][~np.isnan(table[key])]
        return float(values.mean()) if len(values) else float("nan")

    return summary


def median_of(key: str) -> Summary:
    """Lower median over pairs of one entry of their rows (failures are inf and count)."""

    def summary(table: Table) -> float:
        values = table[key][~np.isnan(table[key])]
        return float(np.sort(values)[(len(values) - 1) // 2]) if len(values) else float("nan")

    return summary


def on_table(figure: Figure, table: Table) -> Statistic:
    """The figure as a function of pair indices, as the bootstrap wants it."""
    return lambda index: figure.compute(table.take(index))


def summarise(
    pairs: Sequence[EvaluationPair], rows: Sequence[Row], figures: Sequence[Figure], *, resamples: int = 1000
) -> dict[str, dict[str, dict[str, float]]]:
    """subset -> figure -> {value, low, high}; "all" first, then the subsets in order of appearance."""
    tables: dict[str, list[int]] = {"all": list(range(len(pairs)))}
    for index, pair in enumerate(pairs):
        for subset in pair.subsets:
            tables.setdefault(subset, []).append(index)
    result: dict[str, dict[str, dict[str, float]]] = {}
    for subset, chosen in tables.items():
        members = Table.of([rows[i] for i in chosen])
        sequences = [pairs[i].sequence for i in chosen]
        result[subset] = {
            figure.name: asdict(bootstrap(on_table(figure, members), sequences, resamples=resamples))
            for figure in figures
        }
        result[subset]["pairs"] = {"value": float(len(chosen)), "low": float("nan"), "high": float("nan")}
    return result


def per_sequence(
    pairs: Sequence[EvaluationPair], rows: Sequence[Row], figures: Sequence[Figure]
) -> dict[str, dict[str, float]]:
    """sequence -> headline figure -> value."""
    members: dict[str, list[Row]] = {}
    for pair, row in zip(pairs, rows, strict=True):
        members.setdefault(pair.sequence, []).append(row)
    return {
        name: {"pairs": float(len(group))}
        | {f.name: f.compute(Table.of(group)) for f in figures if f.headline}
        for name, group in members.items()
    }


def ranked(
    pairs: Sequence[EvaluationPair], rows: Sequence[Row], key: str, *, higher_is_better: bool
) -> list[tuple[str, float]]:
    """(pair name, value) from worst to best by one entry of the rows; ties by name."""
    values: list[tuple[str, float]] = [(p.name, float(r[key])) for p, r in zip(pairs, rows, strict=True)]
    sign = 1.0 if higher_is_better else -1.0

    def order(item: tuple[str, float]) -> tuple[float, str]:
        worst = -np.inf if np.isnan(item[1]) else sign * item[1]
        return (float(worst), item[0])

    return sorted(values, key=order)


def json_ready(value: Any) -> Any:
    """The same value with nan and infinities as None, so that the file is plain JSON."""
    if isinstance(value, dict):
        return {str(k): json_ready(v) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [json_ready(v) for v in value]
    if isinstance(value, (np.floating, float)):
        return float(value) if np.isfinite(value) else None
    if isinstance(value, np.integer):
        return int(value)
    return value

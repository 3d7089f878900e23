"""From the figures of single pairs to tables, per subset with intervals and per sequence, and curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.evaluation.metrics.bootstrap import Statistic, bootstrap, indices_by
from coam.evaluation.metrics.measures import error_auc
from coam.evaluation.pairs import EvaluationPair

Row = dict[str, float]  # the figures of one pair by name
Array = npt.NDArray[np.float64]
Curves = dict[str, list[tuple[float, float]]]  # label -> (x, y) points
CurveMaker = Callable[[Sequence[EvaluationPair], Sequence[Row]], Curves]


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
class Metric:
    """A column of a table: how to compute it from rows and how to print it."""

    name: str
    compute: Summary
    kind: str = "share"  # "share" in [0, 1], "count" (printed as a whole number), "degrees", "value"
    headline: bool = False  # shown first and per sequence
    higher_is_better: bool = True


def mean_of(key: str) -> Summary:
    """Mean over pairs of one entry of their rows; pairs where it is nan (not defined) are left out."""
    return _over_pairs(key, np.mean)


def median_of(key: str) -> Summary:
    """Lower median over pairs of one entry of their rows (failures are inf and count)."""
    return _over_pairs(key, lambda values: np.percentile(values, 50, method="inverted_cdf"))


def _over_pairs(key: str, statistic: Callable[[Array], Any]) -> Summary:
    def summary(table: Table) -> float:
        values = table[key][~np.isnan(table[key])]
        return float(statistic(values)) if len(values) else float("nan")

    return summary


def auc_of(key: str, limit: float) -> Summary:
    """Area under the recall curve of an error up to `limit`, see `error_auc`."""
    return lambda table: error_auc(table[key], limit)


def on_table(metric: Metric, table: Table) -> Statistic:
    """The metric as a function of pair indices, as the bootstrap wants it."""
    return lambda index: metric.compute(table.take(index))


def by_subset(subsets: Iterable[Sequence[str]]) -> dict[str, list[int]]:
    """subset -> indices of its pairs, from the subsets of each pair; "all" first, then as they appear."""
    members: dict[str, list[int]] = {"all": []}
    for index, names in enumerate(subsets):
        for subset in ("all", *names):
            members.setdefault(subset, []).append(index)
    return members


def summarise(
    pairs: Sequence[EvaluationPair], rows: Sequence[Row], metrics: Sequence[Metric], *, resamples: int = 1000
) -> dict[str, dict[str, dict[str, float]]]:
    """subset -> metric -> {value, low, high} with 95 % bootstrap intervals."""
    result: dict[str, dict[str, dict[str, float]]] = {}
    for subset, chosen in by_subset(pair.subsets for pair in pairs).items():
        members = Table.of([rows[i] for i in chosen])
        sequences = [pairs[i].sequence for i in chosen]
        result[subset] = {
            metric.name: bootstrap(on_table(metric, members), sequences, resamples=resamples)._asdict()
            for metric in metrics
        }
        result[subset]["pairs"] = {"value": float(len(chosen)), "low": float("nan"), "high": float("nan")}
    return result


def per_sequence(
    pairs: Sequence[EvaluationPair], rows: Sequence[Row], metrics: Sequence[Metric]
) -> dict[str, dict[str, float]]:
    """sequence -> headline metric -> value."""
    result = {}
    for name, members in indices_by(pair.sequence for pair in pairs).items():
        table = Table.of([rows[i] for i in members])
        values = {metric.name: metric.compute(table) for metric in metrics if metric.headline}
        result[name] = {"pairs": float(len(members))} | values
    return result


def ranked(
    pairs: Sequence[EvaluationPair], rows: Sequence[Row], key: str, *, higher_is_better: bool
) -> list[tuple[str, float]]:
    """(pair name, value) from worst to best by one entry of the rows; ties by name."""
    sign = 1.0 if higher_is_better else -1.0
    values = [(pair.name, float(row[key])) for pair, row in zip(pairs, rows, strict=True)]
    return sorted(values, key=lambda item: (-np.inf if np.isnan(item[1]) else sign * item[1], item[0]))


def mean_curves(key: str, thresholds: Sequence[float]) -> CurveMaker:
    """subset -> (threshold, mean over pairs of the row entry "key@threshold")."""
    return _curves(thresholds, lambda row, threshold: row[f"{key}@{threshold:g}"])


def recall_curves(key: str, limit: float, steps: int = 40) -> CurveMaker:
    """subset -> (error, share of pairs with at most that error): the cumulative distribution of an error."""
    return _curves(np.linspace(0, limit, steps + 1).tolist(), lambda row, error: row[key] <= error)


def _curves(xs: Sequence[float], value: Callable[[Row, float], float]) -> CurveMaker:
    """subset -> (x, mean over pairs of value(row, x))."""

    def curves(pairs: Sequence[EvaluationPair], rows: Sequence[Row]) -> Curves:
        return {
            subset: [(x, float(np.mean([value(rows[i], x) for i in members]))) for x in xs]
            for subset, members in by_subset(pair.subsets for pair in pairs).items()
        }

    return curves


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

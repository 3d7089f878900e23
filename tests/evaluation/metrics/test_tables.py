"""From rows of single pairs to tables: every summary by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coam.evaluation.metrics.bootstrap import indices_by
from coam.evaluation.metrics.tables import (
    Metric,
    Table,
    auc_of,
    by_subset,
    json_ready,
    mean_curves,
    mean_of,
    median_of,
    on_table,
    per_sequence,
    ranked,
    recall_curves,
    summarise,
)
from coam.evaluation.pairs import EvaluationPair

NAN, INF = float("nan"), float("inf")


def pair(name: str, sequence: str, *subsets: str) -> EvaluationPair:
    return EvaluationPair(name, Path("a"), Path("b"), sequence, subsets=subsets)


PAIRS = [pair("p", "one", "easy"), pair("q", "one", "hard"), pair("r", "two", "easy", "night")]
ROWS = [{"error": 1.0, "share": 0.2}, {"error": 3.0, "share": NAN}, {"error": INF, "share": 0.6}]


def test_means_and_medians_leave_out_what_is_not_defined() -> None:
    table = Table.of(ROWS)
    assert mean_of("share")(table) == pytest.approx(0.4)
    assert median_of("error")(table) == 3.0  # a failure counts
    assert median_of("error")(table.take(np.array([0, 1]))) == 1.0  # the lower of two
    assert np.isnan(mean_of("share")(table.take(np.array([1]))))
    assert np.isnan(median_of("share")(table.take(np.array([1]))))
    # (0, 0), (1, 1/3), (3, 2/3), then flat to 5: 1/6 + 1 + 4/3 = 2.5 of 5
    assert auc_of("error", 5)(table) == pytest.approx(0.5)
    assert on_table(Metric("m", mean_of("error")), table)(np.array([1, 1, 0])) == pytest.approx(7 / 3)
    assert Table.of([]).columns == {}


def test_pairs_by_subset_and_sequence() -> None:
    assert by_subset(p.subsets for p in PAIRS) == {
        "all": [0, 1, 2], "easy": [0, 2], "hard": [1], "night": [2],
    }  # fmt: skip
    assert {k: v.tolist() for k, v in indices_by("abca").items()} == {"a": [0, 3], "b": [1], "c": [2]}


def test_summaries_have_values_intervals_and_numbers_of_pairs() -> None:
    metrics = [Metric("mean share", mean_of("share"), headline=True), Metric("AUC", auc_of("error", 5))]
    found = summarise(PAIRS, ROWS, metrics, resamples=200)
    assert list(found) == ["all", "easy", "hard", "night"]
    assert found["all"]["mean share"]["value"] == pytest.approx(0.4)
    assert (found["all"]["mean share"]["low"], found["all"]["mean share"]["high"]) == (0.2, 0.6)
    assert found["easy"]["AUC"]["value"] == pytest.approx((0.25 + 2.0) / 5)
    assert {name: table["pairs"]["value"] for name, table in found.items()} == {
        "all": 3, "easy": 2, "hard": 1, "night": 1,
    }  # fmt: skip
    assert np.isnan(found["night"]["mean share"]["low"])  # one sequence has no interval
    assert np.isnan([found["all"]["pairs"][key] for key in ("low", "high")]).all()
    of_sequences = per_sequence(PAIRS, ROWS, metrics)
    assert of_sequences == {"one": {"pairs": 2, "mean share": 0.2}, "two": {"pairs": 1, "mean share": 0.6}}


def test_pairs_from_worst_to_best() -> None:
    assert [name for name, _ in ranked(PAIRS, ROWS, "error", higher_is_better=False)] == ["r", "q", "p"]
    assert [name for name, _ in ranked(PAIRS, ROWS, "error", higher_is_better=True)] == ["p", "q", "r"]
    for higher in (True, False):
        assert ranked(PAIRS, ROWS, "share", higher_is_better=higher)[0][0] == "q"  # not defined: worst
    same = [row | {"error": 1.0} for row in ROWS]
    assert [name for name, _ in ranked(PAIRS[::-1], same, "error", higher_is_better=True)] == ["p", "q", "r"]


def test_curves_by_hand() -> None:
    rows = [{"mma@1": 0.2, "mma@3": 0.5}, {"mma@1": 0.4, "mma@3": 0.5}, {"mma@1": 0.9, "mma@3": 1.0}]
    found = mean_curves("mma", [1, 3.0])(PAIRS, rows)
    assert found["all"] == [(1, pytest.approx(0.5)), (3.0, pytest.approx(2 / 3))]
    assert found["easy"] == [(1, pytest.approx(0.55)), (3.0, pytest.approx(0.75))]
    recall = recall_curves("error", 4.0, steps=4)(PAIRS, ROWS)["all"]
    assert recall == [
        (x, pytest.approx(y)) for x, y in zip(range(5), (0, 1 / 3, 1 / 3, 2 / 3, 2 / 3), strict=True)
    ]
    assert len(recall_curves("error", 4.0)(PAIRS, ROWS)["all"]) == 41


def test_what_is_no_number_is_null_in_json() -> None:
    value = {1: np.float32(0.5), "b": [NAN, INF, np.int64(3)], "c": (True, None, "x", -INF)}
    assert json_ready(value) == {"1": 0.5, "b": [None, None, 3], "c": [True, None, "x", None]}
    json.dumps(json_ready(value), allow_nan=False)

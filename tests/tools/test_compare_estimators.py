"""The comparison of estimators: it reads what `coam eval` left, and prints a table that pages can show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tools.compare_estimators import cached_matches, compare, homography_error
from tools.docs_tables import printed_tables

from coam.errors import DataError
from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.predictions import PredictionStore
from support.simple_matchers import matches_of


def leave_true_matches(pairs: list[EvaluationPair], folder: Path) -> None:
    """As `coam eval` does: a grid of positions and where the true homography takes them."""
    store = PredictionStore(
        folder, {"matcher": "truth", "config": {}, "model_hash": "", "benchmark": "hpatches"}
    )
    x, y = np.meshgrid(np.arange(4.0, 60, 4), np.arange(4.0, 44, 4))
    start = np.stack([x.ravel(), y.ravel()], axis=1)
    for pair in pairs:
        there = np.column_stack([start, np.ones(len(start))]) @ np.asarray(pair.homography).T
        store.add(pair, matches_of(start, there[:, :2] / there[:, 2:], (64, 48)))


def test_the_table_of_true_matches(
    hpatches_root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pairs = load_hpatches(hpatches_root)[:2]
    leave_true_matches(pairs, tmp_path)
    assert [len(matches) for matches in cached_matches(pairs, tmp_path)] == [140, 140]
    compare(pairs, hpatches_root, tmp_path, [0.0], homography_error, 3.0, (1, 3, 5, 10))
    columns, rows = printed_tables(capsys.readouterr().out)[0]
    assert columns[1:5] == ["AUC@1", "AUC@3", "AUC@5", "AUC@10"]
    assert len(rows) >= 3
    assert all(float(row[2].split()[0]) > 99 for row in rows)


def test_a_folder_without_matches(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="make it with coam eval"):
        cached_matches([], tmp_path)

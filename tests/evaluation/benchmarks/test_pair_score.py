"""pair-score: the overlap score as a classifier."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from coam.errors import DataError
from coam.evaluation.benchmarks.pair_score import (
    accuracy,
    area_under_roc,
    calibration_error,
    fpr_at_95_tpr,
    load_pair_score,
    pair_score_curves,
    score_pair_score,
)
from coam.evaluation.metrics.tables import Table
from support.simple_matchers import matches_of, save, textured


def test_pair_score_makes_as_many_negatives_as_positives(hpatches_root: Path) -> None:
    pairs = load_pair_score(hpatches_root)
    same = [pair for pair in pairs if pair.overlaps]
    different = [pair for pair in pairs if not pair.overlaps]
    assert len(same) == len(different) == 7
    assert len({pair.name for pair in pairs}) == 14
    assert all(pair.image0.parent == pair.image1.parent for pair in same)
    assert all(pair.image0.parent != pair.image1.parent for pair in different)


def test_pair_score_listing(tmp_path: Path) -> None:
    for name in "abc":
        save(tmp_path / f"{name}.png", textured())
    (tmp_path / "pairs.txt").write_text("# list\na.png b.png 1\na.png c.png 0\n")
    assert [pair.overlaps for pair in load_pair_score(tmp_path)] == [True, False]
    (tmp_path / "pairs.txt").write_text("a.png b.png yes\n")
    with pytest.raises(DataError, match=r"line 1: wanted name0 name1"):
        load_pair_score(tmp_path)
    (tmp_path / "pairs.txt").write_text("a.png z.png 1\n")
    with pytest.raises(DataError, match=r"z\.png is missing"):
        load_pair_score(tmp_path)


def rows_of(overlaps: list[float], truths: list[bool]) -> list[dict[str, float]]:
    """Rows of pairs with these scores."""
    points = np.zeros((3, 2))
    return [
        score_pair_score(SimpleNamespace(overlaps=truth), matches_of(points, points, overlap=overlap))
        for overlap, truth in zip(overlaps, truths, strict=True)
    ]


def test_pair_score_figures_by_hand() -> None:
    rows = rows_of([0.9, 0.4, 0.5, 0.1], [True, True, False, False])
    assert area_under_roc(Table.of(rows)) == pytest.approx(0.75)
    # .4 is refused though true, .5 accepted though false
    assert accuracy(Table.of(rows)) == pytest.approx(0.5)
    assert calibration_error(Table.of(rows)) == pytest.approx((0.1 + 0.6 + 0.5 + 0.1) / 4)
    curves = pair_score_curves([], rows)
    assert curves["ROC"][-1] == (1.0, 1.0)
    assert len(curves["reliability"]) == 4


def test_false_positive_rate_at_95_percent_true_positives() -> None:
    true = [k / 100 for k in range(50, 90, 2)]  # twenty, .50 .. .88: nineteen pass at .52
    wrong = [0.1, 0.5, 0.51, 0.52, 0.9]  # .52 ties with the threshold and passes; so does .9
    table = Table.of(rows_of(true + wrong, [True] * 20 + [False] * 5))
    assert fpr_at_95_tpr(table) == pytest.approx(0.4)
    all_true = [k / 100 for k in range(50, 88, 2)]  # of nineteen, 95 % are 18.05: all must pass, at .50
    table = Table.of(rows_of(all_true + wrong, [True] * 19 + [False] * 5))
    assert fpr_at_95_tpr(table) == pytest.approx(0.8)
    assert np.isnan(fpr_at_95_tpr(Table.of(rows_of([0.9], [True]))))


def test_a_matcher_without_a_score_is_ranked_by_its_matches() -> None:
    rows = rows_of([float("nan")] * 2, [True, False])
    rows[0]["matches"], rows[1]["matches"] = 50.0, 3.0
    assert area_under_roc(Table.of(rows)) == 1.0
    assert fpr_at_95_tpr(Table.of(rows)) == 0.0
    assert np.isnan(accuracy(Table.of(rows)))
    assert np.isnan(calibration_error(Table.of(rows)))
    assert list(pair_score_curves([], rows)) == ["ROC"]

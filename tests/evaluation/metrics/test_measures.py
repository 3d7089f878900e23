import numpy as np
import pytest

from coam.evaluation.metrics.measures import (
    accuracy_below,
    calibration,
    error_auc,
    fpr_at_tpr,
    matching_accuracy,
    roc_auc,
    roc_curve,
    yfcc_map,
)


def test_accuracy_counts_the_threshold_itself() -> None:
    assert matching_accuracy([0.5, 1.0, 3.0, 12.0], [1, 3, 5, 10]).tolist() == [0.5, 0.75, 0.75, 0.75]


def test_a_pair_without_matches_scores_zero() -> None:
    assert matching_accuracy([], [1, 3]).tolist() == [0, 0]


def test_auc_of_a_known_list() -> None:
    # Errors 1 and 3: the curve runs (0,0) (1,.5) (3,1). Up to 5: .25 + 1.5 + 2 = 3.75 of 5; up to 2, the last
    # point below is (1, .5): .25 + .5 = .75 of 2.
    assert error_auc([3, 1], 5) == pytest.approx(3.75 / 5)
    assert error_auc([3, 1], 2) == pytest.approx(0.75 / 2)


def test_auc_of_perfect_and_failed_pairs() -> None:
    assert error_auc([0, 0, 0], 5) == pytest.approx(1.0)
    assert error_auc([np.inf, np.nan, 30.0], 5) == 0
    assert np.isnan(error_auc([], 5))


def test_auc_half_failures() -> None:
    # (0,0) (0,.5) then flat: half of everything.
    assert error_auc([0.0, np.inf], 10) == pytest.approx(0.5)


def test_accuracy_is_strict() -> None:
    assert accuracy_below([4.9, 5.0, 5.1], 5.0) == pytest.approx(1 / 3)


def test_yfcc_map_at_10_is_the_mean_of_accuracies_at_5_and_10() -> None:
    errors = [1, 2, 7, 12, np.inf]
    assert yfcc_map(errors, 5) == pytest.approx(0.4)
    assert yfcc_map(errors, 10) == pytest.approx((0.4 + 0.6) / 2)
    assert yfcc_map(errors, 20) == pytest.approx((0.4 + 0.6 + 0.8 + 0.8) / 4)


def test_roc_area_by_counting_pairs() -> None:
    # positives .9 .4, negatives .5 .1: of four comparisons three are right.
    assert roc_auc([0.9, 0.4, 0.5, 0.1], [True, True, False, False]) == pytest.approx(0.75)
    assert roc_auc([0.5, 0.5], [True, False]) == pytest.approx(0.5)
    assert np.isnan(roc_auc([0.5, 0.6], [True, True]))


def test_roc_curve_points() -> None:
    fpr, tpr, thresholds = roc_curve([0.9, 0.4, 0.5, 0.1], [True, True, False, False])
    assert fpr.tolist() == [0, 0, 0.5, 0.5, 1]
    assert tpr.tolist() == [0, 0.5, 0.5, 1, 1]
    assert thresholds[1:].tolist() == [0.9, 0.5, 0.4, 0.1]


def test_calibration_error_by_hand() -> None:
    # Bin .9: promised .9, happened .5, half of all; bin .1: promised .1, happened 0.
    rows, error = calibration([0.9, 0.9, 0.1, 0.1], [1, 0, 0, 0])
    assert error == pytest.approx(0.5 * 0.4 + 0.5 * 0.1)
    assert [row["count"] for row in rows] == [2, 2]


def test_probability_one_falls_in_the_last_bin() -> None:
    rows, error = calibration([1.0], [1])
    assert rows == [{"predicted": 1.0, "observed": 1.0, "count": 1.0}]
    assert error == 0


def test_false_alarms_at_a_wanted_share_of_hits() -> None:
    scores = [0.9, 0.8, 0.7, 0.6, 0.5, 0.4]
    positive = [True, True, False, True, False, True]
    assert fpr_at_tpr(scores, positive, 0.5) == 0.0  # at .8: two of four, no alarm
    assert fpr_at_tpr(scores, positive, 0.51) == 0.5  # at .6: one alarm of two
    assert fpr_at_tpr(scores, positive, 0.75) == 0.5
    assert fpr_at_tpr(scores, positive, 1.0) == 1.0
    assert np.isnan(fpr_at_tpr([0.1, 0.2], [True, True], 0.5))
    assert np.isnan(fpr_at_tpr([0.1, 0.2], [False, False], 0.5))


def test_rates_of_ties_and_of_one_kind_only() -> None:
    fpr, tpr, thresholds = roc_curve([0.5, 0.5, 0.2], [True, False, False])
    assert (fpr.tolist(), tpr.tolist()) == ([0, 0.5, 1], [0, 1, 1])
    assert thresholds.tolist() == [np.inf, 0.5, 0.2]
    fpr, tpr, _ = roc_curve([0.5, 0.4], [False, False])
    assert (fpr.tolist(), tpr.tolist()) == ([0, 0.5, 1], [0, 0, 0])
    fpr, tpr, _ = roc_curve([0.5, 0.4], [True, True])
    assert (fpr.tolist(), tpr.tolist()) == ([0, 0, 0], [0, 0.5, 1])


def test_calibration_counts_filled_bins_by_their_share() -> None:
    rows, error = calibration([0.05, 0.32, 0.38, 0.95], [0, 1, 0, 0], bins=5)
    assert rows == [
        {"predicted": 0.05, "observed": 0.0, "count": 1.0},
        {"predicted": pytest.approx(0.35), "observed": 0.5, "count": 2.0},
        {"predicted": 0.95, "observed": 0.0, "count": 1.0},
    ]
    assert error == pytest.approx((0.05 + 2 * 0.15 + 0.95) / 4)


def test_accuracies_of_nothing_are_nan() -> None:
    assert np.isnan(accuracy_below([], 5.0))
    assert accuracy_below([1.0], 5.0) == 1.0

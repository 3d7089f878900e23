import numpy as np
import pytest

from coam.evaluation.metrics.bootstrap import bootstrap, compare_paired


def mean_of(values: np.ndarray):
    return lambda index: float(values[index].mean())


def test_interval_of_a_constant_has_no_width() -> None:
    found = bootstrap(mean_of(np.full(10, 0.3)), list(range(10)))
    assert (found.value, found.low, found.high) == pytest.approx((0.3, 0.3, 0.3))


def test_interval_of_a_coin_is_that_of_the_binomial() -> None:
    values = np.array([0.0, 1.0] * 50)
    found = bootstrap(mean_of(values), list(range(100)), resamples=2000)
    # std of the mean is .05: 95 % lie within about .1
    assert found.low == pytest.approx(0.40, abs=0.02)
    assert found.high == pytest.approx(0.60, abs=0.02)


def test_pairs_of_one_sequence_are_drawn_together() -> None:
    # Ten sequences of ten equal pairs: only ten independent values, so the interval is sqrt(10) wider.
    values = np.repeat([0.0, 1.0] * 5, 10)
    by_pair = bootstrap(mean_of(values), list(range(100)), resamples=2000)
    by_sequence = bootstrap(mean_of(values), [i // 10 for i in range(100)], resamples=2000)
    ratio = (by_sequence.high - by_sequence.low) / (by_pair.high - by_pair.low)
    assert ratio == pytest.approx(np.sqrt(10), rel=0.15)


def test_one_sequence_has_no_interval() -> None:
    found = bootstrap(mean_of(np.array([1.0, 2.0])), ["a", "a"])
    assert found.value == 1.5
    assert np.isnan(found.low)


def test_the_same_seed_gives_the_same_interval() -> None:
    values = np.random.default_rng(0).random(30)
    assert bootstrap(mean_of(values), list(range(30))) == bootstrap(mean_of(values), list(range(30)))


def test_a_small_steady_gain_is_real_when_paired() -> None:
    hardness = np.random.default_rng(0).random(40)
    found = compare_paired(mean_of(hardness), mean_of(hardness + 0.01), list(range(40)))
    assert found.difference.value == pytest.approx(0.01)
    assert found.significant
    assert found.probability_b_better == 1.0


def test_a_few_sequences_settle_nothing_however_they_agree() -> None:
    hardness = np.random.default_rng(0).random(40)
    for count, few in ((2, True), (7, True), (8, False)):
        sequences = [i % count for i in range(40)]
        found = compare_paired(mean_of(hardness), mean_of(hardness + 0.01), sequences)
        assert found.difference.low > 0
        assert (found.sequences, found.too_few, found.significant) == (count, few, not few)


def test_noise_is_not_a_difference() -> None:
    a, b = np.random.default_rng(2).random((2, 40))
    found = compare_paired(mean_of(a), mean_of(b), list(range(40)))
    assert not found.significant
    assert found.difference.low < 0 < found.difference.high


def test_a_matcher_against_itself_is_a_draw() -> None:
    values = np.random.default_rng(0).random(10)
    found = compare_paired(mean_of(values), mean_of(values), list(range(10)))
    assert found.difference.value == 0
    assert found.probability_b_better == 0.5
    assert not found.significant


def test_intervals_are_quantiles_of_means_of_drawn_sequences() -> None:
    """The same draws, sorted by hand: 25th and 975th of a thousand."""
    values = np.random.default_rng(5).random(12)
    sequences = np.repeat(np.arange(6), 2)
    draws = np.random.default_rng(3).integers(0, 6, (1000, 6))
    means = sorted(values.reshape(6, 2)[draw].mean() for draw in draws)
    found = bootstrap(mean_of(values), sequences.tolist(), resamples=1000, seed=3)
    assert found.value == pytest.approx(values.mean())
    assert (found.low, found.high) == pytest.approx((means[24], means[974]))
    assert np.isnan(bootstrap(mean_of(values), sequences.tolist(), resamples=0).low)


def test_every_sequence_is_drawn() -> None:
    for special in range(8):
        found = bootstrap(mean_of(np.eye(8)[special]), list(range(8)))
        assert (found.low, found.high) == (0.0, pytest.approx(0.375))  # three of eight draws, one in fifty


def test_samples_in_which_nothing_is_known_are_left_out() -> None:
    def known_mean(index):
        values = np.array([0.25, np.nan, np.nan])[index]
        return float(np.nanmean(values)) if np.isfinite(values).any() else float("nan")

    found = bootstrap(known_mean, ["a", "b", "c"])
    assert (found.low, found.high) == (0.25, 0.25)
    assert np.isnan(bootstrap(lambda index: float("nan"), ["a", "b"]).low)


def test_half_of_the_resamples_may_favour_either() -> None:
    """b is better on one sequence, worse on another, the same on a third: ties count half."""
    a, b = np.zeros(3), np.array([1.0, -1.0, 0.0])
    found = compare_paired(mean_of(a), mean_of(b), list(range(3)), resamples=4000)
    assert found.probability_b_better == pytest.approx(0.5, abs=0.02)
    assert found.difference.value == 0
    worse = compare_paired(mean_of(np.ones(9)), mean_of(np.zeros(9)), list(range(9)))
    assert (worse.probability_b_better, worse.significant, worse.difference.high) == (0.0, True, -1.0)
    failed = np.full(9, np.inf)
    assert compare_paired(mean_of(failed), mean_of(failed), list(range(9))).difference == (0, 0, 0)
    assert np.isnan(compare_paired(mean_of(a), mean_of(b), ["x"] * 3).probability_b_better)

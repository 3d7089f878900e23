"""How sure a figure is: bootstrap intervals and paired comparison. Sequences are resampled, not pairs.

Pairs of one sequence share an image and a scene, so they rise and fall together; resampling them one by one
would give intervals that are far too narrow. The unit drawn with replacement is therefore the whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

FEW = 8  # sequences; from fewer, a bootstrap interval says little (two that agree always leave out zero)
Statistic = Callable[[npt.NDArray[np.int64]], float]  # indices of the drawn pairs -> figure


@dataclass(frozen=True)
class Interval:
    """A figure and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class PairedComparison:
    """Difference b - a of one figure on the same pairs."""

    difference: Interval
    probability_b_better: float  # share of resamples in which b beats a (ties count half)
    sequences: int  # how many were resampled

    @property
    def too_few(self) -> bool:
        """Whether there are too few sequences for any verdict."""
        return self.sequences < FEW

    @property
    def significant(self) -> bool:
        """Whether the 95 % interval of the difference leaves out zero and rests on enough sequences."""
        return not self.too_few and (self.difference.low > 0 or self.difference.high < 0)


def _resamples(sequences: Sequence[Hashable], count: int, seed: int) -> list[npt.NDArray[np.int64]]:
    """Index sets (one array each) made by drawing as many sequences as there are, with replacement."""
    members: dict[Hashable, list[int]] = {}
    for index, name in enumerate(sequences):
        members.setdefault(name, []).append(index)
    blocks = [np.asarray(block, dtype=np.int64) for block in members.values()]
    generator = np.random.default_rng(seed)
    draws = generator.integers(0, len(blocks), size=(count, len(blocks)))
    return [np.concatenate([blocks[choice] for choice in draw]) for draw in draws]


def _central_95(drawn: npt.NDArray[np.float64]) -> tuple[float, float]:
    """2.5 and 97.5 % quantiles from the sample itself: between infinities nothing interpolates."""
    known = drawn[~np.isnan(drawn)]
    if len(known) == 0:
        return float("nan"), float("nan")
    low, high = np.percentile(known, [2.5, 97.5], method="inverted_cdf")
    return float(low), float(high)


def bootstrap(
    statistic: Statistic, sequences: Sequence[Hashable], *, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Percentile 95 % interval of `statistic`, a function of pair indices; `sequences[i]` is the unit of pair
    i.
    """
    value = statistic(np.arange(len(sequences), dtype=np.int64))
    if resamples == 0 or len(set(sequences)) < 2:
        return Interval(value, float("nan"), float("nan"))
    drawn = np.asarray([statistic(index) for index in _resamples(sequences, resamples, seed)])
    return Interval(value, *_central_95(drawn))


def _difference(b: float, a: float) -> float:
    """b - a, where two failures (inf) are equally bad."""
    return 0.0 if a == b else b - a


def compare_paired(
    statistic_a: Statistic,
    statistic_b: Statistic,
    sequences: Sequence[Hashable],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> PairedComparison:
    """Is b better than a? Both see the SAME resampled pairs, so what is hard for both cancels."""
    whole = np.arange(len(sequences), dtype=np.int64)
    value = _difference(statistic_b(whole), statistic_a(whole))
    count = len(set(sequences))
    if count < 2:
        return PairedComparison(Interval(value, float("nan"), float("nan")), float("nan"), count)
    drawn = np.asarray(
        [_difference(statistic_b(i), statistic_a(i)) for i in _resamples(sequences, resamples, seed)]
    )
    better = float((drawn > 0).mean() + 0.5 * (drawn == 0).mean())
    return PairedComparison(Interval(value, *_central_95(drawn)), better, count)

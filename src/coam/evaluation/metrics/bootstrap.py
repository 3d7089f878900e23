"""Cluster bootstrap: confidence intervals of a figure and paired comparison of two matchers.

Pairs of one sequence share an image and a scene, so they rise and fall together; resampling them one by one
would give intervals that are far too narrow. The unit drawn with replacement is therefore the whole sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

FEW = 8  # sequences; from fewer, a bootstrap interval says little (two that agree always leave out zero)
Name = TypeVar("Name", bound=Hashable)
Statistic = Callable[[npt.NDArray[np.int64]], float]  # indices of the drawn pairs -> figure


class Interval(NamedTuple):
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


def _draw(
    statistic: Statistic, sequences: Sequence[Hashable], resamples: int, seed: int
) -> tuple[Interval, npt.NDArray[np.float64]]:
    """The statistic with its interval, and its values in bootstrap samples.

    A sample holds as many sequences as there are, drawn with replacement; none are drawn of a single one.
    """
    blocks = list(indices_by(sequences).values())
    value = statistic(np.arange(len(sequences), dtype=np.int64))
    if resamples == 0 or len(blocks) < 2:
        return Interval(value, float("nan"), float("nan")), np.zeros(0)
    draws = np.random.default_rng(seed).integers(0, len(blocks), size=(resamples, len(blocks)))
    drawn = np.asarray([statistic(np.concatenate([blocks[choice] for choice in draw])) for draw in draws])
    known = drawn[~np.isnan(drawn)]
    # Quantiles from the sample itself: between infinities nothing interpolates.
    low, high = np.percentile(known, [2.5, 97.5], method="inverted_cdf") if len(known) else (np.nan, np.nan)
    return Interval(value, float(low), float(high)), drawn


def indices_by(names: Iterable[Name]) -> dict[Name, npt.NDArray[np.int64]]:
    """name -> positions that have it, names as they appear."""
    members: dict[Name, list[int]] = {}
    for index, name in enumerate(names):
        members.setdefault(name, []).append(index)
    return {name: np.asarray(positions, dtype=np.int64) for name, positions in members.items()}


def bootstrap(
    statistic: Statistic, sequences: Sequence[Hashable], *, resamples: int = 1000, seed: int = 0
) -> Interval:
    """Percentile bootstrap 95 % interval of `statistic`; `sequences[i]` is the cluster of pair i."""
    return _draw(statistic, sequences, resamples, seed)[0]


def compare_paired(
    statistic_a: Statistic,
    statistic_b: Statistic,
    sequences: Sequence[Hashable],
    *,
    resamples: int = 1000,
    seed: int = 0,
) -> PairedComparison:
    """Paired bootstrap of b - a: both see the SAME resampled pairs, so what is hard for both cancels."""

    def difference(index: npt.NDArray[np.int64]) -> float:
        a, b = statistic_a(index), statistic_b(index)
        return 0.0 if a == b else b - a  # two failures (inf) are equally bad

    interval, drawn = _draw(difference, sequences, resamples, seed)
    better = float((drawn > 0).mean() + 0.5 * (drawn == 0).mean()) if len(drawn) else float("nan")
    return PairedComparison(interval, better, len(set(sequences)))

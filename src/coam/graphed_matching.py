"""Matching on CUDA in tensors of fixed size, so that one CUDA graph holds all of it.

`DenseMatching` picks out positions and matches as it goes; each pick waits for the device to say how many
there are, and two hundred small operations are started one by one. Here nothing is picked out before the end:
positions that are not worth comparing become zero vectors, which nobody chooses, and matches that do not
count get a negative score. The result is the same but for sums of exponentials, in which a zero vector counts
1 where a match counts e^30 and more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor

from coam.backends.cuda_graphs import Recorder
from coam.dense_matching import CROWDING_CELLS, MIN_POSITIONS, Candidates, DenseMatching, MatcherConfig
from coam.matching.fused import can_fuse
from coam.matching.mutual import RowChoices
from coam.matching.pair_score import statistics_of_sums, sums_of_matches
from coam.matching.selection import choose_spread
from coam.models.outputs import DenseDescriptors

Search = Callable[[Tensor, Tensor, float], RowChoices]
SUMS = 4  # for the pair score
NUMBERS = 7  # of a match: x and y in both photos, score, both indices (float32 holds whole numbers to 2^24)
HIGHEST_TEMPERATURE = 69.0  # factor on similarities up to which the search holds its exponentials


def matching_for(config: MatcherConfig, temperature: float, device: torch.device) -> DenseMatching:
    """The fastest matching with these settings on this device."""
    graphable = config.ranking == "dual_softmax" and config.refinement == "fine"
    if graphable and can_fuse(device) and temperature < HIGHEST_TEMPERATURE:
        from coam.matching.mutual_triton import fused_choices

        return GraphedMatching(config, temperature, Recorder(), fused_choices)
    return DenseMatching(config, temperature)


class GraphedMatching(DenseMatching):
    """`between` through a recorder; everything else as in `DenseMatching`. Candidates lie on the CPU."""

    def __init__(
        self,
        config: MatcherConfig,
        temperature: float,
        recorder: Callable[..., list[Tensor]],
        search: Search,
    ) -> None:
        super().__init__(config, temperature)
        self._recorder = recorder
        self._search = search

    def between(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> Candidates:
        """Mutual matches of two photos, best first."""
        return next(self.between_many([(dense0, dense1)]))

    def between_many(
        self, pairs: Iterable[tuple[DenseDescriptors, DenseDescriptors]]
    ) -> Iterator[Candidates]:
        """Mutual matches of many pairs; the device is given all of them before the host waits."""
        started = [(*pair, self._start(*pair)) for pair in pairs]
        for dense0, dense1, packed in started:
            if packed is None:
                yield super().between(dense0, dense1)
                continue
            yield self._finish(packed.cpu(), min(map(self._position_count, (dense0, dense1))))

    def _start(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> Tensor | None:
        """What `_match` gives, on its way on the device; None: not for us."""
        if dense0.fine is None or dense1.fine is None or self.config.max_matches == 0:
            return None

        def match(inputs: Sequence[Tensor]) -> list[Tensor]:
            first = DenseDescriptors(inputs[0], inputs[1], dense0.stride, dense0.size, inputs[2])
            second = DenseDescriptors(inputs[3], inputs[4], dense1.stride, dense1.size, inputs[5])
            return self._match(first, second)

        key = ("match", dense0.size, dense1.size)
        parts = [dense0.descriptors, dense0.score, dense0.fine, dense1.descriptors, dense1.score, dense1.fine]
        return self._recorder(key, match, parts)[0]

    def _finish(self, packed: Tensor, positions: int) -> Candidates:
        sums, numbers = packed[:SUMS].tolist(), packed[SUMS:].view(-1, NUMBERS)
        numbers = numbers[numbers[:, 4] >= self.config.min_score]
        index = numbers[:, 5:].long()
        return Candidates(
            numbers[:, 0:2],
            numbers[:, 2:4],
            index[:, 0],
            index[:, 1],
            numbers[:, 4].clamp(max=1),
            statistics_of_sums(sums, positions),
        )

    def _match(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> list[Tensor]:
        """Sums for the pair score (4,), then of each chosen match points0, points1, score (negative: none)
        and both indices, all in one tensor, because every transfer waits."""
        positions0, positions1 = self.positions(dense0), self.positions(dense1)
        descriptors0, score0, worth0 = self._masked(dense0, positions0)
        descriptors1, score1, worth1 = self._masked(dense1, positions1)
        chosen = self._search(descriptors0, descriptors1, 1.0 / self.temperature)
        assert chosen.probability is not None
        counts = chosen.is_mutual & worth0 & worth1[chosen.index1]
        distinct = score0 * score1[chosen.index1]
        rank = torch.where(counts, chosen.probability.sqrt() * distinct, -1.0)
        best = torch.sort(rank, descending=True, stable=True).indices[: 4 * self.config.max_matches]
        index1 = chosen.index1[best]
        points0 = positions0[best]
        found1, sharpness = self._refine(dense0, dense1, points0, descriptors0[best], index1)
        score = rank[best] * sharpness
        cell = max(dense0.size) / CROWDING_CELLS
        order = choose_spread(points0, score, self.config.max_matches, cell, self.config.crowding)
        points0 = points0[order]
        points1 = self._look_back(dense0, dense1, points0, found1[order])
        columns = [score[order], best[order], index1[order]]
        numbers = torch.cat([points0, points1, torch.stack(columns, dim=1)], dim=1)
        sums = sums_of_matches(chosen.probability, distinct, counts)
        return [torch.cat([sums, numbers.flatten()])]

    def _masked(self, dense: DenseDescriptors, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Descriptors (N, D), scores (N,) and which are worth comparing (N,); the others are zero vectors."""
        descriptors, score = self._on_grid(dense, positions)
        worth = score >= self.config.min_distinctiveness
        worth = worth | (worth.sum() < MIN_POSITIONS)  # so few: compare all, as `DenseMatching` does
        return descriptors * worth.unsqueeze(1), score, worth

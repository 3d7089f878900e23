"""Matching on CUDA in tensors of fixed size, so that one CUDA graph holds all of it.

`DenseMatching` picks out positions and matches as it goes; each pick waits for the device to say how many
there are, and two hundred small operations are started one by one. Here nothing is picked out before the end:
positions that are not worth comparing become zero vectors, which nobody chooses, and matches that do not
count get a negative score. The result is the same but for sums of exponentials, in which a zero vector counts
1 where a match counts e^30 and more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coam.backends.cuda_graphs import Recorder
from coam.dense_matching import (
    CROWDING_CELLS,
    MIN_POSITIONS,
    SHARP_SPREAD,
    Candidates,
    DenseMatching,
    MatcherConfig,
)
from coam.fused import can_fuse
from coam.matching.grid import sample_map
from coam.matching.mutual import RowChoices
from coam.matching.pair_score import statistics_of_sums, sums_of_matches
from coam.matching.selection import choose_spread
from coam.models.outputs import DenseDescriptors

IN_FLIGHT = 16  # pairs the device has been given before the host reads the first result
KEPT_GRIDS = 16
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


@dataclass(frozen=True)
class _Started:
    """A pair on its way: what `_match` gives, when it is there, and how many positions were compared."""

    packed: Tensor  # on the CPU
    is_there: Any  # torch.cuda.Event, None: already
    positions: int


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
        self._grids: OrderedDict[tuple[Any, ...], Tensor] = OrderedDict()

    def between(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> Candidates:
        """Mutual matches of two photos, best first."""
        return next(self.between_many([(dense0, dense1)]))

    def between_many(
        self, pairs: Iterable[tuple[DenseDescriptors, DenseDescriptors]]
    ) -> Iterator[Candidates]:
        """Mutual matches of many pairs, in order.

        `pairs` is read ahead of the results, so that the device never waits for the host.
        """
        started: deque[_Started | Candidates] = deque()
        for dense0, dense1 in pairs:
            started.append(self._start(dense0, dense1))
            if len(started) > IN_FLIGHT:
                yield self._finish(started.popleft())
        yield from map(self._finish, started)

    def _start(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> _Started | Candidates:
        """A pair on its way on the device; its matches, if it is not for us."""
        if dense0.fine is None or dense1.fine is None or self.config.max_matches == 0:
            return super().between(dense0, dense1)

        def match(inputs: Sequence[Tensor]) -> list[Tensor]:
            first = DenseDescriptors(inputs[0], inputs[1], dense0.stride, dense0.size, inputs[2])
            second = DenseDescriptors(inputs[4], inputs[5], dense1.stride, dense1.size, inputs[6])
            return [self._match(first, second, inputs[3], inputs[7])]

        parts = [
            part
            for dense in (dense0, dense1)
            for part in (dense.descriptors, dense.score, dense.fine, self._kept_positions(dense))
        ]
        packed = self._recorder(("match", dense0.size, dense1.size), match, parts)[0]
        positions = min(map(self._position_count, (dense0, dense1)))
        if packed.device.type != "cuda":
            return _Started(packed, None, positions)
        on_host = torch.empty(packed.shape, pin_memory=True)
        on_host.copy_(packed, non_blocking=True)
        is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_there.record()
        return _Started(on_host, is_there, positions)

    def _finish(self, started: _Started | Candidates) -> Candidates:
        if isinstance(started, Candidates):
            return started
        if started.is_there is not None:
            started.is_there.synchronize()
        packed = started.packed.numpy()  # a dozen small operations: torch would take ten times as long
        sums, numbers = packed[:SUMS].tolist(), packed[SUMS:].reshape(-1, NUMBERS)
        numbers = numbers[numbers[:, 4] >= self.config.min_score]  # a copy: pinned memory goes back
        points0, points1, score, index = (
            torch.from_numpy(part.copy())
            for part in (
                numbers[:, 0:2],
                numbers[:, 2:4],
                numbers[:, 4].clip(max=1),
                numbers[:, 5:].T.astype("int64"),
            )
        )
        statistics = statistics_of_sums(sums, started.positions)
        return Candidates(points0, points1, index[0], index[1], score, statistics)

    def _kept_positions(self, dense: DenseDescriptors) -> Tensor:
        """`positions`, made once for each shape: a dozen small operations."""
        key = (dense.size, dense.descriptors.shape[-2:], dense.descriptors.device)
        if key not in self._grids:
            self._grids[key] = self.positions(dense)
            while len(self._grids) > KEPT_GRIDS:
                self._grids.popitem(last=False)
        self._grids.move_to_end(key)
        return self._grids[key]

    def _match(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, positions0: Tensor, positions1: Tensor
    ) -> Tensor:
        """Sums for the pair score (4,), then of each chosen match points0, points1, score (negative: none)
        and both indices, all in one tensor, because every transfer waits."""
        descriptors0, score0, worth0 = self._masked(dense0, positions0)
        descriptors1, score1, worth1 = self._masked(dense1, positions1)
        chosen = self._search(descriptors0, descriptors1, 1.0 / self.temperature)
        assert chosen.probability is not None
        counts = chosen.is_mutual & worth0 & worth1[chosen.index1]
        distinct = score0 * score1[chosen.index1]
        rank = torch.where(counts, chosen.probability.sqrt() * distinct, -1.0)
        rank, best = (part[: 4 * self.config.max_matches] for part in rank.sort(descending=True, stable=True))
        index1 = chosen.index1[best]
        points0 = positions0[best]
        refined = self._seek(dense0, dense1, points0, positions1[index1])
        score = rank * (SHARP_SPREAD / (0.5 + refined.spread)).clamp(max=1.0)
        cell = max(dense0.size) / CROWDING_CELLS
        order = choose_spread(points0, score, self.config.max_matches, cell, self.config.crowding)
        points0 = points0[order]
        points1 = self._look_back(dense0, dense1, points0, refined.points[order])
        columns = [score[order], best[order], index1[order]]
        numbers = torch.cat([points0, points1, torch.stack(columns, dim=1)], dim=1)
        sums = sums_of_matches(chosen.probability, distinct, counts)
        return torch.cat([sums, numbers.flatten()])

    def _on_grid(self, dense: DenseDescriptors, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Descriptors (N, D) and scores (N,) at the grid positions."""
        if self.config.grid is None or not can_fuse(dense.descriptors.device):
            return super()._on_grid(dense, positions)
        from coam.matching.refine_triton import fused_unit_samples

        descriptors = fused_unit_samples(dense.descriptors[0], positions, dense.stride)
        return descriptors, sample_map(dense.score, positions[None], dense.stride)[0, :, 0]

    def _masked(self, dense: DenseDescriptors, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Descriptors (N, D), scores (N,) and which are worth comparing (N,); the others are zero vectors."""
        descriptors, score = self._on_grid(dense, positions)
        worth = score >= self.config.min_distinctiveness
        worth = worth | (worth.sum() < MIN_POSITIONS)  # so few: compare all, as `DenseMatching` does
        return descriptors * worth.unsqueeze(1), score, worth

"""The matching algorithm in tensors of fixed size on CUDA, so that one CUDA graph holds all of it.

`DenseMatching` picks out positions as it goes; each pick waits for the device to say how many there are, and
two hundred small operations are started one by one. Here nothing is picked out before the end: positions that
are not worth comparing become zero vectors, which nobody chooses, and matches that do not count get a
negative score. The result is the same but for sums of exponentials, in which a zero vector counts 1 where a
match counts e^30 and more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import starmap
from typing import Any

import torch
from torch import Tensor

from coam.caches import LRUCache
from coam.matching.dense import Candidates, DenseMatching, Proposals
from coam.matching.grid import sample_map
from coam.matching.guided import LARGEST_LOGIT_SCALE
from coam.matching.mutual import RowChoices
from coam.matching.pair_score import statistics_of_sums
from coam.matching.settings import MatcherConfig
from coam.models.outputs import DenseDescriptors
from coam.tensors import fused_kernels

IN_FLIGHT = 16  # pairs the device has been given before the host reads the first result
KEPT_GRIDS = 16
# A pair on its way: what `_match` gives (on the CPU), its torch.cuda.Event (None: it is there), positions.
Started = tuple[Tensor, Any, int]
Search = Callable[[Tensor, Tensor, float], RowChoices]
SUMS = 4  # for the pair score
NUMBERS = 7  # of a match: x and y in both photos, score, both indices (float32 holds whole numbers to 2^24)


def graphed_matching(
    config: MatcherConfig, logit_scale: float, device: torch.device
) -> GraphedMatching | None:
    """Matching in one CUDA graph, where kernels and settings allow it."""
    kernels = fused_kernels(device)
    graphable = config.ranking == "dual_softmax" and config.refinement == "fine" and config.max_matches > 0
    if kernels is None or not graphable or logit_scale >= LARGEST_LOGIT_SCALE:
        return None
    return GraphedMatching(config, logit_scale, kernels.Recorder(), kernels.fused_choices)


class GraphedMatching(DenseMatching):
    """`between` through a recorder; everything else as in `DenseMatching`. Candidates lie on the CPU."""

    def __init__(
        self,
        config: MatcherConfig,
        logit_scale: float,
        recorder: Callable[..., list[Tensor]],
        search: Search,
    ) -> None:
        super().__init__(config, logit_scale)
        self._recorder = recorder
        self._search = search
        self._grids: LRUCache[tuple[Any, ...], Tensor] = LRUCache(KEPT_GRIDS)

    def between(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> Candidates:
        """Mutual matches of two photos, best first."""
        return next(self.between_many([(dense0, dense1)]))

    def between_many(
        self, pairs: Iterable[tuple[DenseDescriptors, DenseDescriptors]]
    ) -> Iterator[Candidates]:
        """Mutual matches of many pairs, in order.

        `pairs` is read ahead of the results, so that the device never waits for the host.
        """
        started: deque[Started] = deque()
        for dense0, dense1 in pairs:
            started.append(self._start(dense0, dense1))
            if len(started) > IN_FLIGHT:
                yield self._finish(*started.popleft())
        yield from starmap(self._finish, started)

    def _start(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> Started:
        """A pair on its way on the device."""

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
        positions = self._fewer_positions(dense0, dense1)
        if packed.device.type != "cuda":
            return packed, None, positions
        on_host = torch.empty(packed.shape, pin_memory=True)
        on_host.copy_(packed, non_blocking=True)
        is_there = torch.cuda.Event()  # type: ignore[no-untyped-call]
        is_there.record()
        return on_host, is_there, positions

    def _finish(self, on_host: Tensor, is_there: Any, positions: int) -> Candidates:
        if is_there is not None:
            is_there.synchronize()
        packed = on_host.numpy()  # a dozen small operations: torch would take ten times as long
        sums, numbers = packed[:SUMS].tolist(), packed[SUMS:].reshape(-1, NUMBERS)
        numbers = numbers[numbers[:, 4] >= self.config.min_score]  # a copy: pinned memory goes back
        points0, points1 = (torch.from_numpy(numbers[:, k : k + 2].copy()) for k in (0, 2))
        score = torch.from_numpy(numbers[:, 4].clip(max=1))
        index = torch.from_numpy(numbers[:, 5:].T.astype("int64", order="C"))
        statistics = statistics_of_sums(sums, positions)
        return Candidates(points0, points1, index[0], index[1], score, statistics)

    def _kept_positions(self, dense: DenseDescriptors) -> Tensor:
        """`positions`, made once for each shape: a dozen small operations."""
        key = (dense.size, dense.descriptors.shape[-2:], dense.descriptors.device)
        return self._grids.get(key, lambda: self.positions(dense))

    def _match(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, positions0: Tensor, positions1: Tensor
    ) -> Tensor:
        """Sums for the pair score (4,), then of each chosen match points0, points1, score (negative: none)
        and both indices, all in one tensor, because every transfer waits."""
        side0, worth0 = self._masked(dense0, positions0)
        side1, worth1 = self._masked(dense1, positions1)
        chosen = self._search(side0.descriptors, side1.descriptors, self.logit_scale)
        assert chosen.probability is not None
        counts = chosen.is_mutual & worth0 & worth1[chosen.index1]
        proposals = Proposals(side0.index, chosen.index1, chosen.probability, counts)
        found, sums = self._select(dense0, dense1, side0, side1, proposals)
        columns = [found.score, found.index0, found.index1]
        numbers = torch.cat([found.points0, found.points1, torch.stack(columns, dim=1)], dim=1)
        return torch.cat([sums, numbers.flatten()])

    def _on_grid(self, dense: DenseDescriptors, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Descriptors (N, D) and scores (N,) at the grid positions."""
        kernels = fused_kernels(dense.descriptors.device)
        if self.config.grid is None or kernels is None:
            return super()._on_grid(dense, positions)
        descriptors = kernels.fused_unit_samples(dense.descriptors[0], positions, dense.stride)
        return descriptors, sample_map(dense.score, positions[None], dense.stride)[0, :, 0]

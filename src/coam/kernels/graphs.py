"""CUDA graphs: functions of tensors, each shape of input recorded once and replayed.

A small network is hundreds of kernels of a few microseconds; started one by one from Python they take ten
times as long as they run. A CUDA graph starts them all at once.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from coam.caches import LRUCache

KEPT_GRAPHS = 16  # the view search shows some eight pairs of sizes
USES_BEFORE_RECORDING = 2  # recording takes a second: photos of many sizes are better run as they come
WARM_UPS = 2  # runs before recording, in which cuDNN chooses its algorithms

Input = Tensor | Sequence[Tensor]  # several are joined along their first axis
TensorFunction = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class _Recording:
    graph: Any  # torch.cuda.CUDAGraph
    inputs: list[Tensor]  # where the graph reads, in the parts in which they are given
    outputs: list[Tensor]  # where the graph writes, at every replay again


class Recorder:
    """Calls functions of tensors through CUDA graphs, one for every key and the shapes of its inputs."""

    def __init__(self, kept: int = KEPT_GRAPHS) -> None:
        self._uses: Counter[tuple[Any, ...]] = Counter()
        # Uses go with their graph, or more sizes in turn than are kept would be recorded every time.
        self._recordings: LRUCache[tuple[Any, ...], _Recording] = LRUCache(
            kept, lambda key, _: self._uses.pop(key, None)
        )
        self._alone = threading.Lock()  # a recording has one set of inputs

    def __call__(
        self, key: tuple[Any, ...], function: TensorFunction, inputs: Sequence[Input]
    ) -> list[Tensor]:
        """function(inputs) as tensors of the caller's own; `key` tells functions apart."""
        with self._alone:
            shapes = (tuple(part.shape for part in _parts(one)) for one in inputs)
            return self._call((*key, *shapes), function, inputs)

    def _call(self, key: tuple[Any, ...], function: TensorFunction, inputs: Sequence[Input]) -> list[Tensor]:
        if key not in self._recordings:
            self._uses[key] += 1
            if self._uses[key] <= USES_BEFORE_RECORDING:
                return function([_joined(one) for one in inputs])
        recording = self._recordings.get(key, lambda: _record(function, inputs))
        torch._foreach_copy_(recording.inputs, [part for one in inputs for part in _parts(one)])
        recording.graph.replay()
        results = [torch.empty_like(output) for output in recording.outputs]
        torch._foreach_copy_(results, recording.outputs)
        return results


def _parts(one: Input) -> Sequence[Tensor]:
    return [one] if isinstance(one, Tensor) else one


def _joined(one: Input) -> Tensor:
    return one if isinstance(one, Tensor) else torch.cat(list(one))


def _record(function: TensorFunction, inputs: Sequence[Input]) -> _Recording:
    own = [one.clone() if isinstance(one, Tensor) else _joined(one) for one in inputs]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(benchmark=True):
        for _ in range(WARM_UPS):
            function(own)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function(own)
    sizes = [[len(part) for part in _parts(one)] for one in inputs]
    places = [part for tensor, size in zip(own, sizes, strict=True) for part in torch.split(tensor, size)]
    return _Recording(graph, places, outputs)

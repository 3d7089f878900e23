"""The network on CUDA in half precision, each shape of input recorded once and replayed.

A small network is three hundred kernels of a few microseconds; started one by one from Python they take ten
times as long as they run. A CUDA graph starts them all at once.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from coam.backends.folded import FoldedNetwork
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import MULTIPLE
from coam.models.registry import DescriptorModel

KEPT_GRAPHS = 8
USES_BEFORE_RECORDING = 2  # recording takes a second: photos of many sizes are better run as they come
WARM_UPS = 2  # runs before recording, in which cuDNN chooses its algorithms

Levels = Callable[..., list[Tensor]]
Size = tuple[int, int]  # height, width
TensorFunction = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class _Recording:
    graph: Any  # torch.cuda.CUDAGraph
    inputs: list[Tensor]  # where the graph reads
    outputs: list[Tensor]  # where the graph writes, at every replay again


class Recorder:
    """Calls functions of tensors through CUDA graphs, one for every key and the shapes of its inputs."""

    def __init__(self, kept: int = KEPT_GRAPHS, search_kernels: bool = True) -> None:
        self._kept = kept
        self._search_kernels = search_kernels  # cuDNN tries all it has
        self._recordings: OrderedDict[tuple[Any, ...], _Recording] = OrderedDict()
        self._uses: Counter[tuple[Any, ...]] = Counter()
        self._alone = threading.Lock()  # a recording has one set of inputs

    def __call__(
        self, key: tuple[Any, ...], function: TensorFunction, inputs: Sequence[Tensor]
    ) -> list[Tensor]:
        """function(inputs) as tensors of the caller's own; `key` tells functions apart."""
        with self._alone:
            return self._call((*key, *(tensor.shape for tensor in inputs)), function, inputs)

    def _call(self, key: tuple[Any, ...], function: TensorFunction, inputs: Sequence[Tensor]) -> list[Tensor]:
        if key not in self._recordings:
            self._uses[key] += 1
            if self._uses[key] <= USES_BEFORE_RECORDING:
                return function(inputs)
            self._recordings[key] = _record(function, inputs, self._search_kernels)
            while len(self._recordings) > self._kept:
                self._recordings.popitem(last=False)
        self._recordings.move_to_end(key)
        recording = self._recordings[key]
        torch._foreach_copy_(recording.inputs, list(inputs))
        recording.graph.replay()
        results = [torch.empty_like(output) for output in recording.outputs]
        torch._foreach_copy_(results, recording.outputs)
        return results


def _record(function: TensorFunction, inputs: Sequence[Tensor], search_kernels: bool) -> _Recording:
    own = [tensor.clone() for tensor in inputs]
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), torch.backends.cudnn.flags(benchmark=search_kernels):
        for _ in range(WARM_UPS):
            function(own)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    # Other threads may use the device meanwhile.
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):
        outputs = function(own)
    return _Recording(graph, own, outputs)


def _compile(function: Levels) -> Levels:
    """Fewer, larger kernels; each shape of input takes half a minute when it is first seen."""
    return torch.compile(function, dynamic=False)


class GraphedNetwork(FoldedNetwork):
    """A network on a CUDA device: batch norm folded, channels last, half precision, CUDA graphs.

    float16 has eight times the resolution of bfloat16 and the same speed; the network's activations stay
    below a few hundred. Descriptors stay in that type, because the search on CUDA takes them so.
    """

    def __init__(
        self,
        model: DescriptorModel,
        device: torch.device,
        dtype: torch.dtype = torch.float16,
        compiled: bool = False,
    ) -> None:
        super().__init__(model, device, dtype)
        self._recorder = Recorder(search_kernels=not compiled)  # compiled code counts on their layouts
        self._encode = _compile(self._encode_levels) if compiled else self._encode_levels
        self._decode = _compile(self._decode_levels) if compiled else self._decode_levels
        self._fine_stride = self._measure_fine_stride()

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        size = (image.shape[-2], image.shape[-1])
        image = image.to(self.device, non_blocking=True)
        return EncodedImage(tuple(self._recorder(("encode",), self._encode, [image])), size)

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, or of B pairs of images, each conditioned on the other."""
        function = partial(self._decode, size_a=a.size, size_b=b.size)
        outputs = self._recorder(("decode", a.size, b.size), function, [*a.levels, *b.levels])
        half = len(outputs) // 2
        return self._dense(outputs[:half], a), self._dense(outputs[half:], b)

    @torch.no_grad()
    def _measure_fine_stride(self) -> int:
        """Stride of the maps for refinement, which a graph of tensors cannot tell."""
        encoded = super().encode(torch.zeros(1, 3, MULTIPLE, MULTIPLE))
        return super().decode(encoded, encoded)[0].fine_stride

    def _encode_levels(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        image = inputs[0].to(self.dtype, memory_format=torch.channels_last)
        return list(self.model.encode(image).levels)

    def _decode_levels(self, inputs: Sequence[Tensor], size_a: Size, size_b: Size) -> list[Tensor]:
        levels = len(inputs) // 2
        first = EncodedImage(tuple(inputs[:levels]), size_a)
        second = EncodedImage(tuple(inputs[levels:]), size_b)
        return [part for dense in self.model.decode(first, second) for part in self._parts(dense)]

    def _parts(self, dense: DenseDescriptors) -> list[Tensor]:
        fine = [] if dense.fine is None else [dense.fine]
        return [dense.descriptors.to(self.dtype), dense.score, *fine]

    def _dense(self, parts: list[Tensor], image: EncodedImage) -> DenseDescriptors:
        fine = parts[2] if len(parts) > 2 else None
        return DenseDescriptors(parts[0], parts[1], self.model.stride, image.size, fine, self._fine_stride)

"""The network on CUDA in half precision, each shape of input recorded once and replayed.

A small network is hundreds of kernels of a few microseconds; started one by one from Python they take ten
times as long as they run. A CUDA graph starts them all at once.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from coam.backends.folded import FoldedNetwork
from coam.fused import can_fuse
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import MULTIPLE
from coam.models.registry import DescriptorModel
from coam.models.stacked import StackedCDUNet

if TYPE_CHECKING:
    from coam.backends.fused_stacked import FusedStacked

KEPT_GRAPHS = 16  # the search looks at some eight pairs of sizes
USES_BEFORE_RECORDING = 2  # recording takes a second: photos of many sizes are better run as they come
WARM_UPS = 2  # runs before recording, in which cuDNN chooses its algorithms

Input = Tensor | Sequence[Tensor]  # several are joined along their first axis
Size = tuple[int, int]  # height, width
TensorFunction = Callable[[Sequence[Tensor]], list[Tensor]]


@dataclass(frozen=True)
class _Recording:
    graph: Any  # torch.cuda.CUDAGraph
    inputs: list[Tensor]  # where the graph reads, in the parts in which they are given
    outputs: list[Tensor]  # where the graph writes, at every replay again


class Recorder:
    """Calls functions of tensors through CUDA graphs, one for every key and the shapes of its inputs."""

    def __init__(self, kept: int = KEPT_GRAPHS) -> None:
        self._kept = kept
        self._recordings: OrderedDict[tuple[Any, ...], _Recording] = OrderedDict()
        self._uses: Counter[tuple[Any, ...]] = Counter()
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
            self._recordings[key] = _record(function, inputs)
            while len(self._recordings) > self._kept:
                forgotten, _ = self._recordings.popitem(last=False)
                del self._uses[forgotten]  # or more sizes in turn than are kept would be recorded every time
        self._recordings.move_to_end(key)
        recording = self._recordings[key]
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


class GraphedNetwork(FoldedNetwork):
    """A network on a CUDA device: batch norm folded, channels last, half precision, CUDA graphs.

    With Triton the default network runs in fused kernels. float16 has eight times the resolution of bfloat16
    and the same speed; the network's activations stay below a few hundred. Descriptors and fine maps stay in
    that type, because matching on CUDA takes them so.
    """

    def __init__(
        self,
        model: DescriptorModel,
        device: torch.device,
        dtype: torch.dtype = torch.float16,
    ) -> None:
        super().__init__(model, device, dtype)
        self._fused = self._fuse() if can_fuse(device) else None
        self._recorder: Callable[..., list[Tensor]] = Recorder()
        self._fine_stride = self._measure_fine_stride()

    def _fuse(self) -> FusedStacked | None:
        """The network in fused kernels, if they take it."""
        from coam.backends.fused_stacked import FusedStacked, is_supported

        if isinstance(self.model, StackedCDUNet) and is_supported(self.model):
            return FusedStacked(self.model)
        return None

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        size = (image.shape[-2], image.shape[-1])
        image = image.to(self.device, non_blocking=True)
        return EncodedImage(tuple(self._recorder(("encode",), self._encode_levels, [image])), size)

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, or of B pairs of images, each conditioned on the other."""
        if self._fused is not None and a.size == b.size and a.levels[0].shape == b.levels[0].shape:
            function = partial(self._decode_group, size=a.size)
            joined = list(zip(a.levels, b.levels, strict=True))
            outputs = self._recorder(("decode group", a.size), function, joined)
            halves = list(zip(*(output.chunk(2) for output in outputs), strict=True))
            return self._dense(halves[0], a), self._dense(halves[1], b)
        function = partial(self._decode_levels, size_a=a.size, size_b=b.size)
        outputs = self._recorder(("decode", a.size, b.size), function, [*a.levels, *b.levels])
        half = len(outputs) // 2
        return self._dense(outputs[:half], a), self._dense(outputs[half:], b)

    @torch.no_grad()
    def _measure_fine_stride(self) -> int:
        """Stride of the maps for refinement, which a graph of tensors cannot tell."""
        encoded = super().encode(torch.zeros(1, 3, MULTIPLE, MULTIPLE))
        return super().decode(encoded, encoded)[0].fine_stride

    def _encode_levels(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        if self._fused is not None:
            return list(self._fused.encode(inputs[0]).levels)
        image = inputs[0].to(self.dtype, memory_format=torch.channels_last)
        return list(self.model.encode(image).levels)

    def _decode_group(self, inputs: Sequence[Tensor], size: Size) -> list[Tensor]:
        assert self._fused is not None
        return self._dense_parts(self._fused.describe_group(EncodedImage(tuple(inputs), size)))

    def _decode_levels(self, inputs: Sequence[Tensor], size_a: Size, size_b: Size) -> list[Tensor]:
        levels = len(inputs) // 2
        first = EncodedImage(tuple(inputs[:levels]), size_a)
        second = EncodedImage(tuple(inputs[levels:]), size_b)
        decode = self.model.decode if self._fused is None else self._fused.decode
        return [part for dense in decode(first, second) for part in self._dense_parts(dense)]

    def _dense_parts(self, dense: DenseDescriptors) -> list[Tensor]:
        fine = [] if dense.fine is None else [dense.fine.to(self.dtype)]
        return [dense.descriptors.to(self.dtype), dense.score, *fine]

    def _dense(self, parts: Sequence[Tensor], image: EncodedImage) -> DenseDescriptors:
        fine = parts[2] if len(parts) > 2 else None
        return DenseDescriptors(parts[0], parts[1], self.model.stride, image.size, fine, self._fine_stride)

"""The network on CUDA in half precision, through CUDA graphs and, with Triton, in fused kernels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from coam.backends.eager import FoldedNetwork
from coam.kernels.graphs import Recorder
from coam.models.network import DescriptorNetwork
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.padding import MULTIPLE
from coam.tensors import fused_kernels

if TYPE_CHECKING:
    from coam.kernels.stacked import FusedStacked

Size = tuple[int, int]  # height, width


class GraphedNetwork(FoldedNetwork):
    """A network on a CUDA device: batch norm folded, channels last, half precision, CUDA graphs.

    With Triton the default network runs in fused kernels. `dtype` is by default the half type that the
    network declares: float16 has eight times the resolution of bfloat16 at the same speed, where
    activations stay below a few hundred. Descriptors and fine maps stay in that type, as matching takes them.
    """

    def __init__(
        self, model: DescriptorNetwork, device: torch.device, dtype: torch.dtype | None = None
    ) -> None:
        super().__init__(model, device, dtype or model.capabilities.half)
        kernels = fused_kernels(device)
        self._fused: FusedStacked | None = None if kernels is None else kernels.fuse_network(self.model)
        self._recorder: Callable[..., list[Tensor]] = Recorder()
        self._fine_stride = self._measure_fine_stride()

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

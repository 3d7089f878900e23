"""The network in eager PyTorch: as it was trained, or with batch norm folded."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from coam.backends.fused_layers import fuse_activations, takes_activations
from coam.backends.headwise_attention import attend_headwise, is_faster
from coam.models.folding import fold_batch_norm
from coam.models.network import DescriptorNetwork
from coam.models.outputs import DenseDescriptors, EncodedImage


class PlainNetwork:
    """The network as it was trained: float32, and bfloat16 autocast on CUDA."""

    def __init__(self, model: DescriptorNetwork, device: torch.device) -> None:
        self.model = model
        self.device = device

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        with self._precision():
            return self.model.encode(image.to(self.device))

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        with self._precision():
            return self.model.decode(a, b)

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride."""
        with self._precision():
            return self.model.attention_maps(a, b)

    def coarse_descriptors(self, a: EncodedImage, b: EncodedImage) -> tuple[Tensor, Tensor] | None:
        """Unit descriptors of coarse cells of both images, conditioned, before the decoder."""
        with self._precision():
            return self.model.coarse_descriptors(a, b)

    def _precision(self) -> AbstractContextManager[object]:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


class FoldedNetwork(PlainNetwork):
    """Batch norm folded, activations fused, channels last, all weights and features in one type."""

    _fine_stride = 2  # of the maps for refinement; those who run graphs of tensors set it

    def __init__(self, model: DescriptorNetwork, device: torch.device, dtype: torch.dtype) -> None:
        folded = fold_batch_norm(model).to(device=device, dtype=dtype)
        if is_faster(device, dtype):
            attend_headwise(folded)
        if takes_activations(device, dtype):
            fuse_activations(folded)
        super().__init__(folded.to(memory_format=torch.channels_last), device)  # type: ignore[call-overload]
        self.dtype = dtype

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        image = image.to(device=self.device, dtype=self.dtype, memory_format=torch.channels_last)
        return self.model.encode(image)

    def _precision(self) -> AbstractContextManager[object]:
        return nullcontext()

    def _dense(self, parts: Sequence[Tensor], image: EncodedImage) -> DenseDescriptors:
        """One image of what a graph returns: descriptors, score and, if the network has one, a fine map."""
        fine = parts[2] if len(parts) > 2 else None
        stride = self.model.capabilities.stride
        return DenseDescriptors(parts[0], parts[1], stride, image.size, fine, self._fine_stride)

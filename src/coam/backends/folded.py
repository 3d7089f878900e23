"""torch itself, operation by operation."""

from __future__ import annotations

import torch
from torch import Tensor

from coam.backends.headwise_attention import attend_headwise, is_faster
from coam.models.folding import fold_batch_norm
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.registry import DescriptorModel


class PlainNetwork:
    """The network as it was trained: float32, and bfloat16 autocast on CUDA."""

    def __init__(self, model: DescriptorModel, device: torch.device) -> None:
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

    def _precision(self) -> torch.autocast:
        return torch.autocast(self.device.type, torch.bfloat16, enabled=self.device.type == "cuda")


class FoldedNetwork:
    """Batch norm folded, channels last, all weights and features in one type."""

    def __init__(self, model: DescriptorModel, device: torch.device, dtype: torch.dtype) -> None:
        folded = fold_batch_norm(model).to(device=device, dtype=dtype)
        if is_faster(device, dtype):
            attend_headwise(folded)
        self.model: DescriptorModel = folded.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.device = device
        self.dtype = dtype

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""
        image = image.to(device=self.device, dtype=self.dtype, memory_format=torch.channels_last)
        return self.model.encode(image)

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""
        return self.model.decode(a, b)

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride."""
        return self.model.attention_maps(a, b)

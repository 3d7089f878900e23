"""Ways to run a network: one face, the same results within a stated tolerance, different speed.

| backend | what runs | matches that stay the same |
|---|---|---|
| `plain` | the network as it was trained, float32 (bfloat16 autocast on CUDA) | the reference |
| `float32` | batch norm folded, channels last | all but ties |
| `bfloat16` | the same in bfloat16, on a CPU that computes in it | 96 %, precision within .001 MMA |
| `cuda_graphs` | the same in float16, in fused kernels with Triton, each shape recorded once | 99 % |
| `onnxruntime`, `openvino` | the exported graphs, float32 | all but ties |

`auto`: `cuda_graphs` on CUDA, `bfloat16` on a CPU that has it, `float32` elsewhere. In float32 all of them
reach the speed of the matrix product, so none is preferred for being another library.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from coam.errors import ConfigError
from coam.models.outputs import DenseDescriptors, EncodedImage
from coam.models.registry import DescriptorModel
from coam.models.stacked import StackedCDUNet

BACKENDS = ("auto", "plain", "float32", "bfloat16", "cuda_graphs", "onnxruntime", "openvino")


class Network(Protocol):
    """What a matcher needs of a network; a backend reads only what its own `encode` gave."""

    def encode(self, image: Tensor) -> EncodedImage:
        """image (B, 3, H, W) in [0, 1], any size."""

    def decode(self, a: EncodedImage, b: EncodedImage) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Descriptors of both images, each conditioned on the other."""

    def attention_maps(self, a: EncodedImage, b: EncodedImage) -> dict[int, Tensor]:
        """Attention (B, Ha, Wa, Hb, Wb) of every position of A over B, by stride."""


def open_network(model: DescriptorModel, device: torch.device, backend: str = "auto") -> Network:
    """The network of `model` on `device`, run by `backend`, one of `BACKENDS`."""
    if backend not in BACKENDS:
        raise ConfigError(f"there is no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "auto":
        backend = fastest_backend(model, device)
    if backend == "cuda_graphs":
        if device.type != "cuda":
            raise ConfigError(f"the backend {backend!r} needs a CUDA device, not {device}")
        from coam.backends.cuda_graphs import GraphedNetwork

        # Only the default network is known to stay within what float16 holds.
        dtype = torch.float16 if isinstance(model, StackedCDUNet) else torch.bfloat16
        return GraphedNetwork(model, device, dtype)
    if backend in ("onnxruntime", "openvino"):
        if device.type != "cpu":
            raise ConfigError(f"the backend {backend!r} runs on the CPU; give device='cpu'")
        from coam.backends.exported import ONNXRuntimeNetwork, OpenVINONetwork

        return ONNXRuntimeNetwork(model) if backend == "onnxruntime" else OpenVINONetwork(model)
    from coam.backends.folded import FoldedNetwork, PlainNetwork

    if backend == "plain":
        return PlainNetwork(model, device)
    return FoldedNetwork(model, device, torch.bfloat16 if backend == "bfloat16" else torch.float32)


def fastest_backend(model: DescriptorModel, device: torch.device) -> str:
    """What `auto` stands for; measured, see docs/performance.md."""
    if device.type == "cuda":
        return "cuda_graphs"
    if device.type == "cpu":
        is_default = isinstance(model, StackedCDUNet)  # quality in bfloat16 was measured for this one
        return "bfloat16" if is_default and has_native_bfloat16() else "float32"
    return "plain"


def has_native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself; where it does not, float32 is faster."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name)()) for name in tests if hasattr(torch.cpu, name))

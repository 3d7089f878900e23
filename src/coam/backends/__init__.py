"""Backends, ways to run a network: one interface, the same results within a stated tolerance, other speed.

| backend | what runs | matches that stay the same |
|---|---|---|
| `plain` | the network as it was trained, float32 (bfloat16 autocast on CUDA) | the reference |
| `float32` | batch norm folded, activations fused, channels last | all but ties |
| `bfloat16` | the same in bfloat16, on a CPU that computes in it | 96 %, precision within .001 MMA |
| `cuda_graphs` | the same in half precision, a CUDA graph per shape, Triton's fused kernels | 99 % |
| `onnxruntime`, `openvino` | the exported graphs, float32 | all but ties |

`auto`: `cuda_graphs` on CUDA, `bfloat16` on a CPU that has it, `float32` elsewhere. In float32 all of them
reach the speed of the matrix product, so none is preferred for being another library.
"""

from __future__ import annotations

from typing import Literal, get_args

import torch

from coam.errors import ConfigError
from coam.models.network import DescriptorNetwork, Network

Backend = Literal["auto", "plain", "float32", "bfloat16", "cuda_graphs", "onnxruntime", "openvino"]
BACKENDS = get_args(Backend)


def open_network(model: DescriptorNetwork, device: torch.device, backend: str = "auto") -> Network:
    """The network of `model` on `device`, run by `backend`, one of `BACKENDS`."""
    if backend not in BACKENDS:
        raise ConfigError(f"there is no backend {backend!r}; choose one of {', '.join(BACKENDS)}")
    if backend == "auto":
        backend = fastest_backend(model, device)
    if backend == "cuda_graphs":
        if device.type != "cuda":
            raise ConfigError(f"the backend {backend!r} needs a CUDA device, not {device}")
        from coam.backends.cuda_graphs import GraphedNetwork

        return GraphedNetwork(model, device)
    if backend in ("onnxruntime", "openvino"):
        if device.type != "cpu":
            raise ConfigError(f"the backend {backend!r} runs on the CPU; give device='cpu'")
        from coam.backends.exported import ExportedNetwork, load_onnxruntime, load_openvino

        return ExportedNetwork(model, load_onnxruntime if backend == "onnxruntime" else load_openvino)
    from coam.backends.eager import FoldedNetwork, PlainNetwork

    if backend == "plain":
        return PlainNetwork(model, device)
    return FoldedNetwork(model, device, torch.bfloat16 if backend == "bfloat16" else torch.float32)


def fastest_backend(model: DescriptorNetwork, device: torch.device) -> str:
    """What `auto` stands for; measured, see docs/performance.md."""
    if device.type == "cuda":
        return "cuda_graphs"
    if device.type == "cpu":
        return "bfloat16" if model.capabilities.bfloat16_on_cpu and has_native_bfloat16() else "float32"
    return "plain"


def has_native_bfloat16() -> bool:
    """Whether this CPU multiplies bfloat16 itself; where it does not, float32 is faster."""
    tests = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(bool(getattr(torch.cpu, name)()) for name in tests if hasattr(torch.cpu, name))

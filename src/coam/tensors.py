"""Constant tensors, made once per device.

A small tensor made from Python numbers is copied from host to device, and the copy waits for the device. In
code that runs in every training step such waits cost more than the arithmetic, and a CUDA graph cannot
hold them.
"""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor (N,) that must not be written to."""
    with torch.inference_mode(False):  # it may serve inside and outside of inference mode
        return torch.tensor(values, dtype=dtype, device=device)

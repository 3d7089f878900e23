"""Devices, threads and fused kernels, constant tensors, and products that are exact on every device.

A small tensor made from Python numbers is copied from host to device, and the copy waits for the device. In
code that runs in every training step such waits cost more than the arithmetic, and a CUDA graph cannot
hold them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, lru_cache, partial
from types import ModuleType

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.errors import ConfigError


def as_array(tensor: Tensor) -> npt.NDArray[np.float32]:
    """A tensor as a float32 array of the same shape."""
    return tensor.detach().float().cpu().numpy()


@lru_cache(maxsize=256)
def constant(values: tuple[float, ...], device: torch.device, dtype: torch.dtype = torch.float32) -> Tensor:
    """A tensor (N,) that must not be written to."""
    with torch.inference_mode(False):  # it may serve inside and outside of inference mode
        return torch.tensor(values, dtype=dtype, device=device)


def times(first: Tensor, second: Tensor) -> Tensor:
    """Matrix product (..., n, m) x (..., m, k) -> (..., n, k) of small matrices in full float32.

    Where training allows TF32, a library's product keeps ten bits: a third of a pixel in a 384-pixel picture.
    """
    return (first.unsqueeze(-1) * second.unsqueeze(-3)).sum(dim=-2)


@contextmanager
def exact_products() -> Iterator[None]:
    """Inside, a library's products of float32 matrices are not rounded to TF32 either."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def fused_kernels(device: torch.device) -> ModuleType | None:
    """The module `coam.kernels.fused` where this device runs our kernels, else None: the one place that asks.

    Nothing of that room is imported for a device that cannot use it.
    """
    if device.type != "cuda":
        return None
    from coam.kernels.availability import can_fuse

    if not can_fuse(device):
        return None
    from coam.kernels import fused

    return fused


@cache
def survive_forks() -> None:
    """From now on a process that is forked from this one goes on with one thread.

    PyTorch's threads do not survive a fork, and the child would wait for them for ever.
    """
    if hasattr(os, "register_at_fork"):  # not on Windows, which has no fork either
        os.register_at_fork(after_in_child=partial(torch.set_num_threads, 1))


def pick_device(device: str | torch.device = "auto") -> torch.device:
    """The device of that name; "auto": CUDA, else Apple's, else the CPU."""
    if device != "auto":
        try:
            chosen = torch.device(device)
        except (RuntimeError, TypeError) as error:  # torch names every kind of device it has heard of
            raise ConfigError(
                f"there is no device {device!s}; choose auto, cpu, cuda, cuda:1 or mps"
            ) from error
        try:
            torch.empty(0, device=chosen)
        except (RuntimeError, AssertionError) as error:
            reason = str(error).splitlines()[0]
            raise ConfigError(
                f"device {device!s} cannot be used here ({reason}); choose cpu or auto"
            ) from error
        return chosen
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")

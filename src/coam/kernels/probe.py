"""The smallest kernel, to see whether any runs. Import only where Triton is installed."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

SIZE = 16


@triton.jit  # type: ignore[untyped-decorator]
def _double_kernel(x_ptr, y_ptr, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    place = tl.arange(0, SIZE)
    tl.store(y_ptr + place, 2.0 * tl.load(x_ptr + place))


def doubles(device: torch.device) -> bool:
    """Whether a kernel that doubles numbers does so on this device."""
    x = torch.arange(SIZE, dtype=torch.float32, device=device)
    y = torch.zeros_like(x)
    _double_kernel[(1,)](x, y, SIZE=SIZE)
    return torch.equal(y, 2 * x)

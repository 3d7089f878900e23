"""Where fused kernels can run; COAM_TRITON=0 turns them off."""

from __future__ import annotations

import os
import warnings
from functools import cache
from importlib.util import find_spec

import torch

LOWEST_CAPABILITY = (8, 0)  # Ampere: older devices lack the shared memory that the kernels take


def can_fuse(device: torch.device) -> bool:
    """Whether this is a CUDA device on which Triton's kernels run."""
    if os.environ.get("COAM_TRITON") == "0" or device.type != "cuda":
        return False
    if torch.version.cuda is None or not torch.cuda.is_available():  # a build without CUDA, or no driver
        return False
    return find_spec("triton") is not None and _runs_kernels(device)


@cache
def _runs_kernels(device: torch.device) -> bool:
    """Whether a kernel compiles and runs: Triton needs a C compiler for that, which not all machines have."""
    if torch.cuda.get_device_capability(device) < LOWEST_CAPABILITY:
        return False
    try:
        from coam.kernels.probe import doubles

        return doubles(device)
    except Exception as error:
        line = (str(error).splitlines() or [type(error).__name__])[0]
        warnings.warn(
            f"Triton's kernels do not run here ({line}); plain ones take their place and are slower"
            " (install a C compiler, or set COAM_TRITON=0 to silence this)",
            stacklevel=3,
        )
        return False

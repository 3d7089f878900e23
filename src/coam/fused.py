"""Where fused kernels can run; COAM_TRITON=0 turns them off."""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch


def can_fuse(device: torch.device) -> bool:
    """Whether this is a CUDA device and Triton is installed."""
    if os.environ.get("COAM_TRITON") == "0" or device.type != "cuda":
        return False
    return torch.version.cuda is not None and find_spec("triton") is not None

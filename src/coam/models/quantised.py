"""Weights in 8 bits: a quarter of a float32 file, for models that few need at their last digit.

Every matrix or convolution is stored as whole numbers from -127 to 127 with one scale for each output
channel; biases, norms and statistics stay in float16. Networks compute with the restored float weights.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

LEVELS = 127
SCALE = ".scale"  # the name of a tensor's scales is its own with this at the end


def quantise(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights (O, ...) as int8 with scales (O,) float32 beside them; vectors float16, counts as they are."""
    stored: dict[str, Tensor] = {}
    for name, value in state.items():
        if not value.is_floating_point():
            stored[name] = value
        elif value.ndim < 2:
            stored[name] = value.half()
        else:
            rows = value.float().flatten(1)
            scale = rows.abs().amax(dim=1).clamp(min=1e-12) / LEVELS
            stored[name] = (rows / scale.unsqueeze(1)).round().to(torch.int8).view(value.shape)
            stored[name + SCALE] = scale
    return stored


def restore(stored: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What `quantise` stored as float32; tensors of other files pass unchanged but for their precision."""
    state = {}
    for name, value in stored.items():
        if value.dtype == torch.int8 and name + SCALE in stored:
            scale = stored[name + SCALE].float()
            state[name] = value.float() * scale.view(-1, *[1] * (value.ndim - 1))
        elif not (name.endswith(SCALE) and name.removesuffix(SCALE) in stored):
            state[name] = value.float() if value.is_floating_point() else value
    return state

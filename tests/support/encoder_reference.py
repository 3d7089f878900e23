"""Formula weights and summaries by which encoders are compared with their reference implementations."""

from __future__ import annotations

import hashlib
import math
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coam.models.encoders import Encoder, build_encoder
from coam.models.encoders.efficientnet import lite1_name

REFERENCE = Path(__file__).parents[1] / "models" / "reference" / "encoders.json"

# Name in the reference file -> encoder name and options.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "resnet34": ("resnet34", {}),
    "resnet50": ("resnet50", {}),
    "resnet50_original": ("resnet50", {"stride_on_first_conv": True}),
    "efficientnet_b1": ("efficientnet_b1", {}),
    "efficientnet_lite1": ("efficientnet_lite1", {}),
}


def formula_values(name: str, shape: tuple[int, ...]) -> Tensor:
    """Values that depend on the parameter's name only, from PCG64's raw stream, which no numpy changes."""
    raw = np.random.PCG64(zlib.crc32(name.encode())).random_raw(max(1, math.prod(shape)))
    unit = (raw >> np.uint64(11)).astype(np.float64) * 2.0**-53
    if len(shape) == 4:
        values = (2 * unit - 1) * math.sqrt(3 / math.prod(shape[1:]))
    elif name.endswith(("running_var", "weight")):
        values = 0.5 + unit
    else:
        values = 0.4 * unit - 0.2
    return torch.from_numpy(values.astype(np.float32)).reshape(shape)


def synthetic_image() -> Tensor:
    """Waves (1, 3, 64, 96) in [0, 1] that differ along x, y and channels: no flip or shift goes unseen."""
    y, x = torch.meshgrid(torch.arange(64.0), torch.arange(96.0), indexing="ij")
    waves = [torch.sin(0.11 * (c + 1) * x + 0.07 * y + 0.0009 * x * y * (c + 1)) for c in range(3)]
    return (0.5 + 0.5 * torch.stack(waves))[None].float()


def level_summary(level: Tensor) -> dict[str, Any]:
    """Shape, mean, deviation and nine values, the corners among them, of one pyramid level."""
    flat = level.double().flatten()
    picks = torch.linspace(0, len(flat) - 1, 9).round().long()
    return {
        "shape": list(level.shape),
        "mean": flat.mean().item(),
        "std": flat.std().item(),
        "values": flat[picks].tolist(),
    }


def names_digest(state: dict[str, Tensor]) -> str:
    """Fingerprint of all names and shapes of a state dict."""
    lines = sorted(f"{name} {tuple(value.shape)}" for name, value in state.items())
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def formula_state(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """`formula_values` for every floating-point entry of a state dict; counters are left out."""
    return {name: formula_values(name, tuple(v.shape)) for name, v in state.items() if v.is_floating_point()}


def formula_encoder(case: str) -> Encoder:
    """The encoder of a case with formula weights, in eval mode."""
    name, options = CASES[case]
    encoder = build_encoder(name, **options).eval()
    encoder.load_state_dict(formula_state(encoder.state_dict()), strict=False)
    return encoder


def lite1_package_state() -> dict[str, Tensor]:
    """Formula weights under the package's names, made by turning `lite1_name` around."""
    ours = formula_encoder("efficientnet_lite1").state_dict()
    parts = ("_expand_conv", "_bn0", "_depthwise_conv", "_bn1", "_project_conv", "_bn2")
    fields = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    candidates = [f"{part}.{field}" for part in ("_conv_stem", "_bn0") for field in fields]
    candidates += [f"_blocks.{i}.{part}.{field}" for i in range(21) for part in parts for field in fields]
    return {
        name: ours[mine] for name in candidates if (mine := lite1_name(name)) is not None and mine in ours
    }

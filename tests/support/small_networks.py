"""Networks that are small enough for quick tests, with random weights whose activations are of order one."""

from __future__ import annotations

from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from coam.models.cdunet import CDUNet, CDUNetConfig
from coam.models.coattention import AttentionBlock
from coam.models.stacked import StackedCDUNet, StackedConfig

Network = TypeVar("Network", bound=nn.Module)

SMALL_PAPER: dict[str, Any] = {
    "encoder": "resnet34",
    "projected_channels": (8, 12),
    "decoder_widths": (16, 16, 12, 12, 32),  # the last one wide: eight ReLUs are all zero here and there
}
SMALL_STACKED: dict[str, Any] = {
    "width": 32,
    "heads": 2,
    "rounds": (1, 1),
    "decoder_widths": (24, 16, 12),
    "descriptor_channels": 16,
    "fine_channels": 8,
}


def small_cdunet(**changes: Any) -> CDUNet:
    torch.manual_seed(1)
    return settled(CDUNet(CDUNetConfig(**{**SMALL_PAPER, **changes})))


def small_stacked(**changes: Any) -> StackedCDUNet:
    torch.manual_seed(1)
    model = StackedCDUNet(StackedConfig(**{**SMALL_STACKED, **changes}))
    for module in model.modules():
        if isinstance(module, AttentionBlock):  # they start as the identity, where nothing would show
            nn.init.normal_(module.out.weight, std=0.2)
    return settled(model)


def settled(model: Network) -> Network:
    """Batch norms that have seen data, so that activations are of order one, as after training."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # the plain mean over what was seen
    model.train()
    with torch.no_grad():
        for seed in (10, 11):
            model(picture(64, 64, seed), picture(64, 64, seed + 5))
    return model.eval()


def picture(height: int, width: int, seed: int = 0, batch: int = 1) -> Tensor:
    """Smooth random colours (B, 3, H, W) in [0, 1]."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.rand(batch, 3, height // 8 + 2, width // 8 + 2, generator=generator)
    return nn.functional.interpolate(coarse, (height, width), mode="bilinear", align_corners=False)


def difference(a: Tensor, b: Tensor) -> float:
    """The largest absolute difference."""
    return float((a - b).abs().max())


def mean_cosine(one: Tensor, two: Tensor) -> float:
    """Mean over all positions of the inner product of unit descriptors (B, D, H, W)."""
    return float((one * two).sum(dim=1).mean())

"""Targets and losses of the distinctiveness score."""

from __future__ import annotations

import torch
from torch import Tensor

from coam.losses.correspondence import distance, masked_mean


def confusion_target(negative: Tensor, allowed: Tensor, margin: float = 1.0, tau: float = 0.25) -> Tensor:
    """The paper's target 1 / (1 + m)^tau, m = number of negatives nearer than the margin.

    negative (B, L, N): similarities of each point with wrong ones, allowed (B, L, N) -> (B, L) in (0, 1].
    """
    confused = ((distance(negative) < margin) & allowed).sum(dim=-1)
    return (1.0 + confused).pow(-tau)


def absolute_error(score: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """The paper's L1 loss between score and target, both (B, L)."""
    return masked_mean((score - target.detach()).abs(), valid)


def correctness_target(logits: Tensor, truth: Tensor, columns: int, radius: float | Tensor) -> Tensor:
    """(B, L): 1 where the best cell of logits (B, L, M) is within `radius` of the truth (B, L, 2), else 0."""
    best = logits.argmax(dim=-1)
    cell = torch.stack([best % columns, torch.div(best, columns, rounding_mode="floor")], dim=-1)
    return ((cell - truth).abs().amax(dim=-1) <= radius).to(logits.dtype)


def cross_entropy(score: Tensor, target: Tensor, valid: Tensor) -> Tensor:
    """Binary cross entropy of scores in [0, 1]; all (B, L)."""
    score = score.float().clamp(1e-4, 1 - 1e-4)
    return masked_mean(-(target * score.log() + (1 - target) * (1 - score).log()), valid)

"""Losses that make descriptors of corresponding points alike and all others different."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.tensors import constant


def masked_mean(values: Tensor, mask: Tensor) -> Tensor:
    """Mean of `values` where `mask`; zero (with a gradient) where there is none."""
    weight = mask.to(values.dtype)
    return (values * weight).sum() / weight.sum().clamp(min=1.0)


def pair_mean(values: Tensor, mask: Tensor, enough: int = 32) -> Tensor:
    """Mean over pairs of the mean over each pair's points (B, L) where `mask`.

    A pair with a hundred tracked points counts as much as one with thousands of rendered ones; one with fewer
    than `enough` counts less.
    """
    weight = mask.to(values.dtype)
    per_pair = (values * weight).sum(dim=1) / weight.sum(dim=1).clamp(min=enough)
    return per_pair.sum() / mask.any(dim=1).sum().clamp(min=1)


def distance(similarity: Tensor) -> Tensor:
    """Euclidean distance of unit vectors from their inner product; its gradient stays finite at zero."""
    return (2.0 - 2.0 * similarity).clamp(min=1e-8).sqrt()


def hinge(
    positive: Tensor, negative: Tensor, allowed: Tensor, valid: Tensor, margin: float = 1.0, hardest: int = 3
) -> Tensor:
    """The paper's loss: positives at distance 0, negatives beyond margin + the distance of their positive.

    positive (B, L): similarity of corresponding points; negative (B, L, N): of each point with N wrong ones;
    allowed (B, L, N): which of them really are wrong; valid (B, L). The `hardest` negatives count once more.
    """
    to_positive = distance(positive)
    violation = (margin + to_positive.unsqueeze(-1) - distance(negative)).clamp(min=0.0)
    violation = torch.where(allowed, violation, torch.zeros_like(violation))
    worst = violation.topk(min(hardest, violation.shape[-1]), dim=-1).values
    return pair_mean(to_positive + violation.mean(dim=-1) + worst.mean(dim=-1), valid)


def info_nce(
    positive: Tensor, negative: Tensor, allowed: Tensor, valid: Tensor, temperature: float | Tensor = 20.0
) -> Tensor:
    """InfoNCE of the appendix: cross entropy of the positive against its negatives; shapes as in `hinge`."""
    wrong = (negative * temperature).masked_fill(~allowed, -1e4)
    logits = torch.cat([positive.unsqueeze(-1) * temperature, wrong], dim=-1)
    return pair_mean(-logits.log_softmax(dim=-1)[..., 0], valid)


def dual_softmax(
    descriptors0: Tensor, descriptors1: Tensor, valid: Tensor, temperature: float | Tensor = 20.0
) -> Tensor:
    """Row and column cross entropy of the matrix of sampled points (B, L, D), (B, L, D); valid (B, L)."""
    logits = temperature * descriptors0 @ descriptors1.transpose(1, 2)
    logits = logits.masked_fill(~(valid.unsqueeze(1) & valid.unsqueeze(2)), -1e4)
    rows = logits.log_softmax(dim=2).diagonal(dim1=1, dim2=2)
    columns = logits.log_softmax(dim=1).diagonal(dim1=1, dim2=2)
    return pair_mean(-(rows + columns) / 2, valid)


def cell_targets(
    points: Tensor, columns: int, rows: int, stride: float, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """Where points (B, L, 2) lie on a grid of cells: the nearest cell and its eight neighbours, with weights.

    spread (B,): standard deviation of the weights in cells. Returns index (B, L, 9) int64 and weight
    (B, L, 9) that sums to 1; neighbours outside the grid weigh nothing.
    """
    position = (points + 0.5) / stride - 0.5
    centre = position.round()
    reach = torch.arange(-1, 2, device=points.device, dtype=points.dtype)
    steps = torch.stack(torch.meshgrid(reach, reach, indexing="xy"), dim=-1).reshape(-1, 2)
    cells = centre.unsqueeze(2) + steps
    squared = (cells - position.unsqueeze(2)).square().sum(dim=-1)
    inside = ((cells >= 0) & (cells < constant((columns, rows), cells.device))).all(dim=-1)
    logits = -squared / (2 * spread.view(-1, 1, 1) ** 2)
    weight = torch.where(inside, logits, torch.full_like(logits, -1e4)).softmax(dim=-1)
    x, y = cells[..., 0].clamp(0, columns - 1), cells[..., 1].clamp(0, rows - 1)
    return (y * columns + x).long(), weight


def grid_cross_entropy(logits: Tensor, index: Tensor, weight: Tensor, valid: Tensor) -> Tensor:
    """Cross entropy of logits (B, L, M) over ALL cells of the other image against soft targets (B, L, 9)."""
    wanted = (logits.gather(2, index) * weight).sum(dim=-1)
    return pair_mean(logits.logsumexp(dim=-1) - wanted, valid)


def grid_logits(query: Tensor, feature_map: Tensor, temperature: float | Tensor) -> Tensor:
    """Similarities (B, L, H * W), float32, of queries (B, L, D) with every cell of a map (B, D, H, W)."""
    return torch.bmm(query, feature_map.flatten(2)).float() * temperature


def sample(feature_map: Tensor, points: Tensor, stride: float) -> Tensor:
    """Differentiable bilinear samples (B, L, C) of a map (B, C, H, W) at pixels (B, L, 2)."""
    rows, columns = feature_map.shape[-2:]
    # As geometry.coordinates.to_unit does for an image of columns * stride by rows * stride pixels.
    unit = (points + 0.5) * constant((2.0 / (columns * stride), 2.0 / (rows * stride)), points.device) - 1.0
    values = F.grid_sample(feature_map, unit.unsqueeze(1), align_corners=False, padding_mode="border")
    return values[:, :, 0].transpose(1, 2)

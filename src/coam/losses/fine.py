"""The loss of the fine stage, in pixels."""

from __future__ import annotations

import torch
from torch import Tensor

from coam.losses.correspondence import masked_mean, pair_mean
from coam.tensors import constant


def window(feature_map: Tensor, centre: Tensor, stride: float, radius: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features in a square of cells around positions.

    feature_map (B, F, H, W), centre (B, L, 2) pixels. Returns features (B, L, S, F), pixel positions
    (B, L, S, 2) and a mask (B, L, S) of cells inside the map; S = (2 radius + 1)^2.
    """
    rows, columns = feature_map.shape[-2:]
    nearest = ((centre + 0.5) / stride - 0.5).round()
    reach = torch.arange(-radius, radius + 1, device=centre.device, dtype=centre.dtype)
    steps = torch.stack(torch.meshgrid(reach, reach, indexing="xy"), dim=-1).reshape(-1, 2)
    cells = nearest.unsqueeze(2) + steps
    inside = ((cells >= 0) & (cells < constant((columns, rows), cells.device))).all(dim=-1)
    x, y = cells[..., 0].clamp(0, columns - 1), cells[..., 1].clamp(0, rows - 1)
    address = (y * columns + x).long()
    flat = feature_map.flatten(2).transpose(1, 2)
    batch = torch.arange(len(flat), device=flat.device).view(-1, 1, 1)
    return flat[batch, address], (cells + 0.5) * stride - 0.5, inside


def fine_loss(
    query: Tensor,
    feature_map: Tensor,
    centre: Tensor,
    truth: Tensor,
    valid: Tensor,
    stride: float,
    radius: int,
) -> tuple[Tensor, Tensor]:
    """Cross entropy over the window plus the distance of the expected position from the truth.

    query (B, L, F): fine features of the points; centre (B, L, 2): where the coarse stage would look; truth
    (B, L, 2). Returns the loss and the mean error in pixels (detached).
    """
    features, positions, inside = window(feature_map, centre, stride, radius)
    logits = torch.einsum("blf,blsf->bls", query.float(), features.float()) / query.shape[-1] ** 0.5
    logits = logits.masked_fill(~inside, -1e4)
    log_weight = logits.log_softmax(dim=-1)
    off = (positions - truth.unsqueeze(2)) / stride
    target = torch.where(inside, -off.square().sum(dim=-1) / (2 * 0.45**2), torch.full_like(logits, -1e4))
    target = target.softmax(dim=-1)
    reachable = valid & (off.abs().amax(dim=-1).amin(dim=-1) <= 0.75)
    entropy = -(target * log_weight).sum(dim=-1)
    expected = (log_weight.exp().unsqueeze(-1) * positions).sum(dim=2)
    error = (expected - truth).norm(dim=-1)
    robust = torch.where(error < 1.0, 0.5 * error.square(), error - 0.5)
    return pair_mean(entropy + robust, reachable), masked_mean(error, reachable).detach()

"""Losses that need camera poses only (CAPSNet): a match must lie on its epipolar line, and lead back.

A point's match is the expected position under a softmax of similarities: first over the whole coarse map,
then inside a window of the fine map. Points are pixels, maps have a stride, and a cell stands for its centre
(align_corners=False throughout). Sums of products are written out instead of matrix products, which the fast
modes of GPUs round to ten bits: a third of a pixel.
"""

from __future__ import annotations

import torch
from torch import Tensor

from coam.losses.correspondence import masked_mean


def epipolar_distance(points0: Tensor, points1: Tensor, fundamental: Tensor) -> Tensor:
    """Distance in pixels (B, L) of points1 (B, L, 2) from the epipolar lines of points0 (B, L, 2).

    `fundamental` (B, 3, 3) obeys x1^T F x0 = 0. A point at the epipole has no line: its distance is 0.
    """
    x, y = points0.unbind(-1)
    f = fundamental.unsqueeze(1)
    a, b, c = (f[..., row, 0] * x + f[..., row, 1] * y + f[..., row, 2] for row in range(3))
    residual = a * points1[..., 0] + b * points1[..., 1] + c
    return residual.abs() / (a.square() + b.square()).sqrt().clamp(min=1e-12)


def similarities(query: Tensor, feature_map: Tensor, logit_scale: float | Tensor) -> Tensor:
    """Logits (B, L, H, W) of queries (B, L, D) with every cell of a map (B, D, H, W)."""
    rows, columns = feature_map.shape[-2:]
    logits = torch.bmm(query, feature_map.flatten(2)) * logit_scale
    return logits.reshape(*logits.shape[:2], rows, columns)


def centres(count: int, stride: float, device: torch.device) -> Tensor:
    """Pixel positions (count,) of the cells along one side of a map."""
    return (torch.arange(count, device=device, dtype=torch.float32) + 0.5) * stride - 0.5


def expected_position(logits: Tensor, stride: float) -> tuple[Tensor, Tensor]:
    """Mean position (B, L, 2) in pixels under the softmax of logits (B, L, H, W), and its spread (B, L).

    The spread is the sum of the standard deviations in x and in y.
    """
    rows, columns = logits.shape[-2:]
    weight = logits.flatten(2).softmax(dim=-1).reshape(logits.shape)
    means, deviations = [], []
    for share, count in ((weight.sum(dim=-2), columns), (weight.sum(dim=-1), rows)):
        position = centres(count, stride, logits.device).to(share.dtype)
        mean = (share * position).sum(dim=-1)
        variance = (share * (position - mean.unsqueeze(-1)).square()).sum(dim=-1)
        means.append(mean)
        deviations.append(variance.clamp(min=1e-8).sqrt())
    return torch.stack(means, dim=-1), deviations[0] + deviations[1]


def keep_window(logits: Tensor, centre: Tensor, stride: float, reach: float) -> Tensor:
    """Logits (B, L, H, W) without the cells farther than `reach` pixels in x or y from centre (B, L, 2).

    `reach` is at least one stride, so that some cell is left wherever the centre lies in the image.
    """
    rows, columns = logits.shape[-2:]
    reach = max(reach, stride)
    last = torch.stack([centres(n, stride, logits.device)[-1] for n in (columns, rows)])
    inside = torch.minimum(centre.clamp(min=(stride - 1) / 2), last)  # the outermost cells keep their border
    near_x = (centres(columns, stride, logits.device) - inside[..., :1]).abs() <= reach
    near_y = (centres(rows, stride, logits.device) - inside[..., 1:]).abs() <= reach
    return logits.masked_fill(~(near_y.unsqueeze(-1) & near_x.unsqueeze(-2)), -1e4)


def best_position(logits: Tensor, stride: float) -> Tensor:
    """Centre (B, L, 2), in pixels, of the cell with the largest of logits (B, L, H, W)."""
    columns = logits.shape[-1]
    index = logits.flatten(2).argmax(dim=-1)
    cell = torch.stack([index % columns, torch.div(index, columns, rounding_mode="floor")], dim=-1)
    return (cell + 0.5) * stride - 0.5


def sure_mean(cost: Tensor, spread: Tensor, mask: Tensor) -> Tensor:
    """Mean of cost (B, L) where mask (B, L), weighted by the inverse of spread (B, L).

    The weights carry no gradient: otherwise spreading a wrong match would be the easy way out. Zero where
    nothing is left.
    """
    weight = torch.where(mask, 1.0 / spread.clamp(min=1e-6), torch.zeros_like(spread)).detach()
    return (cost * weight).sum() / weight.sum().clamp(min=1e-12)


def epipolar_loss(distance: Tensor, spread: Tensor, mask: Tensor, side: float, limit: float = 0.3) -> Tensor:
    """Weighted mean distance (B, L) from the epipolar line, as a share of the image's `side`.

    Matches farther off than `limit` sides are outliers (hidden, or out of the picture) and do not count.
    """
    return sure_mean(distance, spread, mask & (distance.detach() < limit * side)) / side


def cycle_loss(
    points: Tensor, returned: Tensor, spread: Tensor, mask: Tensor, side: float, limit: float = 10.0
) -> Tensor:
    """Weighted mean distance between points (B, L, 2) and where their matches lead back to, over `side`.

    spread (B, L): product of the spreads of both ways; points that come back farther off than `limit` pixels
    count as zero.
    """
    squared = (returned - points).square().sum(dim=-1)
    distance = squared.clamp(min=1e-12).sqrt()
    return sure_mean(torch.where(distance < limit, distance, distance * 0.0), spread, mask) / side


def share_below(distance: Tensor, limit: float, mask: Tensor) -> Tensor:
    """Share of the distances (B, L) where `mask` that are below `limit`."""
    return masked_mean((distance < limit).float(), mask)

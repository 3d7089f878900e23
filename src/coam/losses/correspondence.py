"""Losses of pairs with known correspondences: descriptors, and the fine stage.

Descriptors of corresponding points become alike and all others different.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.tensors import constant

BILINEAR_SPREAD = 0.45  # cells: a Gaussian this wide weighs neighbours about as bilinear interpolation does
REACHABLE = 0.75  # cells: a truth further than this from every cell of the window cannot be learnt there


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
    positive: Tensor,
    negative: Tensor,
    allowed: Tensor,
    valid: Tensor,
    margin: float = 1.0,
    hardest: int = 3,
    constant_weight: bool = False,
) -> Tensor:
    """The paper's loss: positives at distance 0, negatives beyond margin + the distance of their positive.

    positive (B, L): similarity of corresponding points; negative (B, L, N): of each point with N wrong ones;
    allowed (B, L, N): which of them really are wrong; valid (B, L). The `hardest` negatives count once more.

    constant_weight: the distance of the positive in the margin (c_x) is a weight without a gradient. With
    its gradient, positives are pulled together three times (in their own term, in the mean and in the
    hardest) and negatives pushed apart twice, so descriptors that are still all alike become more so.
    """
    to_positive = distance(positive)
    weight = to_positive.detach() if constant_weight else to_positive
    violation = (margin + weight.unsqueeze(-1) - distance(negative)).clamp(min=0.0)
    violation = torch.where(allowed, violation, torch.zeros_like(violation))
    worst = violation.topk(min(hardest, violation.shape[-1]), dim=-1).values
    return pair_mean(to_positive + violation.mean(dim=-1) + worst.mean(dim=-1), valid)


def info_nce(
    positive: Tensor, negative: Tensor, allowed: Tensor, valid: Tensor, logit_scale: float | Tensor = 20.0
) -> Tensor:
    """InfoNCE of the appendix: cross entropy of the positive against its negatives; shapes as in `hinge`."""
    wrong = (negative * logit_scale).masked_fill(~allowed, -1e4)
    logits = torch.cat([positive.unsqueeze(-1) * logit_scale, wrong], dim=-1)
    return pair_mean(-logits.log_softmax(dim=-1)[..., 0], valid)


def info_nce_literal(
    positive: Tensor, negative: Tensor, allowed: Tensor, valid: Tensor, logit_scale: float | Tensor = 20.0
) -> Tensor:
    """InfoNCE as the appendix prints it: minus the logarithm of the MEAN probability of a pair's positives.

    Shapes as in `hinge`. `info_nce` is the usual form, the mean of the logarithms, which is never smaller
    (Jensen): there a single confused point cannot hide among clear ones.
    """
    wrong = (negative * logit_scale).masked_fill(~allowed, -1e4)
    logits = torch.cat([positive.unsqueeze(-1) * logit_scale, wrong], dim=-1)
    logarithm = logits.log_softmax(dim=-1)[..., 0].masked_fill(~valid, -1e4)
    count = valid.sum(dim=1).clamp(min=1).to(logarithm.dtype)
    mean = logarithm.logsumexp(dim=1) - count.log()
    return masked_mean(-mean, valid.any(dim=1))


def own_similarities(query: Tensor, feature_map: Tensor, chosen: Tensor) -> Tensor:
    """Similarities (B, L, N) of queries (B, L, D) with N cells of a map (B, D, H, W) of each query's own.

    chosen (B, L, N): row-major indices of the cells. What is gathered, N times the descriptors, is made again
    on the way back instead of being kept: for 512 points with 512 cells each it would be a gigabyte.
    """
    from torch.utils.checkpoint import checkpoint

    flat = feature_map.flatten(2).transpose(1, 2)
    parts = [
        checkpoint(_gathered_products, *each, use_reentrant=False, preserve_rng_state=False)
        for each in zip(query, flat, chosen, strict=True)
    ]
    return torch.stack(parts)


def _gathered_products(query: Tensor, features: Tensor, chosen: Tensor) -> Tensor:
    """(L, N) products of query (L, D) with features (M, D) at chosen (L, N)."""
    gathered = features.index_select(0, chosen.flatten()).view(*chosen.shape, -1)
    return torch.bmm(gathered, query.to(features.dtype).unsqueeze(-1)).squeeze(-1)


def dual_softmax(
    descriptors0: Tensor, descriptors1: Tensor, valid: Tensor, logit_scale: float | Tensor = 20.0
) -> Tensor:
    """Row and column cross entropy of the matrix of sampled points (B, L, D), (B, L, D); valid (B, L)."""
    logits = logit_scale * descriptors0 @ descriptors1.transpose(1, 2)
    logits = logits.masked_fill(~(valid.unsqueeze(1) & valid.unsqueeze(2)), -1e4)
    rows = logits.log_softmax(dim=2).diagonal(dim1=1, dim2=2)
    columns = logits.log_softmax(dim=1).diagonal(dim1=1, dim2=2)
    return pair_mean(-(rows + columns) / 2, valid)


def cells_around(position: Tensor, columns: int, rows: int, radius: int) -> tuple[Tensor, Tensor, Tensor]:
    """The square of S = (2 radius + 1)^2 cells around positions (B, L, 2), all in units of cells.

    Returns the cells (B, L, S, 2) as x, y; which lie inside the grid (B, L, S); the index of each, or of the
    nearest inside, (B, L, S) int64.
    """
    reach = torch.arange(-radius, radius + 1, device=position.device, dtype=position.dtype)
    steps = torch.stack(torch.meshgrid(reach, reach, indexing="xy"), dim=-1).reshape(-1, 2)
    cells = position.round().unsqueeze(2) + steps
    inside = ((cells >= 0) & (cells < constant((columns, rows), cells.device))).all(dim=-1)
    x, y = cells[..., 0].clamp(0, columns - 1), cells[..., 1].clamp(0, rows - 1)
    return cells, inside, (y * columns + x).long()


def cell_targets(
    points: Tensor, columns: int, rows: int, stride: float, spread: Tensor
) -> tuple[Tensor, Tensor]:
    """Where points (B, L, 2) lie on a grid of cells: the nearest cell and its eight neighbours, with weights.

    spread (B,): standard deviation of the weights in cells. Returns index (B, L, 9) int64 and weight
    (B, L, 9) that sums to 1; neighbours outside the grid weigh nothing.
    """
    position = (points + 0.5) / stride - 0.5
    cells, inside, index = cells_around(position, columns, rows, 1)
    squared = (cells - position.unsqueeze(2)).square().sum(dim=-1)
    logits = -squared / (2 * spread.view(-1, 1, 1) ** 2)
    weight = torch.where(inside, logits, torch.full_like(logits, -1e4)).softmax(dim=-1)
    return index, weight


def grid_cross_entropy(logits: Tensor, index: Tensor, weight: Tensor, valid: Tensor) -> Tensor:
    """Cross entropy of logits (B, L, M) over ALL cells of the other image against soft targets (B, L, 9)."""
    wanted = (logits.gather(2, index) * weight).sum(dim=-1)
    return pair_mean(logits.logsumexp(dim=-1) - wanted, valid)


def grid_logits(query: Tensor, feature_map: Tensor, logit_scale: float | Tensor) -> Tensor:
    """Similarities (B, L, H * W), float32, of queries (B, L, D) with every cell of a map (B, D, H, W)."""
    return torch.bmm(query, feature_map.flatten(2)).float() * logit_scale


def sample(feature_map: Tensor, points: Tensor, stride: float) -> Tensor:
    """Differentiable bilinear samples (B, L, C) of a map (B, C, H, W) at pixels (B, L, 2)."""
    rows, columns = feature_map.shape[-2:]
    # As geometry.coordinates.to_unit does for an image of columns * stride by rows * stride pixels.
    unit = (points + 0.5) * constant((2.0 / (columns * stride), 2.0 / (rows * stride)), points.device) - 1.0
    values = F.grid_sample(feature_map, unit.unsqueeze(1), align_corners=False, padding_mode="border")
    return values[:, :, 0].transpose(1, 2)


# ---- sub-pixel refinement (the fine stage), in pixels


def window(feature_map: Tensor, centre: Tensor, stride: float, radius: int) -> tuple[Tensor, Tensor, Tensor]:
    """Features in a square of cells around positions.

    feature_map (B, F, H, W), centre (B, L, 2) pixels. Returns features (B, L, S, F), pixel positions
    (B, L, S, 2) and a mask (B, L, S) of cells inside the map; S = (2 radius + 1)^2.
    """
    rows, columns = feature_map.shape[-2:]
    cells, inside, address = cells_around((centre + 0.5) / stride - 0.5, columns, rows, radius)
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
    gaussian = -off.square().sum(dim=-1) / (2 * BILINEAR_SPREAD**2)
    target = torch.where(inside, gaussian, torch.full_like(logits, -1e4))
    target = target.softmax(dim=-1)
    reachable = valid & (off.abs().amax(dim=-1).amin(dim=-1) <= REACHABLE)
    entropy = -(target * log_weight).sum(dim=-1)
    expected = (log_weight.exp().unsqueeze(-1) * positions).sum(dim=2)
    error = (expected - truth).norm(dim=-1)
    huber = torch.where(error < 1.0, 0.5 * error.square(), error - 0.5)
    return pair_mean(entropy + huber, reachable), masked_mean(error, reachable).detach()

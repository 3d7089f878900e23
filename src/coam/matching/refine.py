"""From a grid position to a sub-pixel one.

`refine_paper` and `refine_quadratic` use the similarities of the 3x3 grid neighbours of a match;
`refine_softargmax` correlates with a finer feature map in a window around the match. All positions are image
pixels in our convention.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coam.geometry.coordinates import resize_points
from coam.matching.grid import sample_map
from coam.tensors import fused_kernels

_GATHER_ELEMENTS = 16 * 2**20 - 1  # float32 entries gathered at a time: under 64 MB
_FLAT = 1e-12  # curvature or weight below which there is no peak to speak of


@dataclass(frozen=True)
class RefinedPoints:
    """Positions after refinement, and how sharply the similarity picks them out."""

    points: Tensor  # (K, 2) float32, image pixels
    peak: Tensor  # (K,) float32, confidence; each refinement says what its peak is
    spread: Tensor  # (K,) float32, pixels: root mean square distance from `points`


@torch.no_grad()
def refine_paper(
    query: Tensor, grid_descriptors: Tensor, index: Tensor, columns: int, rows: int, grid: Tensor
) -> RefinedPoints:
    """The refinement of the paper's appendix: mean of 3x3 positions weighted by similarity - local minimum.

    query: (K, D) descriptors of the matches in the other image; grid_descriptors: (rows * columns, D) of this
    one; index: (K,) the matched grid positions; grid: (rows * columns, 2) all positions (`cell_centres`).
    Neighbours outside the grid are left out. `peak` is the largest weight, `spread` the weighted deviation.
    """
    similarity, neighbour, inside = _neighbour_similarity(query, grid_descriptors, index, columns, rows)
    lowest = similarity.masked_fill(~inside, torch.inf).amin(dim=1, keepdim=True)
    weight = (similarity - lowest).masked_fill(~inside, 0.0)
    total = weight.sum(dim=1, keepdim=True)
    only_centre = torch.zeros_like(weight)
    only_centre[:, 4] = 1.0
    weight = torch.where(total > _FLAT, weight / total.clamp(min=_FLAT), only_centre)
    return _expectation(weight, grid.float()[neighbour])


@torch.no_grad()
def refine_quadratic(
    query: Tensor, grid_descriptors: Tensor, index: Tensor, columns: int, rows: int, grid: Tensor
) -> RefinedPoints:
    """The top of the quadratic surface through the 3x3 similarities; arguments as in `refine_paper`.

    A refined point never leaves its grid cell. Where the surface has no maximum near it (a ridge, a saddle),
    each axis is fitted alone; at the edge of the grid the axis that lacks a neighbour keeps its position.
    `peak` is the height of the top, `spread` its width if similarities are read as log-probabilities
    (infinite on a plateau).
    """
    similarity, _, inside = _neighbour_similarity(query, grid_descriptors, index, columns, rows)
    value = similarity.view(-1, 3, 3)  # [:, y + 1, x + 1]
    slope_x, bend_x = _slope_and_bend(value[:, 1, :], inside[:, 3] & inside[:, 5])
    slope_y, bend_y = _slope_and_bend(value[:, :, 1], inside[:, 1] & inside[:, 7])
    twist = (value[:, 2, 2] - value[:, 2, 0] - value[:, 0, 2] + value[:, 0, 0]) / 4
    twist = torch.where(inside.all(dim=1), twist, 0.0)
    determinant = bend_x * bend_y - twist * twist
    safe = torch.where(determinant > _FLAT, determinant, 1.0)
    joint = torch.stack([twist * slope_y - bend_y * slope_x, twist * slope_x - bend_x * slope_y], dim=1)
    joint = joint / safe.unsqueeze(1)
    alone = torch.stack([_one_axis_top(slope_x, bend_x), _one_axis_top(slope_y, bend_y)], dim=1)
    is_peak = (determinant > _FLAT) & (bend_x < 0) & (joint.abs() <= 1).all(dim=1)
    # The match is the best grid position, so its peak lies in its own cell; near a corner the fit overshoots.
    offset = torch.where(is_peak.unsqueeze(1), joint, alone).clamp(-0.5, 0.5)
    height = value[:, 1, 1] + 0.5 * (slope_x * offset[:, 0] + slope_y * offset[:, 1])
    gaps = torch.tensor([max(columns - 1, 1), max(rows - 1, 1)], device=grid.device)
    step = (grid[-1].float() - grid[0].float()) / gaps
    spread_x = step[0] / (-bend_x).clamp(min=0).sqrt()
    spread_y = step[1] / (-bend_y).clamp(min=0).sqrt()
    return RefinedPoints(grid.float()[index] + offset * step, height, torch.hypot(spread_x, spread_y))


@torch.no_grad()
def refine_softargmax(
    query: Tensor, fine_map: Tensor, centres: Tensor, stride: float, radius: int, logit_scale: float
) -> RefinedPoints:
    """Expected position in a window of a fine feature map around each coarse match.

    query: (K, F) fine features of the matches in the other image; fine_map: (F, H, W) of this image, one cell
    per `stride` pixels; centres: (K, 2) coarse positions in image pixels. The window is a square of
    2 * radius + 1 cells a side around the cell nearest to the centre; cells outside the map get no weight.
    Weights are the softmax of logit_scale <query, fine>. `peak` is the largest weight, `spread` the
    weighted deviation in pixels.
    """
    height, width = fine_map.shape[1:]
    cells = fine_map.flatten(1).t().contiguous()  # a feature vector in one piece: a gather reads whole lines
    nearest_cell = resize_points(centres.float(), (1.0 / stride, 1.0 / stride)).round()
    column = nearest_cell[:, 0].clamp(0, width - 1).long()
    row = nearest_cell[:, 1].clamp(0, height - 1).long()
    reach = torch.arange(-radius, radius + 1, device=fine_map.device)
    window_rows = (row.unsqueeze(1) + reach).unsqueeze(2)  # (K, S, 1)
    window_columns = (column.unsqueeze(1) + reach).unsqueeze(1)  # (K, 1, S)
    inside = (window_rows >= 0) & (window_rows < height) & (window_columns >= 0) & (window_columns < width)
    inside = inside.flatten(1)
    address = (window_rows.clamp(0, height - 1) * width + window_columns.clamp(0, width - 1)).flatten(1)
    similarity = _gathered_similarity(query, cells, address)
    weight = torch.softmax((similarity * logit_scale).masked_fill(~inside, -torch.inf), dim=1)
    side = len(reach)
    cell_x = window_columns.expand(-1, side, -1).reshape(-1, side * side)
    cell_y = window_rows.expand(-1, -1, side).reshape(-1, side * side)
    position = torch.stack([cell_x, cell_y], dim=2).float()
    return _expectation(weight, resize_points(position, (stride, stride)))


def fine_logit_scale(channels: int) -> float:
    """Factor on products of fine features in a softmax, as in training."""
    return 1.0 / math.sqrt(channels)


@torch.no_grad()
def seek(
    fine0: Tensor, fine1: Tensor, points0: Tensor, near1: Tensor, stride: float, radius: int
) -> RefinedPoints:
    """Where what fine0 (F, H, W) has at points0 (K, 2) is found in fine1 (F, H, W) around near1 (K, 2).

    `refine_softargmax` of sampled features; on a CUDA device with Triton in one kernel.
    """
    logit_scale = fine_logit_scale(len(fine0))
    kernels = fused_kernels(fine0.device)
    if kernels is not None and kernels.takes_fine_maps(fine0, fine1, radius):
        fused: RefinedPoints = kernels.fused_seek(fine0, fine1, points0, near1, stride, radius, logit_scale)
        return fused
    query = sample_map(fine0[None], points0[None], stride)[0]
    return refine_softargmax(query, fine1, near1, stride, radius, logit_scale)


def _expectation(weight: Tensor, position: Tensor) -> RefinedPoints:
    """Mean and deviation of positions (K, P, 2) under weights (K, P) that sum to one."""
    mean = torch.einsum("kp,kpc->kc", weight, position)
    variance = torch.einsum("kp,kpc->k", weight, (position - mean.unsqueeze(1)) ** 2)
    return RefinedPoints(mean, weight.amax(dim=1), variance.clamp(min=0).sqrt())


def _neighbour_similarity(
    query: Tensor, grid_descriptors: Tensor, index: Tensor, columns: int, rows: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Similarity, grid id and "lies on the grid" (K, 9 each) of the 3x3 neighbours, row by row."""
    reach = torch.tensor([-1, 0, 1], device=index.device)
    row = (index // columns).unsqueeze(1) + reach.repeat_interleave(3)
    column = (index % columns).unsqueeze(1) + reach.repeat(3)
    inside = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
    neighbour = row.clamp(0, rows - 1) * columns + column.clamp(0, columns - 1)
    return _gathered_similarity(query, grid_descriptors, neighbour), neighbour, inside


def _gathered_similarity(query: Tensor, features: Tensor, address: Tensor) -> Tensor:
    """<query_k, features[address_kp]> (K, P), float32, of query (K, F), features (N, F), address (K, P)."""
    window, size = address.shape[1], query.shape[1]
    chunk = max(1, _GATHER_ELEMENTS // max(1, window * size))
    result = torch.empty(address.shape, dtype=torch.float32, device=query.device)
    for start in range(0, address.shape[0], chunk):
        part = slice(start, start + chunk)
        # A fifth of the time of features[address] and of the product the other way round.
        gathered = features.index_select(0, address[part].flatten()).float().view(-1, window, size)
        result[part] = torch.bmm(query[part].float().unsqueeze(1), gathered.transpose(1, 2)).squeeze(1)
    return result


def _slope_and_bend(values: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """First and second difference (K,) of three values (K, 3) in a row; zero where they are not all known."""
    before, centre, after = values.unbind(dim=1)
    slope = torch.where(known, (after - before) / 2, 0.0)
    bend = torch.where(known, after + before - 2 * centre, 0.0)
    return slope, bend


def _one_axis_top(slope: Tensor, bend: Tensor) -> Tensor:
    """Offset (K,) of the parabola's top in cells; 0 where there is none."""
    top = -slope / torch.where(bend < -_FLAT, bend, -1.0)
    return torch.where(bend < -_FLAT, top, 0.0)

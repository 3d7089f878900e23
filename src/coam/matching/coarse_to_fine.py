"""CAPSNet's search: the coarse map chooses a place in the other photo, the fine map is compared around it.

The answer of a point is, as in CAPSNet's training, the expected position under the softmax of fine
similarities in a window around the best coarse cell; the best fine cell there is what mutual matches are
made of.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coam.geometry.coordinates import cell_centres

COARSE_STRIDE = 16  # pixels between the cells of a coarse map


@dataclass(frozen=True)
class FineAnswers:
    """Of K points of one photo: where they are in the other."""

    best: Tensor  # (K,) row-major index of the best fine cell
    probability: Tensor  # (K,) of that cell in its window
    expected: Tensor  # (K, 2) mean position in resized pixels


@torch.no_grad()
def coarse_to_fine(
    query: Tensor,
    coarse_query: Tensor,
    fine_map: Tensor,
    coarse_map: Tensor,
    stride: float,
    reach: float,
    logit_scale: float,
) -> FineAnswers:
    """Answers of K points with unit descriptors query (K, D) and coarse_query (K, C).

    fine_map (D, H, W) with cells every `stride` pixels, coarse_map (C, h, w) every `COARSE_STRIDE`; a window
    holds the cells at most `reach` pixels in x and y from the centre of the chosen coarse cell (at least one
    stride, so that some cell is always in it).
    """
    rows, columns = fine_map.shape[1:]
    coarse_rows, coarse_columns = coarse_map.shape[1:]
    chosen = (coarse_query.float() @ coarse_map.float().flatten(1)).argmax(dim=1)  # (K,)
    fine = fine_map.float().flatten(1).t()
    places = cell_centres(columns, rows, stride, fine.device).view(rows, columns, 2)
    centres = cell_centres(coarse_columns, coarse_rows, COARSE_STRIDE, fine.device)
    reach = max(reach, stride)
    best = torch.zeros_like(chosen)
    probability = query.new_zeros(len(query), dtype=torch.float32)
    expected = query.new_zeros(len(query), 2, dtype=torch.float32)
    # Points that chose one coarse cell share a window: one product for all of them.
    order = chosen.argsort(stable=True)
    cells, counts = torch.unique_consecutive(chosen[order], return_counts=True)
    for cell, members in zip(cells.tolist(), torch.split(order, counts.tolist()), strict=True):
        left, right = _span(float(centres[cell, 0]), reach, stride, columns)
        top, bottom = _span(float(centres[cell, 1]), reach, stride, rows)
        near = places[top:bottom, left:right].reshape(-1, 2)
        window = fine.view(rows, columns, -1)[top:bottom, left:right].reshape(len(near), -1)
        weight = (query[members].float() @ window.t() * logit_scale).softmax(dim=1)
        highest, index = weight.max(dim=1)
        best[members] = (top + index // (right - left)) * columns + left + index % (right - left)
        probability[members] = highest
        expected[members] = weight @ near.float()
    return FineAnswers(best, probability, expected)


def _span(centre: float, reach: float, stride: float, count: int) -> tuple[int, int]:
    """First and one past the last of `count` cells whose centres lie at most `reach` pixels from `centre`."""
    first = max(0, -int(-((centre - reach + 0.5) / stride - 0.5) // 1))  # rounded up
    last = min(count - 1, int(((centre + reach + 0.5) / stride - 0.5) // 1))
    if first > last:  # a coarse cell that lies half outside: the nearest fine one
        nearest = min(max(round((centre + 0.5) / stride - 0.5), 0), count - 1)
        return nearest, nearest + 1
    return first, last + 1

"""The sampled image: every position of VIEW coloured by its best match in STYLE, and how far to trust it.

As in the paper, the best match of EVERY position is taken, without asking that it be mutual. It is found cell
by cell (`cells`); a cell whose match leaves those of its neighbours must be clearly better than the place
they propose; the fine stage then places every second pixel, and places that nearly agree with those around
them are averaged with them. Positions are pixels of the resized photos.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.geometry.coordinates import cell_centres, to_unit
from coam.matching.grid import sample_map
from coam.matching.pair_score import pair_statistics
from coam.matching.refine import seek
from coam.models.outputs import DenseDescriptors
from coam.stylization.cells import MatchedCells, match_cells

CELL = 4  # pixels: descriptors are compared at most this densely
EVIDENCE = ("similarity", "distinctiveness", "probability", "coherence")


@dataclass(frozen=True)
class FlowOptions:
    """How single matches become a smooth flow."""

    fine_radius: int = 2  # cells of the fine map around a match in which it is sought
    neighbours: int = 5  # cells, squared, whose median shift is proposed to the one in their middle
    margin: float = 0.12  # of cosine similarity, that a match needs over the place its neighbours propose
    votes: int = 2  # how often neighbours are asked
    averaged: int = 5  # fine cells, squared, that are averaged ...
    max_disagreement: float = 4.0  # ... where their shifts differ by less than so many pixels


DEFAULT_FLOW = FlowOptions()


@dataclass(frozen=True)
class DenseFlow:
    """For every cell of B VIEWs its place in STYLE."""

    points: Tensor  # (B, h, w, 2) pixels of STYLE, one per `stride` pixels of VIEW
    stride: int
    evidence: Tensor  # (B, 4, h', w') in [0, 1], one per CELL pixels: see EVIDENCE
    matched: MatchedCells
    positions: int  # cells of the smaller photo

    def statistics(self, pair: int = 0) -> list[float]:
        """What the pair score of one pair is computed from (`coam.matching.pair_score`)."""
        mutual = self.matched.probability[pair] > 0
        probability = self.matched.probability[pair][mutual]
        return pair_statistics(probability, self.matched.distinctiveness[pair][mutual], self.positions)


@dataclass(frozen=True)
class SampledImage:
    """STYLE's colours where VIEW sees them, (B, 3, H, W) in [0, 1], and their evidence (B, 4, H, W)."""

    colours: Tensor
    evidence: Tensor

    @property
    def confidence(self) -> Tensor:
        """One number per position (B, H, W) in [0, 1] out of the evidence."""
        return confidence_of(self.evidence)


def confidence_of(evidence: Tensor) -> Tensor:
    """Confidence (..., H, W) in [0, 1] from evidence (..., 4, H, W).

    A match counts when its descriptors are similar and its neighbours agree, the more the more distinctive it
    is; a mutual match of high probability needs no neighbours.
    """
    similarity, distinctiveness, probability, coherence = evidence.unbind(dim=-3)
    return similarity * torch.maximum(coherence * (0.25 + 0.75 * distinctiveness), probability)


@torch.no_grad()
def find_flow(
    dense0: DenseDescriptors,
    dense1: DenseDescriptors,
    logit_scale: float,
    options: FlowOptions = DEFAULT_FLOW,
) -> DenseFlow:
    """The best match in STYLE (dense1) of every position of VIEW (dense0), for B pairs.

    `logit_scale` multiplies similarities in the dual softmax, as `DescriptorNetwork.logit_scale` does.
    """
    (cells0, score0), (cells1, score1) = _cells(dense0), _cells(dense1)
    batch, rows0, columns0 = score0.shape
    rows1, columns1 = score1.shape[1:]
    matched = match_cells(cells0, cells1, score0.flatten(1), score1.flatten(1), logit_scale)
    index1, similarity = matched.index1, matched.similarity
    coherence = torch.zeros_like(similarity)
    for _ in range(options.votes):
        index1, similarity, coherence = _vote(
            cells0, cells1, index1, similarity, (rows0, columns0), columns1, options
        )
    distinctiveness = (score0.flatten(1) * score1.flatten(1).gather(1, index1)).sqrt()
    evidence = [similarity.clamp(0, 1), distinctiveness, matched.probability.sqrt(), coherence]
    near = cell_centres(columns1, rows1, CELL, cells1.device)[index1]
    near = near.view(batch, rows0, columns0, 2)
    points, stride = _to_fine(dense0, dense1, near, options.fine_radius)
    return DenseFlow(
        _averaged(points, stride, options),
        stride,
        torch.stack(evidence, dim=1).view(batch, -1, rows0, columns0),
        matched,
        min(cells0.shape[1], cells1.shape[1]),
    )


def _cells(dense: DenseDescriptors) -> tuple[Tensor, Tensor]:
    """Descriptors (B, N, D) and scores (B, rows, columns), one per CELL pixels."""
    if dense.stride == CELL:
        return dense.descriptors.flatten(2).transpose(1, 2).contiguous().float(), dense.score[:, 0].float()
    rows, columns = max(1, dense.size[0] // CELL), max(1, dense.size[1] // CELL)
    batch = len(dense.descriptors)
    places = cell_centres(columns, rows, CELL, dense.descriptors.device).expand(batch, -1, -1)
    descriptors = sample_map(dense.descriptors, places, dense.stride, normalise=True)
    return descriptors, sample_map(dense.score, places, dense.stride)[..., 0].view(batch, rows, columns)


def _vote(
    cells0: Tensor,
    cells1: Tensor,
    index1: Tensor,
    similarity: Tensor,
    shape0: tuple[int, int],
    columns1: int,
    options: FlowOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Matches, similarities and coherence, (B, N) each, after each cell has heard what its neighbours say.

    The neighbours of a cell propose the place at which it would lie if it moved as their median does.
    """
    rows1 = cells1.shape[1] // columns1
    own = torch.stack(torch.meshgrid(*(torch.arange(n, device=index1.device) for n in shape0), indexing="ij"))
    found = torch.stack([index1 // columns1, index1 % columns1], dim=1)  # (B, 2, N): row, column
    shift = found.view(-1, 2, *shape0) - own
    proposed = (own + _median(shift.float(), options.neighbours).round().long()).flatten(2)
    proposal = proposed[:, 0].clamp(0, rows1 - 1) * columns1 + proposed[:, 1].clamp(0, columns1 - 1)
    there = cells1.gather(1, proposal.unsqueeze(2).expand(-1, -1, cells1.shape[2]))
    proposal_similarity = (cells0 * there).sum(dim=2)
    far = (found - proposed).abs().amax(dim=1) > 1
    yields = far & (proposal_similarity > similarity - options.margin)
    index1 = torch.where(yields, proposal, index1)
    similarity = torch.where(yields, proposal_similarity, similarity)
    distance = (torch.stack([index1 // columns1, index1 % columns1], dim=1) - proposed).float().norm(dim=1)
    return index1, similarity, torch.exp(-((distance / 2) ** 2))


def _median(field: Tensor, side: int) -> Tensor:
    """Median (B, C, H, W) over side x side cells of a field (B, C, H, W), borders repeated."""
    padded = F.pad(field, (side // 2,) * 4, mode="replicate")
    windows = padded.unfold(2, side, 1).unfold(3, side, 1)
    return windows.flatten(-2).median(dim=-1).values


def _to_fine(
    dense0: DenseDescriptors, dense1: DenseDescriptors, near: Tensor, radius: int
) -> tuple[Tensor, int]:
    """Places (B, h, w, 2) in STYLE of every fine cell of VIEW, and the stride of those cells.

    near (B, rows, columns, 2): where the cells of CELL pixels are found. A fine cell starts from its cell's
    match, moved by where it lies in that cell, and is then sought in the fine map.
    """
    if dense0.fine is None or dense1.fine is None:
        return near, CELL
    stride = dense0.fine_stride
    height, width = dense0.fine.shape[-2:]
    own = cell_centres(width, height, stride, near.device)
    moved = _carried(near, CELL, (height, width), stride).view(len(near), -1, 2)
    fine = zip(dense0.fine, dense1.fine, moved, strict=True)
    refined = [seek(f0, f1, own, start, stride, radius).points for f0, f1, start in fine]
    return torch.stack(refined).view(-1, height, width, 2), stride


def _carried(points: Tensor, stride: int, size: tuple[int, int], finer: int) -> Tensor:
    """Places (B, h, w, 2) of cells, carried to the `size` (H, W) cells of stride `finer` that lie in them."""
    rows, columns = points.shape[1:3]
    row, column = (
        (torch.arange(count, device=points.device) * finer // stride).clamp(max=last - 1)
        for count, last in zip(size, (rows, columns), strict=True)
    )
    shift = points - cell_centres(columns, rows, stride, points.device).view(rows, columns, 2)
    own = cell_centres(size[1], size[0], finer, points.device).view(*size, 2)
    return shift[:, row][:, :, column] + own


def _averaged(points: Tensor, stride: int, options: FlowOptions) -> Tensor:
    """Places (B, h, w, 2), each the mean of what the cells around it say that move nearly as it does.

    Matches jitter by about a pixel; the edge between two motions stays an edge.
    """
    height, width = points.shape[1:3]
    own = cell_centres(width, height, stride, points.device).view(height, width, 2)
    reach = options.averaged // 2
    shift = (points - own).permute(0, 3, 1, 2)
    around = F.pad(shift, (reach,) * 4, mode="replicate")
    total, count = torch.zeros_like(shift), torch.zeros_like(shift[:, :1])
    for row in range(options.averaged):
        for column in range(options.averaged):
            other = around[:, :, row : row + height, column : column + width]
            agrees = ((other - shift) ** 2).sum(dim=1, keepdim=True) < options.max_disagreement**2
            total += other * agrees
            count += agrees
    return (total / count).permute(0, 2, 3, 1) + own


def sample_by_flow(style: Tensor, flow: DenseFlow, size: tuple[int, int]) -> SampledImage:
    """Colours of style (B, 3, Hs, Ws) along a flow, for VIEWs of `size` (H, W).

    Each pixel moves with the cell it lies in: interpolating between cells would mix the two sides of an edge.
    """
    places = _carried(flow.points, flow.stride, size, 1)
    unit = to_unit(places, style.shape[-1], style.shape[-2])
    colours = F.grid_sample(style.float(), unit, padding_mode="border", align_corners=False)
    evidence = F.interpolate(flow.evidence, size=size, mode="bilinear", align_corners=False)
    return SampledImage(colours, evidence)

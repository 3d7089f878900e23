"""The sampled image: every position of VIEW coloured by its best match in STYLE, and how far to trust it.

As in the paper, the best match of EVERY position is taken, without asking that it be mutual. It is found cell
by cell (similarities are streamed, the matrix is never held), a cell whose match leaves those of its
neighbours must be clearly better than the place they propose, and the fine stage then places every second
pixel. Positions are pixels of the resized photos.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.geometry.coordinates import cell_centres, to_unit
from coam.matching import dual_softmax_nearest, nearest, refine_softargmax, sample_map
from coam.matching.pair_score import pair_statistics
from coam.models.outputs import DenseDescriptors

CELL = 4  # pixels: descriptors are compared at most this densely
FINE_RADIUS = 2  # cells of the fine map around a match in which it is sought
NEIGHBOURS = 5  # x 5 cells propose a place together (their median)
CLEARLY_BETTER = 0.12  # of cosine similarity, that a match needs over the place its neighbours propose
LEAST_DISTINCTIVE = 0.02  # cells below it are in no mutual match, as in `MatcherConfig`
LEAST_CELLS = 64  # unless fewer cells than this would be left
VOTES = 2  # how often neighbours are asked
EVIDENCE = ("similarity", "distinctiveness", "probability", "coherence")


@dataclass(frozen=True)
class DenseFlow:
    """For every cell of VIEW its place in STYLE."""

    points: Tensor  # (h, w, 2) pixels of STYLE, one per `stride` pixels of VIEW
    stride: int
    evidence: Tensor  # (4, h', w') in [0, 1], one per CELL pixels: see EVIDENCE
    mutual_probability: Tensor  # (K,) dual softmax of the mutual matches among the distinctive cells
    mutual_distinctiveness: Tensor  # (K,) product of their two scores
    positions: int  # cells of the smaller photo

    def statistics(self) -> list[float]:
        """What the pair score is computed from (`coam.matching.pair_score`)."""
        return pair_statistics(self.mutual_probability, self.mutual_distinctiveness, self.positions)


@dataclass(frozen=True)
class SampledImage:
    """STYLE's colours where VIEW sees them, (3, H, W) in [0, 1], with the evidence (4, H, W) for them."""

    colours: Tensor
    evidence: Tensor

    @property
    def confidence(self) -> Tensor:
        """One number per position (H, W) in [0, 1] out of the evidence."""
        return confidence_of(self.evidence)


def confidence_of(evidence: Tensor) -> Tensor:
    """Confidence (..., H, W) in [0, 1] from evidence (..., 4, H, W).

    A match counts when its descriptors are similar and its neighbours agree, the more the more distinctive it
    is; a mutual match of high probability needs no neighbours.
    """
    similarity, distinctiveness, probability, coherence = evidence.unbind(dim=-3)
    return similarity * torch.maximum(coherence * (0.25 + 0.75 * distinctiveness), probability)


@torch.no_grad()
def find_flow(dense0: DenseDescriptors, dense1: DenseDescriptors, temperature: float) -> DenseFlow:
    """The best match in STYLE (dense1) of every position of VIEW (dense0), one pair (B = 1).

    `temperature` multiplies similarities in the dual softmax, as `DescriptorModel.temperature` does.
    """
    (cells0, score0), (cells1, score1) = _cells(dense0), _cells(dense1)
    rows0, columns0 = score0.shape
    rows1, columns1 = score1.shape
    best = nearest(cells0, cells1)
    worth0, worth1 = _worth_comparing(score0), _worth_comparing(score1)
    mutual = dual_softmax_nearest(cells0[worth0], cells1[worth1], 1.0 / temperature)
    assert mutual.probability is not None
    both0, both1 = worth0[mutual.index0], worth1[mutual.index1]
    probability = torch.zeros(len(cells0), device=cells0.device)
    probability[both0] = mutual.probability
    index1, similarity = best.index1, best.similarity
    coherence = torch.zeros_like(similarity)
    for _ in range(VOTES):
        index1, similarity, coherence = _vote(cells0, cells1, index1, similarity, (rows0, columns0), columns1)
    distinctiveness = (score0.flatten() * score1.flatten()[index1]).sqrt()
    evidence = torch.stack([similarity.clamp(0, 1), distinctiveness, probability.sqrt(), coherence])
    near = cell_centres(columns1, rows1, CELL, cells1.device)[index1]
    points, stride = _to_fine(dense0, dense1, near.view(rows0, columns0, 2))
    return DenseFlow(
        points,
        stride,
        evidence.view(-1, rows0, columns0),
        mutual.probability,
        score0.flatten()[both0] * score1.flatten()[both1],
        min(len(cells0), len(cells1)),
    )


def _worth_comparing(score: Tensor) -> Tensor:
    """Indices (N,) of the cells that may be part of a mutual match, from their scores (rows, columns)."""
    worth = torch.nonzero(score.flatten() >= LEAST_DISTINCTIVE).squeeze(1)
    return worth if len(worth) >= LEAST_CELLS else torch.arange(score.numel(), device=score.device)


def _cells(dense: DenseDescriptors) -> tuple[Tensor, Tensor]:
    """Descriptors (N, D) and scores (rows, columns) of one image, one per CELL pixels."""
    if dense.stride == CELL:
        return dense.descriptors[0].flatten(1).t().contiguous().float(), dense.score[0, 0].float()
    rows, columns = max(1, dense.size[0] // CELL), max(1, dense.size[1] // CELL)
    places = cell_centres(columns, rows, CELL, dense.descriptors.device)[None]
    descriptors = sample_map(dense.descriptors, places, dense.stride, normalise=True)[0]
    return descriptors, sample_map(dense.score, places, dense.stride)[0, :, 0].view(rows, columns)


def _vote(
    cells0: Tensor, cells1: Tensor, index1: Tensor, similarity: Tensor, shape0: tuple[int, int], columns1: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Matches (N,), similarities (N,) and coherence (N,) after each cell has heard what its neighbours say.

    The neighbours of a cell propose the place at which it would lie if it moved as their median does.
    """
    rows0, columns0 = shape0
    rows1 = len(cells1) // columns1
    own = torch.stack(torch.meshgrid(*(torch.arange(n, device=index1.device) for n in shape0), indexing="ij"))
    found = torch.stack([index1 // columns1, index1 % columns1]).view(2, rows0, columns0)
    shift = (found - own).float()
    proposed = (own + _median(shift).round().long()).flatten(1)
    row, column = proposed[0].clamp(0, rows1 - 1), proposed[1].clamp(0, columns1 - 1)
    proposal = row * columns1 + column
    proposal_similarity = (cells0 * cells1[proposal]).sum(dim=1)
    far = ((found.flatten(1) - proposed).abs().amax(dim=0)) > 1
    yields = far & (proposal_similarity > similarity - CLEARLY_BETTER)
    index1 = torch.where(yields, proposal, index1)
    similarity = torch.where(yields, proposal_similarity, similarity)
    left = torch.stack([index1 // columns1, index1 % columns1]) - proposed
    distance = left.float().norm(dim=0)
    return index1, similarity, torch.exp(-((distance / 2) ** 2))


def _median(field: Tensor) -> Tensor:
    """Median (C, H, W) over NEIGHBOURS x NEIGHBOURS of a field (C, H, W), borders repeated."""
    reach = NEIGHBOURS // 2
    padded = F.pad(field[None], (reach,) * 4, mode="replicate")[0]
    windows = padded.unfold(1, NEIGHBOURS, 1).unfold(2, NEIGHBOURS, 1)
    return windows.flatten(-2).median(dim=-1).values


def _to_fine(dense0: DenseDescriptors, dense1: DenseDescriptors, near: Tensor) -> tuple[Tensor, int]:
    """Places (h, w, 2) in STYLE of every fine cell of VIEW, and the stride of those cells.

    near (rows, columns, 2): where the cells of CELL pixels are found. A fine cell starts from its cell's
    match, moved by where it lies in that cell, and is then sought in the fine map.
    """
    if dense0.fine is None or dense1.fine is None:
        return near, CELL
    stride = dense0.fine_stride
    height, width = dense0.fine.shape[-2:]
    device = near.device
    own = cell_centres(width, height, stride, device).view(height, width, 2)
    row = ((torch.arange(height, device=device) * stride) // CELL).clamp(max=near.shape[0] - 1)
    column = ((torch.arange(width, device=device) * stride) // CELL).clamp(max=near.shape[1] - 1)
    coarse = cell_centres(near.shape[1], near.shape[0], CELL, device).view(*near.shape)
    moved = near[row][:, column] + own - coarse[row][:, column]
    query = dense0.fine[0].flatten(1).t().contiguous()
    refined = refine_softargmax(
        query,
        dense1.fine[0],
        moved.reshape(-1, 2),
        dense1.fine_stride,
        FINE_RADIUS,
        float(query.shape[1]) ** 0.5,  # as in training
    )
    return refined.points.view(height, width, 2), stride


def sample_by_flow(style: Tensor, flow: DenseFlow, size: tuple[int, int]) -> SampledImage:
    """Colours of style (3, Hs, Ws) along a flow, for a VIEW of `size` (H, W).

    Each pixel moves with the cell it lies in: interpolating between cells would mix the two sides of an edge.
    """
    height, width = size
    device = style.device
    h, w = flow.points.shape[:2]
    row = (torch.arange(height, device=device) // flow.stride).clamp(max=h - 1)
    column = (torch.arange(width, device=device) // flow.stride).clamp(max=w - 1)
    own = cell_centres(width, height, 1, device).view(height, width, 2)
    centre = cell_centres(w, h, flow.stride, device).view(h, w, 2)
    places = (flow.points - centre)[row][:, column] + own
    unit = to_unit(places, style.shape[-1], style.shape[-2])
    colours = F.grid_sample(
        style[None].float(), unit[None], mode="bilinear", padding_mode="border", align_corners=False
    )[0]
    evidence = F.interpolate(flow.evidence[None], size=size, mode="bilinear", align_corners=False)[0]
    return SampledImage(colours, evidence)

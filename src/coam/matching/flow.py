"""Dense flow: for every position of photo 0 its place in photo 1, whether or not the match is mutual.

It is found cell by cell (`cells`); a cell whose match leaves those of its neighbours must be clearly better
than the place they propose; the fine stage then places every second pixel, and places that nearly agree with
those around them are averaged with them. Positions are pixels of the resized photos.

The dense warp (`coam.matcher.dense_warp`) and stylization are made of this.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.geometry.coordinates import cell_centres, resize_points, to_unit
from coam.matching.cells import Cells, MatchedCells, match_cells, match_cells_both_ways, match_cells_guided
from coam.matching.grid import sample_map
from coam.matching.guided import LARGEST_LOGIT_SCALE, can_guide
from coam.matching.pair_score import pair_statistics
from coam.matching.propagation import DEFAULT_PROPAGATION, Likeness, PropagationOptions, propagate
from coam.matching.refine import seek
from coam.matching.settings import Search
from coam.models.outputs import DenseDescriptors

CELL = 4  # pixels: descriptors are compared at most this densely
EVIDENCE = ("similarity", "distinctiveness", "probability", "coherence")


@dataclass(frozen=True)
class FlowOptions:
    """How single matches become a smooth flow."""

    # "guided": cells are compared where coarse descriptors allow a match, as in `MatcherConfig`; where that
    # does not apply (a batch, CUDA, other descriptor maps) and for "exact": all with all
    search: Search = "guided"
    fine_radius: int = 2  # cells of the fine map around a match in which it is sought
    neighbours: int = 5  # cells, squared, whose median shift is proposed to the one in their middle
    margin: float = 0.12  # of cosine similarity, that a match needs over the place its neighbours propose
    votes: int = 2  # how often neighbours are asked
    propagation: PropagationOptions | None = DEFAULT_PROPAGATION  # where photos are at hand; None: never
    averaged: int = 5  # fine cells, squared, that are averaged ...
    max_disagreement: float = 4.0  # ... where their shifts differ by less than so many pixels


DEFAULT_FLOW = FlowOptions()


@dataclass(frozen=True)
class DenseFlow:
    """For every cell of photo 0 of B pairs its place in photo 1."""

    points: Tensor  # (B, h, w, 2) pixels of photo 1, one per `stride` pixels of photo 0
    stride: int
    difference: Tensor  # (B, h, w) root mean square: fine features there and here; 0 without a fine map
    evidence: Tensor  # (B, 4, h', w') in [0, 1], one per CELL pixels: see EVIDENCE
    matched: MatchedCells
    positions: int  # cells of the smaller photo

    def statistics(self, pair: int = 0) -> list[float]:
        """What the pair score of one pair is computed from (`coam.matching.pair_score`)."""
        mutual = self.matched.probability[pair] > 0
        probability = self.matched.probability[pair][mutual]
        return pair_statistics(probability, self.matched.distinctiveness[pair][mutual], self.positions)

    @property
    def own(self) -> Tensor:
        """The positions (h, w, 2) in photo 0 that `points` belong to."""
        height, width = self.points.shape[1:3]
        return cell_centres(width, height, self.stride, self.points.device).view(height, width, 2)

    def at(self, points0: Tensor) -> Tensor:
        """Places (B, ..., 2) in photo 1 of points0 (B, ..., 2), pixels of photo 0.

        Between cells the shift is interpolated, unless they move apart: then that of the nearest one counts.
        """
        shift = (self.points - self.own).permute(0, 3, 1, 2)
        height, width = shift.shape[-2:]
        scale = 1.0 / self.stride
        unit = to_unit(resize_points(points0, (scale, scale)), width, height).flatten(1, -2).unsqueeze(1)
        smooth, nearest = (
            F.grid_sample(shift, unit, mode=mode, padding_mode="border", align_corners=False)
            for mode in ("bilinear", "nearest")
        )
        apart = (smooth - nearest).norm(dim=1, keepdim=True) > self.stride
        moved = torch.where(apart, nearest, smooth)[:, :, 0].transpose(1, 2)
        return points0 + moved.view_as(points0)


@torch.no_grad()
def find_flow(
    dense0: DenseDescriptors,
    dense1: DenseDescriptors,
    logit_scale: float,
    options: FlowOptions = DEFAULT_FLOW,
) -> DenseFlow:
    """The best match in photo 1 of every position of photo 0, for B pairs.

    `logit_scale` multiplies similarities in the dual softmax, as `DescriptorNetwork.logit_scale` does.
    """
    matched = match_cells(_cells(dense0), _cells(dense1), logit_scale)
    return _flow(dense0, dense1, matched, options)


@torch.no_grad()
def find_flow_both_ways(
    dense0: DenseDescriptors,
    dense1: DenseDescriptors,
    logit_scale: float,
    options: FlowOptions = DEFAULT_FLOW,
    photos: tuple[Tensor, Tensor] | None = None,
) -> tuple[DenseFlow, DenseFlow]:
    """`find_flow` from photo 0 to 1 and from 1 to 0, in less time than both would take alone.

    photos: what the network was shown, (B, 3, H, W) in [0, 1] each; with them neighbours' motions are tried
    (`propagation`).
    """
    cells0, cells1 = _cells(dense0), _cells(dense1)
    if options.search == "guided" and _can_guide(dense0, logit_scale) and _can_guide(dense1, logit_scale):
        forward, backward = match_cells_guided(dense0, dense1, cells0, cells1, logit_scale)
    else:
        forward, backward = match_cells_both_ways(cells0, cells1, logit_scale)
    swapped = None if photos is None else (photos[1], photos[0])
    return (
        _flow(dense0, dense1, forward, options, photos),
        _flow(dense1, dense0, backward, options, swapped),
    )


def _can_guide(dense: DenseDescriptors, logit_scale: float) -> bool:
    one_on_cpu = len(dense.descriptors) == 1 and dense.descriptors.device.type == "cpu"
    return one_on_cpu and dense.stride == CELL and logit_scale < LARGEST_LOGIT_SCALE and can_guide(dense)


def round_trip(flow: DenseFlow, back: DenseFlow) -> Tensor:
    """By how many pixels (B, h, w, 2) the cells of `flow` miss themselves when they come back by `back`."""
    return back.at(flow.points) - flow.own


def _flow(
    dense0: DenseDescriptors,
    dense1: DenseDescriptors,
    matched: MatchedCells,
    options: FlowOptions,
    photos: tuple[Tensor, Tensor] | None = None,
) -> DenseFlow:
    cells0, cells1 = _cells(dense0), _cells(dense1)
    (rows0, columns0), (rows1, columns1) = _shape(dense0), _shape(dense1)
    batch = len(cells0.score)
    index1, similarity = matched.index1, matched.similarity
    coherence = torch.zeros_like(similarity)
    for _ in range(options.votes):
        index1, similarity, coherence = _vote(
            cells0.descriptors, cells1.descriptors, index1, similarity, (rows0, columns0), columns1, options
        )
    distinctiveness = (cells0.score * cells1.score.gather(1, index1)).sqrt()
    evidence = [similarity.clamp(0, 1), distinctiveness, matched.probability.sqrt(), coherence]
    near = cell_centres(columns1, rows1, CELL, index1.device)[index1].view(batch, rows0, columns0, 2)
    points, stride = _to_fine(dense0, dense1, near, options.fine_radius)
    if photos is not None and options.propagation is not None:
        points = _propagated(points, dense0, dense1, photos, options.propagation)
    points = _averaged(points, stride, options)
    return DenseFlow(
        points,
        stride,
        _fine_difference(dense0, dense1, points),
        torch.stack(evidence, dim=1).view(batch, -1, rows0, columns0),
        matched,
        min(rows0 * columns0, rows1 * columns1),
    )


def _shape(dense: DenseDescriptors) -> tuple[int, int]:
    """Rows and columns of cells of CELL pixels."""
    if dense.stride == CELL:
        rows, columns = dense.score.shape[-2:]
        return rows, columns
    return max(1, dense.size[0] // CELL), max(1, dense.size[1] // CELL)


def _cells(dense: DenseDescriptors) -> Cells:
    """Descriptors (B, N, D) and scores (B, N), one per CELL pixels."""
    if dense.stride == CELL:
        descriptors = dense.descriptors.flatten(2).transpose(1, 2).contiguous().float()
        return Cells(descriptors, dense.score.flatten(1).float())
    rows, columns = _shape(dense)
    batch = len(dense.descriptors)
    places = cell_centres(columns, rows, CELL, dense.descriptors.device).expand(batch, -1, -1)
    descriptors = sample_map(dense.descriptors, places, dense.stride, normalise=True)
    return Cells(descriptors, sample_map(dense.score, places, dense.stride)[..., 0])


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
    """Places (B, h, w, 2) in photo 1 of every fine cell of photo 0, and the stride of those cells.

    near (B, rows, columns, 2): where the cells of CELL pixels are found. A fine cell starts from its cell's
    match, moved by where it lies in that cell, and is then sought in the fine map.
    """
    if dense0.fine is None or dense1.fine is None:
        return near, CELL
    stride = dense0.fine_stride
    height, width = dense0.fine.shape[-2:]
    own = cell_centres(width, height, stride, near.device)
    moved = carried(near, CELL, (height, width), stride).view(len(near), -1, 2)
    fine = zip(dense0.fine, dense1.fine, moved, strict=True)
    refined = [seek(f0, f1, own, start, stride, radius).points for f0, f1, start in fine]
    return torch.stack(refined).view(-1, height, width, 2), stride


def _propagated(
    points: Tensor,
    dense0: DenseDescriptors,
    dense1: DenseDescriptors,
    photos: tuple[Tensor, Tensor],
    options: PropagationOptions,
) -> Tensor:
    """Places (B, h, w, 2), after neighbours' motions were tried; as they are without fine maps."""
    if dense0.fine is None or dense1.fine is None:
        return points
    pairs = zip(points, dense0.fine, dense1.fine, *photos, strict=True)
    return torch.stack(
        [
            propagate(places, Likeness(fine0, fine1, dense0.fine_stride, photo0, photo1, options))
            for places, fine0, fine1, photo0, photo1 in pairs
        ]
    )


def _fine_difference(dense0: DenseDescriptors, dense1: DenseDescriptors, points: Tensor) -> Tensor:
    """By how much (B, h, w) the fine features at points (B, h, w, 2) of photo 1 differ from photo 0's own."""
    if dense0.fine is None or dense1.fine is None:
        return torch.zeros_like(points[..., 0])
    found = sample_map(dense1.fine, points.flatten(1, 2), dense1.fine_stride)
    own = dense0.fine.float().flatten(2).transpose(1, 2)
    return (found - own).pow(2).mean(dim=2).sqrt().view(points.shape[:3])


def carried(points: Tensor, stride: int, size: tuple[int, int], finer: int) -> Tensor:
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

"""From the dense descriptors of two photos to matches on their grids: the matching algorithm.

Everything here is in pixels of the resized photos; `coam.matcher` maps them back to the originals.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from coam.geometry.coordinates import cell_centres
from coam.matching.coarse_to_fine import COARSE_STRIDE, FineAnswers, coarse_to_fine
from coam.matching.grid import sample_map
from coam.matching.guided import LARGEST_LOGIT_SCALE, can_guide, guided_dual_softmax
from coam.matching.mutual import dual_softmax_nearest, log_partition, mutual_nearest, nearest
from coam.matching.pair_score import statistics_of_sums, sums_of_matches
from coam.matching.refine import RefinedPoints, fine_logit_scale, refine_paper, refine_quadratic, seek
from coam.matching.selection import choose_spread
from coam.matching.settings import MatcherConfig
from coam.models.outputs import DenseDescriptors

SHARP_SPREAD = 1.8  # pixels: a fine peak up to 1.3 pixels wide (the width it is trained to have) is sharp
CROWDING_CELLS = 16  # along the long side of photo 0
OVERSAMPLING = 4  # times as many are refined as wanted: some turn out less sharp, or crowded
LEAST_SHARE = 0.01  # of a photo that a mask leaves: with less, fewer matches are left
MIN_POSITIONS = 64  # fewer positions than this are not picked out: there is nothing to gain


@dataclass(frozen=True)
class Side:
    """The positions of one photo that are compared."""

    points: Tensor  # (N, 2) resized pixels
    index: Tensor  # (N,) grid index
    descriptors: Tensor  # (N, D)
    score: Tensor  # (N,) distinctiveness


@dataclass(frozen=True)
class Proposals:
    """Mutual nearest neighbours of two sides, before they are ranked."""

    index0: Tensor  # (K,) into side 0
    index1: Tensor  # (K,) into side 1
    probability: Tensor  # (K,) that the two match, by their similarity alone
    counts: Tensor  # (K,) bool; False: a search of fixed size fills up with these


@dataclass(frozen=True)
class Candidates:
    """Matches on the grids of the resized photos, best first, before they are mapped back."""

    points0: Tensor  # (K, 2) resized pixels
    points1: Tensor  # (K, 2)
    index0: Tensor  # (K,) grid index
    index1: Tensor  # (K,)
    score: Tensor  # (K,)
    statistics: list[float] = field(default_factory=list)  # for the pair score, see `pair_statistics`


class DenseMatching:
    """Matches dense descriptors by the settings of a `MatcherConfig`."""

    def __init__(self, config: MatcherConfig, logit_scale: float) -> None:
        """config: with every choice made (`MatcherConfig.for_network`); logit_scale: the network's."""
        self.config = config
        self.logit_scale = logit_scale

    def between(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> Candidates:
        """Mutual matches of two photos, best first."""
        side0, side1, proposals = self._propose(dense0, dense1)
        found, sums = self._select(dense0, dense1, side0, side1, proposals)
        good = found.score >= self.config.min_score
        parts = (found.points0, found.points1, found.index0, found.index1, found.score.clamp(max=1))
        points0, points1, index0, index1, score = (part[good] for part in parts)
        statistics = statistics_of_sums(sums.tolist(), self._fewer_positions(dense0, dense1))
        return Candidates(points0, points1, index0, index1, score, statistics)

    def between_many(
        self, pairs: Iterable[tuple[DenseDescriptors, DenseDescriptors]]
    ) -> Iterator[Candidates]:
        """Mutual matches of many pairs, in order."""
        return (self.between(*pair) for pair in pairs)

    def before_masks(self, share: float) -> DenseMatching:
        """The same search, of which as many matches are left when masks take all but a `share` of them."""
        most = math.ceil(self.config.max_matches / max(share, LEAST_SHARE))
        return DenseMatching(replace(self.config, max_matches=most), self.logit_scale)

    def of_keypoints(self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor) -> Candidates:
        """The best match in photo 1 of each of points0 (K, 2), in order: `index0` counts them."""
        positions1 = self.positions(dense1)
        descriptors1, score1 = self._on_grid(dense1, positions1)
        query = sample_map(dense0.descriptors, points0[None], dense0.stride, normalise=True)[0]
        score0 = sample_map(dense0.score, points0[None], dense0.stride)[0, :, 0]
        index1, similarity = nearest(self._weighed(query, score0), self._weighed(descriptors1, score1))
        found1, _ = self._refine(dense0, dense1, points0, query, positions1[index1], index1)
        points1 = self._look_back(dense0, dense1, points0, found1)
        bare = self.config.ranking != "dual_softmax"
        score = similarity if bare else similarity * score0 * score1[index1]
        order = torch.arange(len(index1), device=index1.device)
        return Candidates(points0, points1, order, index1, score.clamp(0, 1))

    def between_keypoints(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor, points1: Tensor
    ) -> Candidates:
        """Mutual matches, best first, of points0 (K, 2) and points1 (L, 2), of which `index0`, `index1` tell.

        Scores are those of grid matches: probabilities are over the other photo's grid, not over its
        keypoints, however few these are.
        """
        score0, score1 = (
            sample_map(dense.score, points[None], dense.stride)[0, :, 0]
            for dense, points in ((dense0, points0), (dense1, points1))
        )
        worth0, worth1 = (score >= self.config.min_distinctiveness for score in (score0, score1))
        worth0, worth1 = torch.nonzero(worth0).squeeze(1), torch.nonzero(worth1).squeeze(1)
        points0, points1, score0, score1 = points0[worth0], points1[worth1], score0[worth0], score1[worth1]
        descriptors0, descriptors1 = (
            sample_map(dense.descriptors, points[None], dense.stride, normalise=True)[0]
            for dense, points in ((dense0, points0), (dense1, points1))
        )
        if self.config.ranking != "dual_softmax":
            mutual = mutual_nearest(self._weighed(descriptors0, score0), self._weighed(descriptors1, score1))
            index0, index1, rank = mutual.index0, mutual.index1, mutual.similarity
        else:
            mutual = mutual_nearest(
                *self._with_fine(dense0, dense1, descriptors0, descriptors1, points0, points1)
            )
            index0, index1 = mutual.index0, mutual.index1
            exponent = self.logit_scale * (descriptors0[index0] * descriptors1[index1]).sum(dim=1)
            over_grid1 = log_partition(descriptors0[index0], self._side(dense1).descriptors, self.logit_scale)
            over_grid0 = log_partition(descriptors1[index1], self._side(dense0).descriptors, self.logit_scale)
            probability = (2 * exponent - over_grid0 - over_grid1).clamp(max=0).exp()
            rank = probability.sqrt() * score0[index0] * score1[index1]
        rank = rank * self._agreement(dense0, dense1, points0[index0], points1[index1])
        score, order = torch.sort(rank.clamp(0, 1), descending=True, stable=True)
        order = order[score >= self.config.min_score]
        index0, index1 = index0[order], index1[order]
        return Candidates(
            points0[index0], points1[index1], worth0[index0], worth1[index1], score[: len(order)]
        )

    def positions(self, dense: DenseDescriptors) -> Tensor:
        """Grid positions (N, 2) in resized pixels."""
        columns, rows = self._grid_shape(dense)
        height, width = dense.size
        stride = (width / columns, height / rows) if self.config.grid else dense.stride
        return cell_centres(columns, rows, stride, dense.descriptors.device)

    # ---- the steps, in their order

    def _side(self, dense: DenseDescriptors) -> Side:
        """The positions of one photo that are worth comparing."""
        positions = self.positions(dense)
        descriptors, score = self._on_grid(dense, positions)
        index = torch.arange(len(score), device=score.device)
        worth = index[score >= self.config.min_distinctiveness]
        if MIN_POSITIONS <= len(worth) < len(score):
            return Side(positions[worth], worth, descriptors[worth], score[worth])
        return Side(positions, index, descriptors, score)

    def _masked(self, dense: DenseDescriptors, positions: Tensor) -> tuple[Side, Tensor]:
        """All positions, and which are worth comparing (N,); the descriptors of the others are zero."""
        descriptors, score = self._on_grid(dense, positions)
        worth = score >= self.config.min_distinctiveness
        worth = worth | (worth.sum() < MIN_POSITIONS)  # so few: compare all, as `_side` does
        index = torch.arange(len(score), device=score.device)
        return Side(positions, index, descriptors * worth.unsqueeze(1), score), worth

    def _propose(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> tuple[Side, Side, Proposals]:
        """Mutual nearest neighbours, by what the ranking compares."""
        side0, side1 = self._side(dense0), self._side(dense1)
        if self.config.ranking != "dual_softmax":
            weighed0, weighed1 = (self._weighed(side.descriptors, side.score) for side in (side0, side1))
            mutual = mutual_nearest(weighed0, weighed1)
            probability = mutual.similarity.clamp(0, 1)
        else:
            mutual = dual_softmax_nearest(side0.descriptors, side1.descriptors, self.logit_scale)
            assert mutual.probability is not None
            probability = mutual.probability
        counts = torch.ones_like(mutual.index0, dtype=torch.bool)
        return side0, side1, Proposals(mutual.index0, mutual.index1, probability, counts)

    def _select(
        self,
        dense0: DenseDescriptors,
        dense1: DenseDescriptors,
        side0: Side,
        side1: Side,
        proposals: Proposals,
    ) -> tuple[Candidates, Tensor]:
        """Rank proposals, refine the best, choose among them without crowding. All sizes are known before.

        A negative score says that a match does not count. Also `sums_of_matches` (4,), for the pair score.
        """
        distinct = side0.score[proposals.index0] * side1.score[proposals.index1]
        sums = sums_of_matches(proposals.probability, distinct, proposals.counts)
        # The paper's similarities hold the scores already, and those of its ablation hold none.
        bare = self.config.ranking != "dual_softmax"
        rank = proposals.probability if bare else proposals.probability.sqrt() * distinct
        rank = torch.where(proposals.counts, rank, -1.0)
        rank, best = torch.sort(rank, descending=True, stable=True)
        rank, best = (part[: OVERSAMPLING * self.config.max_matches] for part in (rank, best))
        index0, index1 = proposals.index0[best], proposals.index1[best]
        points0 = side0.points[index0]
        found1, sharpness = self._refine(
            dense0,
            dense1,
            points0,
            side0.descriptors[index0],
            side1.points[index1],
            side1.index[index1],
        )
        score = rank * sharpness
        cell = max(dense0.size) / CROWDING_CELLS
        order = choose_spread(points0, score, self.config.max_matches, cell, self.config.crowding)
        points0 = points0[order]
        points1 = self._look_back(dense0, dense1, points0, found1[order])
        index0, index1 = side0.index[index0[order]], side1.index[index1[order]]
        return Candidates(points0, points1, index0, index1, score[order]), sums

    def _refine(
        self,
        dense0: DenseDescriptors,
        dense1: DenseDescriptors,
        points0: Tensor,
        queries: Tensor,
        near1: Tensor,
        index1: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Sub-pixel positions (K, 2) in photo 1 and their sharpness (K,) in (0, 1].

        points0 (K, 2) and queries (K, D): matched positions of photo 0 and their descriptors; near1 (K, 2)
        and index1 (K,): matched positions of photo 1 and their grid indices.
        """
        if self.config.refinement == "fine":
            refined = self._seek(dense0, dense1, points0, near1)
            return refined.points, (SHARP_SPREAD / (0.5 + refined.spread)).clamp(max=1.0)
        sharp = torch.ones(len(index1), device=near1.device)
        if self.config.refinement == "none" or len(index1) == 0:
            return near1, sharp
        positions1, (columns, rows) = self.positions(dense1), self._grid_shape(dense1)
        descriptors1 = self._weighed(*self._on_grid(dense1, positions1))
        refine = refine_paper if self.config.refinement == "paper" else refine_quadratic
        return refine(queries, descriptors1, index1, columns, rows, positions1).points, sharp

    def _look_back(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor, points1: Tensor
    ) -> Tensor:
        """Refined points1 (K, 2), improved by looking for points0 (K, 2) from there.

        Half of the distance by which they are missed is the error of each way: both make about the same one.
        """
        if self.config.refinement != "fine":
            return points1
        back = self._seek(dense1, dense0, points1, points0)
        return points1 - (back.points - points0) / 2

    def _with_fine(
        self,
        dense0: DenseDescriptors,
        dense1: DenseDescriptors,
        descriptors0: Tensor,
        descriptors1: Tensor,
        points0: Tensor,
        points1: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Descriptors of both, (K, D + F) and (L, D + F), that also tell keypoints of one cell apart.

        The logits of the fine map in a window are added to those of the descriptors.
        """
        if self.config.refinement != "fine":
            return descriptors0, descriptors1
        assert dense0.fine is not None
        assert dense1.fine is not None
        fine0 = sample_map(dense0.fine, points0[None], dense0.fine_stride)[0]
        fine1 = sample_map(dense1.fine, points1[None], dense1.fine_stride)[0]
        fine0 = fine0 * (fine_logit_scale(dense0.fine.shape[1]) / self.logit_scale)
        return torch.cat([descriptors0, fine0], dim=1), torch.cat([descriptors1, fine1], dim=1)

    def _agreement(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor, points1: Tensor
    ) -> Tensor:
        """How well (K,), in (0, 1], the fine maps see points0 (K, 2) and points1 (K, 2) at the same place."""
        if self.config.refinement != "fine":
            return torch.ones(len(points0), device=points0.device)
        there = self._seek(dense0, dense1, points0, points1)
        back = self._seek(dense1, dense0, points1, points0)
        apart = ((there.points - points1) - (back.points - points0)) / 2  # as in `_look_back`
        sharpness = (SHARP_SPREAD / (0.5 + there.spread)).clamp(max=1.0)
        return sharpness * torch.exp(-0.5 * (apart / self.config.keypoint_tolerance).square().sum(dim=1))

    # ---- what the steps share

    def _seek(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor, near1: Tensor
    ) -> RefinedPoints:
        """Where the fine features of points0 (K, 2) are found around near1 (K, 2)."""
        assert dense0.fine is not None
        assert dense1.fine is not None
        radius = self.config.fine_radius
        return seek(dense0.fine[0], dense1.fine[0], points0, near1, dense0.fine_stride, radius)

    def _weighed(self, descriptors: Tensor, score: Tensor) -> Tensor:
        """Descriptors (N, D) whose products are what the ranking compares.

        The paper's hold the score (N,): their products are r_k r_l <d_k, d_l>, its eq. 2. Those of
        "similarity" do not: <d_k, d_l> alone.
        """
        return descriptors * score.unsqueeze(-1) if self.config.ranking == "paper" else descriptors

    def _grid_shape(self, dense: DenseDescriptors) -> tuple[int, int]:
        if self.config.grid is not None:
            return self.config.grid, self.config.grid
        rows, columns = dense.descriptors.shape[-2:]
        return columns, rows

    def _fewer_positions(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> int:
        """Number of grid positions of the smaller photo."""
        return min(columns * rows for columns, rows in map(self._grid_shape, (dense0, dense1)))

    def _on_grid(self, dense: DenseDescriptors, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Descriptors (N, D) and scores (N,) at the grid positions."""
        if self.config.grid is None:
            return dense.descriptors[0].flatten(1).t().contiguous(), dense.score[0].flatten()
        descriptors = sample_map(dense.descriptors, positions[None], dense.stride, normalise=True)[0]
        descriptors = descriptors.to(dense.descriptors.dtype)  # the search is fastest in half precision
        return descriptors, sample_map(dense.score, positions[None], dense.stride)[0, :, 0]


class GuidedMatching(DenseMatching):
    """`DenseMatching` that compares positions only where the network's coarse descriptors allow a match."""

    def _propose(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> tuple[Side, Side, Proposals]:
        coarse0, coarse1 = dense0.coarse, dense1.coarse
        if coarse0 is None or coarse1 is None or not (can_guide(dense0) and can_guide(dense1)):
            return super()._propose(dense0, dense1)
        sides = [self._masked(dense, self.positions(dense))[0] for dense in (dense0, dense1)]
        maps = [
            side.descriptors.t().reshape(dense.descriptors.shape[1:])
            for side, dense in zip(sides, (dense0, dense1), strict=True)
        ]
        mutual = guided_dual_softmax(maps[0], maps[1], coarse0[0], coarse1[0], self.logit_scale)
        assert mutual.probability is not None
        counts = torch.ones_like(mutual.index0, dtype=torch.bool)
        return sides[0], sides[1], Proposals(mutual.index0, mutual.index1, mutual.probability, counts)


class CoarseToFineMatching(DenseMatching):
    """`DenseMatching` of CAPSNet: coarse maps say where the fine ones are compared (`coarse_to_fine`)."""

    def _propose(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> tuple[Side, Side, Proposals]:
        sides = [self._masked(dense, self.positions(dense))[0] for dense in (dense0, dense1)]
        there = self._seek_fine(dense0, dense1, sides[0].points)
        back = self._seek_fine(dense1, dense0, sides[1].points)
        row = torch.arange(len(there.best), device=there.best.device)
        index0 = row[back.best[there.best] == row]
        index1 = there.best[index0]
        probability = there.probability[index0] * back.probability[index1]
        counts = torch.ones_like(index0, dtype=torch.bool)
        return sides[0], sides[1], Proposals(index0, index1, probability, counts)

    def of_keypoints(self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor) -> Candidates:
        """The expected position in photo 1 of each of points0 (K, 2), in order, as in CAPSNet's training."""
        found = self._seek_fine(dense0, dense1, points0)
        score = found.probability.clamp(0, 1)
        order = torch.arange(len(score), device=score.device)
        return Candidates(points0, found.expected, order, found.best, score)

    def _seek_fine(self, dense0: DenseDescriptors, dense1: DenseDescriptors, points: Tensor) -> FineAnswers:
        assert dense0.coarse is not None
        assert dense1.coarse is not None
        fine0, fine1 = (d.descriptors if d.fine is None else d.fine for d in (dense0, dense1))
        query = sample_map(fine0, points[None], dense0.stride, normalise=True)[0]
        coarse_query = sample_map(dense0.coarse, points[None], COARSE_STRIDE, normalise=True)[0]
        reach = self.config.window * max(dense1.size) / 2
        return coarse_to_fine(
            query, coarse_query, fine1[0], dense1.coarse[0], dense1.stride, reach, self.logit_scale
        )


def matching_for(config: MatcherConfig, logit_scale: float, device: torch.device) -> DenseMatching:
    """The fastest matching with these settings on this device."""
    if config.search == "coarse_to_fine":
        return CoarseToFineMatching(config, logit_scale)
    if device.type == "cuda":
        from coam.matching.graphed import graphed_matching

        return graphed_matching(config, logit_scale, device) or DenseMatching(config, logit_scale)
    guidable = config.ranking == "dual_softmax" and config.grid is None and logit_scale < LARGEST_LOGIT_SCALE
    if config.search == "guided" and guidable:
        return GuidedMatching(config, logit_scale)
    return DenseMatching(config, logit_scale)

"""From the dense descriptors of two photos to matches on their grids.

Everything here is in pixels of the resized photos; `coam.matcher` maps them back to the originals.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Tensor

from coam.errors import ConfigError
from coam.matching import (
    RefinedPoints,
    dual_softmax_nearest,
    fold_score,
    grid_points,
    mutual_nearest,
    nearest,
    refine_paper,
    refine_quadratic,
    sample_map,
    seek,
)
from coam.matching.pair_score import pair_statistics
from coam.matching.selection import choose_spread
from coam.models.outputs import DenseDescriptors

SHARP_SPREAD = (
    1.8  # pixels: a fine peak up to 1.3 pixels wide counts as sharp (the width it is trained to have)
)
CROWDING_CELLS = 16  # along the long side of photo 0
MIN_POSITIONS = 64  # fewer positions than this are not picked out: there is nothing to gain

LOWEST_INTEGERS = {"resolution": 32, "grid": 1, "max_matches": 0, "fine_radius": 0, "cached_images": 1}

Ranking = Literal["dual_softmax", "paper"]
Looks = Literal["once", "align", "search"]
Refinement = Literal["fine", "quadratic", "paper", "none"]
CHOICES = (
    ("ranking", get_args(Ranking)),
    ("refinement", get_args(Refinement)),
    ("looks", get_args(Looks)),
)


@dataclass(frozen=True)
class MatcherConfig:
    """How photos are prepared and matches chosen."""

    resolution: int = 800  # long side, in pixels, at which the network sees a photo
    squash: bool = False  # True: both sides become `resolution`, as in the paper
    grid: int | None = (
        None  # G x G positions; None: every cell of the model's descriptor map (at least 4 pixels apart)
    )
    max_matches: int = 2048  # the best so many are kept
    min_score: float = 0.001  # matches below it are left out; on hard pairs weak ones are still worth having
    min_distinctiveness: float = (
        0.02  # positions below it (sky, water, what only one photo shows) are not compared
    )
    crowding: float = (
        0.99  # below 1: what lies where many better ones lie is chosen less; 1: only the score counts
    )
    ranking: Ranking = "dual_softmax"  # "paper": eq. 2, the score folded into the similarity
    refinement: Refinement = "fine"  # how the point in photo 1 gets its sub-pixel position
    fine_radius: int = 2  # cells around a match in which the fine map is searched
    # "align": again from one viewpoint; "search": and, where nothing is found, at other zooms and turns
    looks: Looks = "search"
    cached_images: int = 24  # how many encoded photos `match_many` keeps

    def __post_init__(self) -> None:
        for name, lowest in LOWEST_INTEGERS.items():
            value = getattr(self, name)
            if value is None and name == "grid":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ConfigError(f"{name} must be a whole number of at least {lowest}, not {value!r}")
        for name in ("min_score", "min_distinctiveness", "crowding"):
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ConfigError(f"{name} must lie between 0 and 1, not {value!r}")
        for name, choices in CHOICES:
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")


PRESETS: dict[str, MatcherConfig] = {
    "default": MatcherConfig(),
    "paper": MatcherConfig(
        resolution=512,
        squash=True,
        grid=128,
        max_matches=2000,
        min_score=0.0,
        min_distinctiveness=0.0,
        crowding=1.0,
        ranking="paper",
        refinement="none",
        looks="once",
    ),
}


@dataclass(frozen=True)
class Side:
    """The positions of one photo that are compared."""

    points: Tensor  # (N, 2) resized pixels
    index: Tensor  # (N,) grid index
    descriptors: Tensor  # (N, D)
    score: Tensor  # (N,)
    positions: int  # of the whole grid


@dataclass(frozen=True)
class Candidates:
    """Matches on the grids of the resized photos, before they are mapped back."""

    points0: Tensor  # (K, 2) resized pixels
    points1: Tensor
    index0: Tensor  # (K,) grid index
    index1: Tensor
    score: Tensor  # (K,)
    statistics: list[float]


class DenseMatching:
    """Matches dense descriptors by the settings of a `MatcherConfig`."""

    def __init__(self, config: MatcherConfig, temperature: float) -> None:
        self.config = config
        self.temperature = temperature  # factor on similarities in the dual softmax; belongs to the model

    def between(self, dense0: DenseDescriptors, dense1: DenseDescriptors) -> Candidates:
        """Mutual matches of two photos, best first."""
        side0, side1 = self._side(dense0), self._side(dense1)
        if self.config.ranking == "paper":
            mutual = mutual_nearest(
                self._weighed(side0.descriptors, side0.score), self._weighed(side1.descriptors, side1.score)
            )
            probability = rank = mutual.similarity.clamp(0, 1)
        else:
            temperature = 1.0 / self.temperature
            mutual = dual_softmax_nearest(side0.descriptors, side1.descriptors, temperature)
            assert mutual.probability is not None
            probability = mutual.probability
            rank = probability.sqrt() * side0.score[mutual.index0] * side1.score[mutual.index1]
        distinct = side0.score[mutual.index0] * side1.score[mutual.index1]
        statistics = pair_statistics(probability, distinct, min(side0.positions, side1.positions))
        # More than are wanted: refinement may show that some are less sharp, or crowded, than they seemed.
        best = torch.sort(rank, descending=True, stable=True).indices[: 4 * self.config.max_matches]
        index0, index1, rank = mutual.index0[best], mutual.index1[best], rank[best]
        points0 = side0.points[index0]
        found1, sharpness = self._refine(
            dense0, dense1, points0, side0.descriptors[index0], side1.index[index1]
        )
        score = rank * sharpness
        cell = max(dense0.size) / CROWDING_CELLS
        order = choose_spread(points0, score, self.config.max_matches, cell, self.config.crowding)
        order = order[score[order] >= self.config.min_score]
        points0, points1 = points0[order], self._look_back(dense0, dense1, points0[order], found1[order])
        return Candidates(
            points0,
            points1,
            side0.index[index0[order]],
            side1.index[index1[order]],
            score[order].clamp(0, 1),
            statistics,
        )

    def between_many(
        self, pairs: Iterable[tuple[DenseDescriptors, DenseDescriptors]]
    ) -> Iterator[Candidates]:
        """Mutual matches of many pairs, in order."""
        return (self.between(*pair) for pair in pairs)

    def of_keypoints(self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor) -> Candidates:
        """The best match in photo 1 of each of points0 (K, 2), in order; they have no grid index (-1)."""
        descriptors1, score1 = self._on_grid(dense1, self.positions(dense1))
        query = sample_map(dense0.descriptors, points0[None], dense0.stride, normalise=True)[0]
        score0 = sample_map(dense0.score, points0[None], dense0.stride)[0, :, 0]
        best = nearest(self._weighed(query, score0), self._weighed(descriptors1, score1))
        found1, _ = self._refine(dense0, dense1, points0, query, best.index1)
        points1 = self._look_back(dense0, dense1, points0, found1)
        weighed = self.config.ranking == "paper"
        score = best.similarity if weighed else best.similarity * score0 * score1[best.index1]
        score = score.clamp(0, 1)
        return Candidates(points0, points1, torch.full_like(best.index1, -1), best.index1, score, [])

    def _refine(
        self,
        dense0: DenseDescriptors,
        dense1: DenseDescriptors,
        points0: Tensor,
        queries: Tensor,
        index1: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Sub-pixel positions (K, 2) in photo 1 and their sharpness (K,) in (0, 1].

        points0 (K, 2) and queries (K, D): matched positions of photo 0 and their descriptors; index1 (K,):
        matched grid indices of photo 1.
        """
        positions1 = self.positions(dense1)
        if self.config.refinement == "none" or len(index1) == 0:
            return positions1[index1], torch.ones(len(index1), device=dense1.descriptors.device)
        if self.config.refinement == "fine":
            refined = self._seek(dense0, dense1, points0, positions1[index1])
            return refined.points, (SHARP_SPREAD / (0.5 + refined.spread)).clamp(max=1.0)
        columns, rows = self._grid_shape(dense1)
        descriptors1 = self._weighed(*self._on_grid(dense1, positions1))
        refine = refine_paper if self.config.refinement == "paper" else refine_quadratic
        points1 = refine(queries, descriptors1, index1, columns, rows, positions1).points
        return points1, torch.ones(len(points1), device=dense1.descriptors.device)

    def _weighed(self, descriptors: Tensor, score: Tensor) -> Tensor:
        """Descriptors (N, D) whose products are what the ranking compares: the paper's hold the score."""
        return fold_score(descriptors, score) if self.config.ranking == "paper" else descriptors

    def _look_back(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor, points1: Tensor
    ) -> Tensor:
        """Refined points1 (K, 2), improved by looking for points0 (K, 2) from there.

        Half of the distance by which they are missed is the error of each way: both make about the same one.
        """
        if self.config.refinement != "fine" or len(points1) == 0:
            return points1
        back = self._seek(dense1, dense0, points1, points0)
        return points1 - (back.points - points0) / 2

    def _seek(
        self, dense0: DenseDescriptors, dense1: DenseDescriptors, points0: Tensor, near1: Tensor
    ) -> RefinedPoints:
        """Where the fine features of points0 (K, 2) are found around near1 (K, 2)."""
        assert dense0.fine is not None
        assert dense1.fine is not None
        temperature = float(dense0.fine.shape[1]) ** 0.5  # as in training
        return seek(
            dense0.fine[0],
            dense1.fine[0],
            points0,
            near1,
            dense0.fine_stride,
            self.config.fine_radius,
            temperature,
        )

    def _grid_shape(self, dense: DenseDescriptors) -> tuple[int, int]:
        if self.config.grid is not None:
            return self.config.grid, self.config.grid
        rows, columns = dense.descriptors.shape[-2:]
        return columns, rows

    def _position_count(self, dense: DenseDescriptors) -> int:
        columns, rows = self._grid_shape(dense)
        return columns * rows

    def positions(self, dense: DenseDescriptors) -> Tensor:
        """Grid positions (N, 2) in resized pixels."""
        columns, rows = self._grid_shape(dense)
        height, width = dense.size
        if self.config.grid is None:
            width, height = columns * dense.stride, rows * dense.stride
        return grid_points(columns, rows, width, height, dense.descriptors.device)

    def _side(self, dense: DenseDescriptors) -> Side:
        """The positions of one photo that are worth comparing."""
        positions = self.positions(dense)
        descriptors, score = self._on_grid(dense, positions)
        index = torch.arange(len(score), device=score.device)
        worth = index[score >= self.config.min_distinctiveness]
        if MIN_POSITIONS <= len(worth) < len(score):
            return Side(positions[worth], worth, descriptors[worth], score[worth], len(score))
        return Side(positions, index, descriptors, score, len(score))

    def _on_grid(self, dense: DenseDescriptors, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Descriptors (N, D) and scores (N,) at the grid positions."""
        if self.config.grid is None:
            return dense.descriptors[0].flatten(1).t().contiguous(), dense.score[0].flatten()
        descriptors = sample_map(dense.descriptors, positions[None], dense.stride, normalise=True)[0]
        descriptors = descriptors.to(dense.descriptors.dtype)  # the search is fastest in half precision
        return descriptors, sample_map(dense.score, positions[None], dense.stride)[0, :, 0]

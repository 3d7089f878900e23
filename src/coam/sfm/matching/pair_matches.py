"""`PairMatches`: the matches of one pair as the journal stores them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.store.journal import Record
from coam.types import FloatArray, Grid, IntArray, Matches, Size


@dataclass(frozen=True)
class PairMatches:
    """The stored matches of one pair: grid ids, and beside them the sub-pixel offset in image 1."""

    ids0: IntArray  # (N,)
    ids1: IntArray  # (N,)
    offsets: FloatArray  # (N, 2): grid1.positions(ids1) + offsets corresponds to grid0.positions(ids0)
    scores: FloatArray  # (N,)
    grid0: Grid
    grid1: Grid
    size0: Size
    size1: Size
    overlap: float  # nan where the matcher is not calibrated

    @property
    def points0(self) -> npt.NDArray[np.float64]:
        """(N, 2) pixels of photo 0: grid positions."""
        return self.grid0.positions(self.ids0).astype(np.float64)

    @property
    def points1(self) -> npt.NDArray[np.float64]:
        """(N, 2) pixels of photo 1: sub-pixel positions."""
        return (self.grid1.positions(self.ids1) + self.offsets).astype(np.float64)

    @property
    def long_side(self) -> int:
        """The longest side of the two photos in pixels: the unit of most tolerances."""
        return max(*self.size0, *self.size1)

    def __len__(self) -> int:
        return len(self.scores)

    def select(self, index: npt.NDArray[Any]) -> PairMatches:
        """The matches at `index` (integers or a mask)."""
        columns = ("ids0", "ids1", "offsets", "scores")
        return replace(self, **{name: getattr(self, name)[index] for name in columns})


def matches_to_record(matches: Matches, stamp: str) -> Record:
    """What the journal stores of `matches`."""
    if matches.grid0 is None or matches.grid1 is None:
        raise DataError("matches without grid ids cannot chain into tracks; match without giving keypoints")
    offsets = matches.points1 - matches.grid1.positions(matches.ids1)
    columns = {
        "ids0": matches.ids0.astype(np.int32),
        "ids1": matches.ids1.astype(np.int32),
        "offsets": offsets.astype(np.float32),
        "scores": matches.scores.astype(np.float32),
    }
    values = {
        "grid0": grid_to_array(matches.grid0),
        "grid1": grid_to_array(matches.grid1),
        "sizes": np.array([*matches.size0, *matches.size1], np.int64),
        "overlap": np.array(matches.overlap, np.float64),
    }
    return Record(columns, values, stamp)


def record_to_matches(record: Record) -> PairMatches:
    """The inverse of `matches_to_record`."""
    columns, values = record.columns, record.values
    width0, height0, width1, height1 = (int(value) for value in values["sizes"])
    return PairMatches(
        columns["ids0"].astype(np.int64),
        columns["ids1"].astype(np.int64),
        columns["offsets"],
        columns["scores"],
        grid_from_array(values["grid0"]),
        grid_from_array(values["grid1"]),
        (width0, height0),
        (width1, height1),
        float(values["overlap"]),
    )


def grid_to_array(grid: Grid) -> npt.NDArray[np.float64]:
    """(6,): columns, rows, origin, step."""
    return np.array([grid.columns, grid.rows, *grid.origin, *grid.step], np.float64)


def grid_from_array(values: npt.NDArray[Any]) -> Grid:
    """The inverse of `grid_to_array`."""
    columns, rows, x, y, step_x, step_y = (float(value) for value in values)
    return Grid(int(columns), int(rows), (x, y), (step_x, step_y))

"""What holds for every result of matching on grids."""

from __future__ import annotations

import numpy as np
import pytest

from coam.models.registry import DEFAULT_MODEL, packaged_weights
from coam.types import Matches

needs_weights = pytest.mark.skipif(
    packaged_weights(DEFAULT_MODEL) is None, reason="no trained weights in this checkout"
)


def check_rules(matches: Matches) -> None:
    """What holds for every result of matching on grids."""
    count = len(matches)
    assert matches.points0.shape == matches.points1.shape == (count, 2)
    assert matches.scores.shape == matches.ids0.shape == matches.ids1.shape == (count,)
    assert matches.points0.dtype == matches.points1.dtype == matches.scores.dtype == np.float32
    for points, ids, grid, size in (
        (matches.points0, matches.ids0, matches.grid0, matches.size0),
        (matches.points1, matches.ids1, matches.grid1, matches.size1),
    ):
        assert grid is not None
        if matches.meta["looks"] == 1:
            assert len(set(ids.tolist())) == count  # mutual: no position twice
        else:
            np.testing.assert_array_equal(ids, grid.nearest(points))
        assert ((ids >= 0) & (ids < len(grid))).all()
        assert (points >= 0).all()
        assert (points <= np.array(size) - 1).all()
        # The grid divides the whole photo evenly.
        np.testing.assert_allclose(np.array(grid.step) * (grid.columns, grid.rows), size, rtol=1e-6)
        np.testing.assert_allclose(np.array(grid.origin), np.array(grid.step) / 2 - 0.5, atol=1e-6)
    if matches.meta["looks"] == 1:
        inside = np.clip(matches.grid0.positions(matches.ids0), 0, np.array(matches.size0) - 1)
        np.testing.assert_allclose(matches.points0, inside, atol=1e-3)
    assert ((matches.scores >= 0) & (matches.scores <= 1)).all()
    assert (np.diff(matches.scores) <= 0).all()

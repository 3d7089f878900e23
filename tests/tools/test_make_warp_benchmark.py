from __future__ import annotations

from pathlib import Path

import numpy as np
from tools.make_warp_benchmark import courtyard_truth, motorcycle_truth, write_pair

from coam import samples
from coam.evaluation.benchmarks.warp import HIDDEN, OUTSIDE, VISIBLE, load_warps
from coam.geometry.coordinates import cell_centres


def test_truth_agrees_with_the_samples_own() -> None:
    yard = samples.courtyard()
    points, state = courtyard_truth(yard, "day_04", "day_06")
    true, valid = yard.true_points1("day_04", "day_06", cell_centres(640, 480, 1).numpy())
    both = (state.ravel() == VISIBLE) & valid
    assert both.mean() > 0.5
    assert np.abs(points.reshape(-1, 2) - true)[both].max() < 0.01
    assert 0.04 < (state == HIDDEN).mean() < 0.08
    assert 0.25 < (state == OUTSIDE).mean() < 0.35


def test_the_motorcycle_is_written_as_the_benchmark_reads_it(tmp_path: Path) -> None:
    pair = samples.motorcycle()
    points, state = motorcycle_truth(pair)
    assert points.shape == (500, 741, 2)
    assert (state == VISIBLE).mean() == pair.visible_right.mean()
    row, column = np.argwhere(state == VISIBLE)[1000]
    assert points[row, column].tolist() == [column - pair.disparity[row, column], row]
    write_pair(tmp_path / "motorcycle" / "left-right", (pair.left, pair.right), (points, state))
    (found,) = load_warps(tmp_path)
    assert found.name == "motorcycle/left-right"

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.warp import (
    HIDDEN,
    OUTSIDE,
    VISIBLE,
    calibration_error,
    load_warps,
    measure_warps,
    reliability,
    warp_row,
)
from coam.evaluation.metrics.tables import Table
from support.simple_matchers import save


def test_a_row_by_hand() -> None:
    truth = np.zeros((1, 6, 2), dtype=np.float32)
    points = truth.copy()
    points[0, :, 0] = [0.5, 2, 5, 0, 0, 0]  # pixels off
    certainty = np.array([[0.9, 0.9, 0.2, 0.7, 0.1, 0.9]], dtype=np.float32)
    state = np.array([[VISIBLE, VISIBLE, VISIBLE, HIDDEN, OUTSIDE, 0]])
    row = warp_row(points, certainty, truth, state)
    assert row["all@1"] == pytest.approx(1 / 3)
    assert row["all@3"] == pytest.approx(2 / 3)
    assert (row["certain"], row["certain@1"], row["certain@3"]) == (pytest.approx(2 / 3), 0.5, 1.0)
    assert (row["hidden"], row["outside"]) == (0.0, 1.0)
    bins = reliability(Table.of([row]))  # of five pixels: what is not known does not count
    assert [share for _, _, share in bins] == pytest.approx([0.2, 0.2, 0.2, 0.4])
    assert [right for _, right, _ in bins] == [0, 0, 0, 1]
    gaps = 0.2 * (0.1 + 0.2 + 0.7) + 0.4 * 0.1
    assert calibration_error(Table.of([row])) == pytest.approx(gaps, abs=1e-6)
    blind = warp_row(points, certainty, truth, np.zeros((1, 6), dtype=np.uint8))
    assert np.isnan(blind["all@1"])
    assert np.isnan(blind["hidden"])


class Still:
    """Every pixel stays where it is, certainly."""

    def warp(self, image0: Path, image1: Path, size: int) -> SimpleNamespace:
        x, y = np.meshgrid(np.arange(size), np.arange(12))
        points = np.stack([x, y], axis=-1).astype(np.float32)
        return SimpleNamespace(
            forward=SimpleNamespace(points=points, certainty=np.ones((12, size), np.float32))
        )


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "root" / "still" / "one"
    for name in ("0.png", "1.png"):
        save(folder / name, np.zeros((12, 16, 3), np.uint8))
    x, y = np.meshgrid(np.arange(16), np.arange(12))
    points = np.stack([x, y], axis=-1).astype(np.float32)
    points[:, 8:, 0] += 2
    np.savez(folder / "truth.npz", points=points, state=np.full((12, 16), VISIBLE, np.uint8))
    return tmp_path / "root"


def test_pairs_are_loaded_and_measured(root: Path) -> None:
    pairs = load_warps(root)
    assert [(pair.name, pair.subsets) for pair in pairs] == [("still/one", ("still",))]
    (row,) = measure_warps(Still(), pairs)
    assert (row["all@1"], row["all@3"], row["certain"]) == (0.5, 1.0, 1.0)


def test_what_cannot_be_measured(root: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="dense descriptors"):
        list(measure_warps(object(), load_warps(root)))
    with pytest.raises(DataError, match=r"holds no SUBSET/PAIR/truth\.npz"):
        load_warps(tmp_path / "empty")
    np.savez(root / "still" / "one" / "truth.npz", points=np.zeros((4, 16, 2)), state=np.zeros((4, 16)))
    with pytest.raises(DataError, match="differ in size"):
        list(measure_warps(Still(), load_warps(root)))
    (root / "still" / "one" / "1.png").unlink()
    with pytest.raises(DataError, match="lacks the photos"):
        load_warps(root)

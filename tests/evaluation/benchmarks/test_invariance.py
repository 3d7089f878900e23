from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.invariance import (
    corresponding_positions,
    descriptor_differences,
    load_invariance,
    measure_invariance,
    standard_deviation,
)
from coam.evaluation.metrics.tables import Table


def test_positions_lie_in_both_images() -> None:
    shift = np.array([[1, 0, 50], [0, 1, 0], [0, 0, 1.0]])
    points0, points1 = corresponding_positions(shift, (100, 80), (100, 80), columns=10)
    assert points0[:, 0].max() == 44.5  # cell centres 4.5, 14.5 .. of which 44.5 + 50 is the last inside
    np.testing.assert_allclose(points1 - points0, [[50, 0]] * len(points0))
    assert len(points0) == 5 * 8


def test_descriptor_differences_by_hand() -> None:
    first, second = np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    found = descriptor_differences(first, second)
    assert found == {"l1": 1.0, "l1_squares": 2.0, "per_channel": 0.5, "cosine": 0.5}
    rows = [{f"alone_{key}": value for key, value in found.items()}]
    assert standard_deviation("alone")(Table.of(rows)) == pytest.approx(1.0)  # of 0 and 2
    assert np.isnan(descriptor_differences(np.zeros((0, 2)), np.zeros((0, 2)))["l1"])


class SeesTheOther:
    """Constant descriptors: equal when looking at another photo, given by the brightness when alone."""

    def describe(self, image0, image1):
        import torch

        from coam.models.outputs import DenseDescriptors

        same = image0 is image1
        dense = []
        for image in (image0, image1):
            angle = float(image.rgb.mean()) / 255 if same else 0.0
            vector = torch.tensor([np.cos(angle), np.sin(angle)], dtype=torch.float32)
            maps = vector.view(1, 2, 1, 1).expand(1, 2, 30, 40).contiguous()
            dense.append(DenseDescriptors(maps, torch.ones(1, 1, 30, 40), 4, (120, 160)))
        return dense[0], dense[1]


def test_invariance_with_and_without_conditioning(hpatches_root: Path) -> None:
    pairs = load_invariance(hpatches_root)
    assert len(pairs) == 5
    rows = list(measure_invariance(SeesTheOther(), pairs))
    assert all(row["conditioned_l1"] == pytest.approx(0, abs=1e-6) for row in rows)
    alone = [row["alone_l1"] for row in rows]
    assert alone == sorted(alone)  # the darker, the further
    assert alone[0] > 0.01


def test_invariance_needs_dense_descriptors_and_a_change_of_light(
    hpatches_root: Path, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="dense descriptors"):
        measure_invariance(object(), load_invariance(hpatches_root))
    (hpatches_root / "i_one").rename(tmp_path / "elsewhere")
    with pytest.raises(DataError, match="no i_"):
        load_invariance(hpatches_root)

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.evaluation.benchmarks.wxbs import load_wxbs, score_wxbs
from coam.types import Matches
from support.simple_matchers import matches_of, save, textured


@pytest.fixture
def wxbs_root(tmp_path: Path) -> Path:
    folder = tmp_path / "WGALBS" / "bridge"
    for stem in ("01", "02"):
        save(folder / f"{stem}.png", textured())
    # Cameras side by side: true points share their row. The third is off by 3.5 px, the fourth by 30.
    (folder / "corrs.txt").write_text("10 20 40 20\n100 50 130 50\n30 70 90 73.5\n60 10 61 40\n")
    return tmp_path


def side_by_side(count: int = 100) -> Matches:
    generator = np.random.default_rng(0)
    points0 = generator.uniform(0, 400, (count, 2))
    return matches_of(points0, points0 + np.stack([generator.uniform(5, 80, count), np.zeros(count)], 1))


def test_wxbs_layout_and_recall_of_hand_points(wxbs_root: Path) -> None:
    (pair,) = load_wxbs(wxbs_root)
    assert (pair.name, pair.subsets) == ("WGALBS/bridge", ("WGALBS",))
    row = score_wxbs(pair, side_by_side())
    assert [row[f"recall@{t}"] for t in (1, 3, 5, 10, 20)] == [0.5, 0.5, 0.75, 0.75, 0.75]
    assert row["mAA@10"] == pytest.approx((3 * 0.5 + 7 * 0.75) / 10)
    assert row["inliers"] == 100


def test_wxbs_without_enough_matches_recalls_nothing(wxbs_root: Path) -> None:
    (pair,) = load_wxbs(wxbs_root)
    row = score_wxbs(pair, side_by_side(5))
    assert row["mAA@10"] == 0
    assert row["inliers"] == 0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: (f / "02.png").unlink(), "WGALBS/bridge has no image 02"),
        (lambda f: (f / "corrs.txt").write_text("1 2 3\n"), "corrs.txt is damaged"),
        (lambda f: (f / "corrs.txt").write_text("a b c d\n"), "corrs.txt is damaged"),
        (lambda f: (f / "corrs.txt").write_text(""), "holds no usable correspondence"),
        (lambda f: (f / "corrs.txt").unlink(), "no SCENE/corrs.txt"),
    ],
)
def test_wxbs_broken_files(wxbs_root: Path, damage, message: str) -> None:
    damage(wxbs_root / "WGALBS" / "bridge")
    with pytest.raises(DataError, match=message):
        load_wxbs(wxbs_root)

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from coam.errors import ConfigError, DataError
from coam.evaluation.benchmarks.wxbs import load_wxbs, measure_wxbs_warp, pck_row, score_wxbs
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


def test_the_published_protocol(wxbs_root: Path) -> None:
    """RANSAC at 0.25 px, the mean of the recalls at 0, 1 .. 10 px; the validation scenes can be left out."""
    (pair,) = load_wxbs(wxbs_root)
    row = score_wxbs(pair, side_by_side(), protocol="published")
    at_zero = row["recall@0"]  # two points share their row exactly, up to the rounding of F
    assert at_zero <= 0.5
    assert row["recall 0..10"] == pytest.approx((at_zero + 3 * 0.5 + 7 * 0.75) / 11)
    noisy = side_by_side(400)
    off = np.random.default_rng(1).uniform(-0.6, 0.6, 400)
    noisy = matches_of(noisy.points0, noisy.points1 + np.stack([np.zeros(400), off], 1))
    usual, published = (score_wxbs(pair, noisy, protocol=name) for name in ("usual", "published"))
    assert usual["inliers"] > published["inliers"] > 50  # 1 px against 0.25
    assert score_wxbs(pair, noisy, protocol="published", threshold=1.0)["inliers"] > 300
    with pytest.raises(ConfigError, match="choose usual or published"):
        score_wxbs(pair, noisy, protocol="loma")
    (wxbs_root / "WGALBS" / "bridge").rename(wxbs_root / "WGALBS" / "petrzin")
    assert load_wxbs(wxbs_root, test_only=True) == []
    assert len(load_wxbs(wxbs_root)) == 1


def test_pck_by_hand() -> None:
    there = np.array([[0.0, 0], [0, 1], [3, 4], [30, 0]])  # 0, 1, 5, 30 px off
    back = np.array([[0.0, 0], [0, 0], [0, 0], [0, 12]])
    row = pck_row(there, back)
    assert [row[f"pck@{t}"] for t in (0, 1, 4, 5, 12)] == [0.5, 0.625, 0.625, 0.75, 0.875]
    assert row["PCK 0..10"] == pytest.approx((0.5 + 4 * 0.625 + 6 * 0.75) / 11)


def test_the_warp_is_asked_at_the_hand_points_in_both_directions(wxbs_root: Path) -> None:
    class Shift:
        """Warps that move everything by 30 px to the right, and back by 28."""

        def warp(self, image0: Path, image1: Path) -> SimpleNamespace:
            forward = SimpleNamespace(at=lambda points: (points + np.array([30.0, 0]), np.ones(len(points))))
            backward = SimpleNamespace(at=lambda points: (points - np.array([28.0, 0]), np.ones(len(points))))
            return SimpleNamespace(forward=forward, backward=backward)

    (row,) = measure_wxbs_warp(Shift(), load_wxbs(wxbs_root))
    # Forth: exact for two points, off by (30, -3.5) and (29, 30); back: 2 px off for those two.
    assert (row["pck@1"], row["pck@2"], row["points"]) == (0.25, 0.5, 4)
    with pytest.raises(ConfigError, match="wxbs-warp needs dense descriptors"):
        list(measure_wxbs_warp(object(), []))

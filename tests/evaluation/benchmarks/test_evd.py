"""EVD's layout, and the error of a homography over the part that both photos show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.evaluation.benchmarks.evd import EVD, load_evd, score_evd, visible_error
from coam.evaluation.runner import measure
from support.simple_matchers import matches_of, save, textured

SHIFT = np.array([[1.0, 0, -100], [0, 1, 0], [0, 0, 1]])  # photo 2 shows the right part of photo 1


@pytest.fixture
def evd_root(tmp_path: Path) -> Path:
    for name, ending in (("adam", "png"), ("cafe", "jpg")):
        for folder in ("1", "2"):
            save(tmp_path / folder / f"{name}.{ending}", textured())
        (tmp_path / "h").mkdir(exist_ok=True)
        (tmp_path / "h" / f"{name}.txt").write_text("1 0 -100\n0 1 0\n0 0 1\n")
    return tmp_path


def test_the_published_layout(evd_root: Path) -> None:
    pairs = load_evd(evd_root)
    assert [pair.name for pair in pairs] == ["adam", "cafe"]
    assert pairs[1].image1 == evd_root / "2" / "cafe.jpg"
    assert pairs[0].homography is not None
    assert pairs[0].homography.tolist() == SHIFT.tolist()
    (evd_root / "2" / "cafe.jpg").unlink()
    with pytest.raises(DataError, match="2 has no image cafe"):
        load_evd(evd_root)
    with pytest.raises(DataError, match="no folder h"):
        load_evd(evd_root / "1")


def test_only_what_both_photos_show_counts() -> None:
    stretched = np.diag([1.1, 1, 1]) @ SHIFT  # 10 % of x in photo 2: it shows 0 .. 99 of it, so 0 .. 9.9 px
    assert visible_error(SHIFT, SHIFT, (200, 100), (200, 100)) == 0
    assert visible_error(stretched, SHIFT, (200, 100), (200, 100)) == pytest.approx(4.95, abs=0.06)
    assert visible_error(None, SHIFT, (200, 100), (200, 100)) == np.inf


def test_figures_of_planted_matches(evd_root: Path) -> None:
    pair = load_evd(evd_root)[0]
    generator = np.random.default_rng(0)
    points0 = generator.uniform(110, 600, (200, 2)) * [1, 0.7]
    off_by_four = np.array([4.0, 0.0])
    row = score_evd(pair, matches_of(points0, points0 - [100, 0] + off_by_four))
    assert row["error"] == pytest.approx(4.0, abs=1e-3)
    assert [row[f"within@{t}"] for t in (1, 3, 4, 5)] == pytest.approx([0, 0, 0, 1]) or row["within@4"] == 1
    assert row["mAA@10"] == pytest.approx(0.6, abs=0.11)
    assert (row["mma@3"], row["mma@5"]) == (0, 1)
    nothing = score_evd(pair, matches_of(np.zeros((0, 2)), np.zeros((0, 2))))
    assert (nothing["error"], nothing["mAA@10"]) == (np.inf, 0)


def test_the_table_of_a_perfect_and_a_blind_matcher(evd_root: Path) -> None:
    points = np.random.default_rng(1).uniform(105, 150, (50, 2))

    class Half:
        def match_many(self, pairs):
            for number, _ in enumerate(pairs):
                chosen = points if number == 0 else points[:0]
                yield matches_of(chosen, chosen - [100, 0], (160, 120))

    tables = measure(EVD, load_evd(evd_root), Half())
    assert tables["all"]["pairs within 10 px"] == 0.5
    assert tables["all"]["mAA@10"] == 0.5

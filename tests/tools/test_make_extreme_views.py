"""Extreme views: the homographies say where the wall is seen, and wrong pairs are of different photos."""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import numpy as np
import pytest
from tools.make_extreme_views import KINDS, SIZE

from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.benchmarks.pair_score import load_pair_score
from coam.evaluation.pairs import EvaluationPair
from tools import make_extreme_views


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Walls of smooth colours, backgrounds of one."""
    root = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for name in ("one", "two"):
        (root / "walls" / name).mkdir(parents=True)
        for index in range(2):
            coarse = random.integers(60, 200, (9, 12, 3), dtype=np.uint8)
            wall = cv2.resize(coarse, (800, 600), interpolation=cv2.INTER_CUBIC)
            cv2.imwrite(str(root / "walls" / name / f"{name}{index}.png"), wall)
    (root / "behind").mkdir()
    for index in range(2):
        cv2.imwrite(str(root / "behind" / f"{index}.png"), np.full((500, 500, 3), 255 * index, np.uint8))
    return root


def run(*words: str | Path) -> None:
    arguments = sys.argv
    try:
        sys.argv = ["make_extreme_views.py", *map(str, words)]
        make_extreme_views.main()
    finally:
        sys.argv = arguments


def likeness(pair: EvaluationPair) -> tuple[float, float]:
    """Correlation of colours where both photos show the wall; the same with one of them moved 40 pixels."""
    one, two = (cv2.imread(str(path)).astype(np.float64) for path in (pair.image0, pair.image1))
    there = cv2.warpPerspective(one, pair.homography, SIZE)
    wall = np.logical_and.reduce([(p.max(axis=2) < 250) & (p.min(axis=2) > 30) for p in (there, two)])
    assert wall.sum() > 500
    moved = np.roll(there, 40, axis=1)
    same, off = (np.corrcoef(picture[wall].ravel(), two[wall].ravel())[0, 1] for picture in (there, moved))
    return float(same), float(off)


def test_the_homographies_are_true(folders: Path, tmp_path: Path) -> None:
    """Where both see the wall, the colours of photo 1 are those of photo 2 by day, but for exposure."""
    run("pairs", folders / "walls", folders / "behind", tmp_path / "made", "--count", "5")
    pairs = load_hpatches(tmp_path / "made")
    assert [pair.name.split("_day")[0][6:] for pair in pairs] == list(KINDS)
    for pair in pairs:
        same, off = likeness(pair)
        assert same > 0.9 > off


def test_two_photos_of_a_group_are_the_two_sides(folders: Path, tmp_path: Path) -> None:
    """The photos of these groups have nothing in common, so the two sides of their walls have not either."""
    run("pairs", folders / "walls", folders / "behind", tmp_path / "made", "--count", "2", "--groups")
    pairs = load_hpatches(tmp_path / "made")
    assert [pair.sequence for pair in pairs] == ["v_000_tilt_real_one", "v_001_sides_real_two"]
    assert all(likeness(pair)[0] < 0.5 for pair in pairs)


def test_wrong_pairs_are_of_different_photos(folders: Path, tmp_path: Path) -> None:
    run("wrong", folders / "walls" / "one", tmp_path / "wrong", "--count", "1")
    (pair,) = load_pair_score(tmp_path / "wrong")
    assert pair.overlaps is False
    assert pair.image0.name != pair.image1.name

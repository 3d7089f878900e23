from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.evaluation.benchmarks.hpatches import load_hpatches, score_hpatches
from coam.evaluation.matchers.baselines import FeatureMatcher, Features, two_nearest
from coam.evaluation.matchers.by_name import find_matcher
from support.simple_matchers import save, textured


def test_two_nearest_by_hand() -> None:
    target = np.array([[0, 0], [10, 0], [0, 3]], np.float32)
    index, distance = two_nearest(np.array([[1, 0], [9, 0], [0, 3]], np.float32), target, chunk=2)
    assert index.tolist() == [0, 1, 2]
    np.testing.assert_allclose(distance, [[1, np.sqrt(10)], [1, 9], [0, 3]], rtol=1e-5)


def features(rows: list[list[float]]) -> Features:
    table = np.asarray(rows, np.float32)
    return Features(np.arange(2 * len(rows), dtype=np.float32).reshape(-1, 2), table, (10, 10))


def test_mutual_check_and_ratio_test() -> None:
    first = features([[0, 0], [5, 0], [0.4, 0]])  # rows 0 and 2 want the same partner, 0 is nearer
    second = features([[0, 0.1], [5, 0.1], [5, 0.12]])  # row 1 of `first` has two nearly equal partners
    matcher = FeatureMatcher(lambda path: first, ratio=0.8)
    matches = matcher.match(first, second)
    assert matches.points0.tolist() == [[0, 1]]
    assert matches.points1.tolist() == [[0, 1]]
    assert matches.scores[0] == pytest.approx(1 - 0.1 / np.sqrt(25 + 0.0144), abs=1e-3)
    without_ratio = FeatureMatcher(lambda path: first, ratio=None).match(first, second)
    assert len(without_ratio) == 2


@pytest.mark.parametrize("name", ["sift", "rootsift", "orb"])
def test_baselines_find_a_known_shift(hpatches_root: Path, name: str) -> None:
    pair = load_hpatches(hpatches_root)[-1]
    (matches,) = find_matcher(name).create().match_many([(pair.image0, pair.image1)])
    assert len(matches) >= 8
    assert score_hpatches(pair, matches)["mma@3"] > 0.9
    assert matches.size0 == (160, 120)
    assert (np.diff(matches.scores) <= 0).all()


@pytest.mark.parametrize("name", ["sift", "orb"])
def test_a_blank_photo_has_no_matches(tmp_path: Path, name: str) -> None:
    save(tmp_path / "blank.png", np.full((60, 80, 3), 128, np.uint8))
    save(tmp_path / "full.png", textured())
    pairs = [
        (tmp_path / "blank.png", tmp_path / "full.png"),
        (tmp_path / "blank.png", tmp_path / "blank.png"),
    ]
    for matches in find_matcher(name).create().match_many(pairs):
        assert len(matches) == 0
        assert matches.points0.shape == (0, 2)


def test_baselines_describe_each_photo_once(hpatches_root: Path) -> None:
    matcher = find_matcher("sift").create()
    detected: list[Path] = []
    detect = matcher.detect
    matcher.detect = lambda path: (detected.append(path), detect(path))[1]
    pairs = load_hpatches(hpatches_root)
    assert len(list(matcher.match_many((p.image0, p.image1) for p in pairs))) == 7
    assert len(detected) == len(set(detected)) == 9

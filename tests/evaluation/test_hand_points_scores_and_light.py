"""wxbs, pair-score and invariance: loaders on tiny trees, figures by hand."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from simple_matchers import save, textured

from coam.errors import ConfigError, DataError
from coam.evaluation.invariance import (
    corresponding_positions,
    descriptor_differences,
    load_invariance,
    measure_invariance,
    standard_deviation,
)
from coam.evaluation.pair_score import (
    accuracy,
    area_under_roc,
    calibration_error,
    load_pair_score,
    pair_score_curves,
    score_pair_score,
    wrong_pairs_that_pass,
)
from coam.evaluation.summary import Table
from coam.evaluation.wxbs import load_wxbs, score_wxbs
from coam.types import Matches


def matches_of(points0: np.ndarray, points1: np.ndarray, overlap: float = float("nan")) -> Matches:
    none = np.full(len(points0), -1, dtype=np.int64)
    scores = np.ones(len(points0), np.float32)
    first, second = points0.astype(np.float32), points1.astype(np.float32)
    return Matches(first, second, scores, none, none, (640, 480), (640, 480), overlap=overlap)


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


def test_pair_score_makes_as_many_negatives_as_positives(hpatches_root: Path) -> None:
    pairs = load_pair_score(hpatches_root)
    same = [pair for pair in pairs if pair.overlaps]
    different = [pair for pair in pairs if not pair.overlaps]
    assert len(same) == len(different) == 7
    assert len({pair.name for pair in pairs}) == 14
    assert all(pair.image0.parent == pair.image1.parent for pair in same)
    assert all(pair.image0.parent != pair.image1.parent for pair in different)


def test_pair_score_listing(tmp_path: Path) -> None:
    for name in "abc":
        save(tmp_path / f"{name}.png", textured())
    (tmp_path / "pairs.txt").write_text("# list\na.png b.png 1\na.png c.png 0\n")
    assert [pair.overlaps for pair in load_pair_score(tmp_path)] == [True, False]
    (tmp_path / "pairs.txt").write_text("a.png b.png yes\n")
    with pytest.raises(DataError, match=r"line 1: wanted name0 name1"):
        load_pair_score(tmp_path)
    (tmp_path / "pairs.txt").write_text("a.png z.png 1\n")
    with pytest.raises(DataError, match=r"z\.png is missing"):
        load_pair_score(tmp_path)


def rows_of(overlaps: list[float], truths: list[bool]) -> list[dict[str, float]]:
    """Rows of pairs with these scores."""
    points = np.zeros((3, 2))
    return [
        score_pair_score(SimpleNamespace(overlaps=truth), matches_of(points, points, overlap))
        for overlap, truth in zip(overlaps, truths, strict=True)
    ]


def test_pair_score_figures_by_hand() -> None:
    rows = rows_of([0.9, 0.4, 0.5, 0.1], [True, True, False, False])
    assert area_under_roc(Table.of(rows)) == pytest.approx(0.75)
    assert accuracy(Table.of(rows)) == pytest.approx(
        0.5
    )  # .4 is refused though true, .5 accepted though false
    assert calibration_error(Table.of(rows)) == pytest.approx((0.1 + 0.6 + 0.5 + 0.1) / 4)
    curves = pair_score_curves([], rows)
    assert curves["ROC"][-1] == (1.0, 1.0)
    assert len(curves["reliability"]) == 4


def test_wrong_pairs_that_pass_where_95_percent_of_the_true_ones_do() -> None:
    true = [k / 100 for k in range(50, 90, 2)]  # twenty, .50 .. .88: nineteen pass at .52
    wrong = [0.1, 0.5, 0.51, 0.52, 0.9]  # .52 ties with the threshold and passes; so does .9
    table = Table.of(rows_of(true + wrong, [True] * 20 + [False] * 5))
    assert wrong_pairs_that_pass(table) == pytest.approx(0.4)
    all_true = [k / 100 for k in range(50, 88, 2)]  # of nineteen, 95 % are 18.05: all must pass, at .50
    table = Table.of(rows_of(all_true + wrong, [True] * 19 + [False] * 5))
    assert wrong_pairs_that_pass(table) == pytest.approx(0.8)
    assert np.isnan(wrong_pairs_that_pass(Table.of(rows_of([0.9], [True]))))


def test_a_matcher_without_a_score_is_ranked_by_its_matches() -> None:
    rows = rows_of([float("nan")] * 2, [True, False])
    rows[0]["matches"], rows[1]["matches"] = 50.0, 3.0
    assert area_under_roc(Table.of(rows)) == 1.0
    assert wrong_pairs_that_pass(Table.of(rows)) == 0.0
    assert np.isnan(accuracy(Table.of(rows)))
    assert np.isnan(calibration_error(Table.of(rows)))
    assert list(pair_score_curves([], rows)) == ["ROC"]


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
    rows = measure_invariance(SeesTheOther(), pairs)
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

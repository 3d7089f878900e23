from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.evaluation.benchmarks.posed_pairs import POSED_PAIRS, angle_subset, load_posed_pairs, score_pose
from coam.evaluation.metrics.tables import summarise
from coam.evaluation.pairs import EvaluationPair
from coam.types import Matches
from support.relative_poses import K, turned
from support.simple_matchers import matches_of, save


def line(name0: str, name1: str, pose: np.ndarray, rot: str = "0 0") -> str:
    numbers = " ".join(str(v) for v in [*K.ravel(), *K.ravel(), *pose.ravel()])
    return f"{name0} {name1} {rot} {numbers}"


@pytest.fixture
def posed_root(tmp_path: Path) -> Path:
    for name in ("scene/a.jpg", "scene/b.jpg", "scene/c.jpg"):
        save(tmp_path / name, np.zeros((48, 64, 3), np.uint8))
    text = [
        "# comment",
        line("scene/a.jpg", "scene/b.jpg", turned(10)),
        "",
        line("scene/a.jpg", "scene/c.jpg", turned(40), "1 3"),
    ]
    (tmp_path / "yfcc_test_pairs_with_gt.txt").write_text("\n".join(text))
    return tmp_path


def seen_by(pose: np.ndarray, wrong: int = 0) -> Matches:
    generator = np.random.default_rng(0)
    world = generator.uniform([-2, -2, 4], [2, 2, 8], (200, 3))
    first, second = world @ K.T, (world @ pose[:3, :3].T + pose[:3, 3]) @ K.T
    points0, points1 = first[:, :2] / first[:, 2:], second[:, :2] / second[:, 2:]
    points1[:wrong] = generator.uniform(0, 640, (wrong, 2))
    return matches_of(points0, points1)


def test_the_text_format_is_read(posed_root: Path) -> None:
    first, second = load_posed_pairs(posed_root)
    assert first.name == "scene/a.jpg scene/b.jpg"
    assert first.subsets == ("easy",)
    assert second.subsets == ("hard",)
    assert (second.turns0, second.turns1) == (1, 3)
    np.testing.assert_allclose(second.pose, turned(40))
    np.testing.assert_allclose(first.intrinsics1, K)
    assert first.sequence == "scene"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("scene/a.jpg scene/b.jpg 0 0 1 2 3", "line 1 has 7 entries, wanted 38"),
        (line("scene/a.jpg", "scene/nowhere.jpg", turned(1)), "photo scene/nowhere.jpg is missing"),
        (line("scene/a.jpg", "scene/b.jpg", np.ones((4, 4))), "does not hold a rotation"),
        (line("scene/a.jpg", "scene/b.jpg", turned(1)).replace("500.0", "fifty", 1), "not a number"),
        (line("scene/a.jpg", "scene/b.jpg", turned(1)).replace("500.0", "-500.0", 1), "K0 is not a camera"),
        (
            "\n".join([line("scene/a.jpg", "scene/b.jpg", turned(1))] * 2),
            "line 2: the pair .* is listed twice",
        ),
        ("", "lists no pair"),
    ],
)
def test_broken_lists_are_named_by_line(posed_root: Path, text: str, message: str) -> None:
    (posed_root / "yfcc_test_pairs_with_gt.txt").write_text(text)
    with pytest.raises(DataError, match=message):
        load_posed_pairs(posed_root)


def test_a_missing_or_ambiguous_list(posed_root: Path) -> None:
    (posed_root / "scannet_pairs_with_gt.txt").write_text("")
    with pytest.raises(DataError, match=r"choose with --pairs"):
        load_posed_pairs(posed_root)
    for path in posed_root.glob("*.txt"):
        path.unlink()
    with pytest.raises(DataError, match=r"pairs_with_gt.txt"):
        load_posed_pairs(posed_root)


@pytest.mark.parametrize(("degrees", "name"), [(0, "easy"), (15, "easy"), (15.1, "medium"), (30, "medium"),
                                               (60, "hard"), (61, "beyond 60")])  # fmt: skip
def test_angle_subsets(degrees: float, name: str) -> None:
    assert angle_subset(degrees) == name


@pytest.mark.parametrize("estimator", ["opencv", "poselib"])
def test_true_matches_give_the_true_pose(posed_root: Path, estimator: str) -> None:
    pair = load_posed_pairs(posed_root)[1]
    row = score_pose(pair, seen_by(turned(40), wrong=50), estimator=estimator)
    assert row["pose_error"] < 0.2
    assert row["precision@1"] == pytest.approx(0.75, abs=0.02)
    assert row["matches"] == 200
    assert row["inliers"] >= 145


def test_a_wrong_pose_is_measured_by_its_angle(posed_root: Path) -> None:
    """Matches of a camera turned by 32 degrees where the truth says 40: 8 degrees of rotation error."""
    pair = load_posed_pairs(posed_root)[1]
    row = score_pose(pair, seen_by(turned(32)), estimator="poselib")
    assert row["rotation_error"] == pytest.approx(8, abs=0.1)
    assert row["translation_error"] == pytest.approx(0, abs=0.5)
    assert row["pose_error"] == row["rotation_error"]


def test_no_matches_is_a_failure(posed_root: Path) -> None:
    pair = load_posed_pairs(posed_root)[0]
    row = score_pose(pair, matches_of(np.zeros((0, 2)), np.zeros((0, 2)), (64, 48)))
    assert row["pose_error"] == float("inf")
    assert row["precision@1"] == 0


def test_tables_follow_the_conventions() -> None:
    errors = [(1.0, 2.0), (7.0, 3.0), (2.0, 12.0), (float("inf"), float("inf"))]
    rows = [
        {"rotation_error": r, "translation_error": t, "pose_error": max(r, t), "precision@1": 0.0,
         "precision@3": 0.0, "matches": 1.0, "inliers": 1.0}
        for r, t in errors
    ]  # fmt: skip
    pairs = [EvaluationPair(str(i), Path("a"), Path("b"), str(i)) for i in range(4)]
    table = summarise(pairs, rows, POSED_PAIRS.metrics, resamples=10)["all"]
    assert table["mAP@5"]["value"] == 0.25
    assert table["mAP@10"]["value"] == pytest.approx((0.25 + 0.5) / 2)
    assert table["rotation acc@10"]["value"] == 0.75
    assert table["translation acc@10"]["value"] == 0.5
    # AUC@10 of 2, 7, 12, inf: triangle 2 * .25 / 2, trapezoid 5 * .375, flat 3 * .5
    assert table["AUC@10"]["value"] == pytest.approx((0.25 + 1.875 + 1.5) / 10)

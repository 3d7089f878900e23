"""posed-pairs and both MegaDepth layouts."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from simple_matchers import save

from coam.errors import DataError
from coam.evaluation.megadepth import load_megadepth
from coam.evaluation.pairs import EvaluationPair
from coam.evaluation.posed_pairs import FIGURES, angle_subset, load_posed_pairs, score_pose
from coam.evaluation.safe_npz import load_npz
from coam.evaluation.summary import summarise
from coam.types import Matches

K = np.array([[500, 0, 320], [0, 500, 240], [0, 0, 1.0]])


def turned(degrees: float, shift: tuple[float, float, float] = (1, 0, 0)) -> np.ndarray:
    c, s = np.cos(np.radians(degrees)), np.sin(np.radians(degrees))
    pose = np.eye(4)
    pose[:3] = [[c, 0, s, shift[0]], [0, 1, 0, shift[1]], [-s, 0, c, shift[2]]]
    return pose


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
    none = np.full(200, -1, dtype=np.int64)
    scores = np.ones(200, np.float32)
    return Matches(
        points0.astype(np.float32), points1.astype(np.float32), scores, none, none, (640, 480), (640, 480)
    )


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
    none = np.zeros(0, np.int64)
    points = np.zeros((0, 2), np.float32)
    empty = Matches(points, points, np.zeros(0, np.float32), none, none, (64, 48), (64, 48))
    row = score_pose(pair, empty)
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
    table = summarise(pairs, rows, FIGURES, resamples=10)["all"]
    assert table["mAP@5"]["value"] == 0.25
    assert table["mAP@10"]["value"] == pytest.approx((0.25 + 0.5) / 2)
    assert table["rotation acc@10"]["value"] == 0.75
    assert table["translation acc@10"]["value"] == 0.5
    # AUC@10 of 2, 7, 12, inf: triangle 2 * .25 / 2, trapezoid 5 * .375, flat 3 * .5
    assert table["AUC@10"]["value"] == pytest.approx((0.25 + 1.875 + 1.5) / 10)


@pytest.fixture
def megadepth_1500(tmp_path: Path) -> tuple[Path, Path]:
    """One scene of LoFTR's index, with object arrays and a hole (None), as published."""
    root, index = tmp_path / "root", tmp_path / "index"
    index.mkdir()
    names = [f"Undistorted_SfM/0015/images/{n}.jpg" for n in "abc"]
    for name in (names[0], names[2]):
        save(root / name, np.zeros((48, 64, 3), np.uint8))
    paths, cameras, poses = (np.empty(3, dtype=object) for _ in range(3))
    for i in (0, 2):
        paths[i], cameras[i], poses[i] = names[i], K, turned(10.0 * i)
    infos = np.empty(1, dtype=object)
    infos[0] = (np.array([0, 2]), 0.25, np.zeros((0, 4)))
    np.savez(index / "0015_0.1_0.3.npz", image_paths=paths, intrinsics=cameras, poses=poses, pair_infos=infos)
    return root, index


def test_megadepth_1500_is_read(megadepth_1500: tuple[Path, Path]) -> None:
    (pair,) = load_megadepth(*megadepth_1500)
    assert pair.name == "0015_0.1_0.3/0000"
    assert pair.sequence == "0015"
    assert pair.subsets == ("medium",)
    np.testing.assert_allclose(pair.pose, turned(20) @ np.linalg.inv(turned(0)), atol=1e-9)


def test_megadepth_1500_with_a_missing_photo_or_key(megadepth_1500: tuple[Path, Path]) -> None:
    root, index = megadepth_1500
    (root / "Undistorted_SfM/0015/images/c.jpg").unlink()
    with pytest.raises(DataError, match=r"images/c.jpg is missing"):
        load_megadepth(root, index)
    np.savez(index / "0015_0.1_0.3.npz", image_paths=np.zeros(1))
    with pytest.raises(DataError, match=r"lacks intrinsics, pair_infos, poses"):
        load_megadepth(root, index)
    (index / "0015_0.1_0.3.npz").write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"not a readable .npz"):
        load_megadepth(root, index)


class Bomb:
    def __reduce__(self):
        return os.system, ("touch bomb",)


def test_an_index_with_code_in_it_is_refused_and_not_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    bomb = np.empty(1, dtype=object)
    bomb[0] = Bomb()
    np.savez(tmp_path / "evil.npz", pair_infos=bomb)
    with pytest.raises(DataError, match=r"evil.npz is refused: it asks for posix.system"):
        load_npz(tmp_path / "evil.npz")
    assert not (tmp_path / "bomb").exists()


def test_object_arrays_of_numbers_and_strings_survive(tmp_path: Path) -> None:
    mixed = np.empty(3, dtype=object)
    mixed[:] = ["name", np.arange(4.0), np.float32(2.5)]
    np.savez(tmp_path / "a.npz", mixed=mixed, plain=np.arange(3))
    content = load_npz(tmp_path / "a.npz")
    assert content["mixed"][0] == "name"
    assert content["mixed"][1].tolist() == [0, 1, 2, 3]
    assert content["mixed"][2] == 2.5
    assert content["plain"].tolist() == [0, 1, 2]


@pytest.fixture
def caps(tmp_path: Path) -> tuple[Path, Path]:
    root, index = tmp_path / "root", tmp_path / "index"
    save(root / "0204/dense/aligned/images/a.jpg", np.zeros((48, 64, 3), np.uint8))
    save(
        root / "0204/dense/aligned/images/b.jpg", np.zeros((24, 32, 3), np.uint8)
    )  # half of what the index says
    for folder, angle in (("easy", 5), ("hard", 20), ("tough", 50)):
        (index / folder).mkdir(parents=True)
        (index / folder / "pairs.txt").write_text("0204 a.jpg b.jpg\n")
        rows = []
        for name, pose in (("a.jpg", turned(0)), ("b.jpg", turned(angle))):
            values = [*pose[:3, :3].ravel(), *pose[:3, 3]]
            rows.append(f"0204 {name} 64 48 50 50 32 24 " + " ".join(str(v) for v in values))
        (index / folder / "img_cam.txt").write_text("# comment\n" + "\n".join(rows))
    return root, index


def test_caps_layout_is_read_and_renamed_as_in_the_tables(caps: tuple[Path, Path]) -> None:
    pairs = load_megadepth(*caps)
    assert [pair.subsets for pair in pairs] == [("easy",), ("medium",), ("hard",)]
    np.testing.assert_allclose(pairs[2].pose[:3, :3], turned(50)[:3, :3], atol=1e-9)
    np.testing.assert_allclose(pairs[0].intrinsics0, [[50, 0, 32], [0, 50, 24], [0, 0, 1]])
    np.testing.assert_allclose(pairs[0].intrinsics1, [[25, 0, 16], [0, 25, 12], [0, 0, 1]])


def test_caps_with_broken_files(caps: tuple[Path, Path]) -> None:
    root, index = caps
    (index / "easy" / "pairs.txt").write_text("0204 a.jpg z.jpg\n")
    with pytest.raises(DataError, match=r"0204 z.jpg is not in img_cam.txt"):
        load_megadepth(root, index)
    (index / "easy" / "img_cam.txt").write_text("0204 a.jpg 64 48 50\n")
    with pytest.raises(DataError, match=r"easy/img_cam.txt line 1 is damaged"):
        load_megadepth(root, index)
    with pytest.raises(DataError, match=r"megadepth_test_1500_scene_info"):
        load_megadepth(root, root)

"""The two MegaDepth protocols: 1500 pairs of LoFTR, three grades of CAPS."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.evaluation.benchmarks.megadepth import load_megadepth
from support.relative_poses import K, turned
from support.simple_matchers import save


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
    with pytest.raises(DataError, match=r"is damaged"):
        load_megadepth(root, index)


@pytest.fixture
def caps(tmp_path: Path) -> tuple[Path, Path]:
    root, index = tmp_path / "root", tmp_path / "index"
    save(root / "0204/dense/aligned/images/a.jpg", np.zeros((48, 64, 3), np.uint8))
    # b.jpg is half as large as the index says
    save(root / "0204/dense/aligned/images/b.jpg", np.zeros((24, 32, 3), np.uint8))
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

"""Grids, matches, errors and the public face."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

import coam
from coam.errors import (
    CoamError,
    ConfigError,
    DataError,
    ImageError,
    MissingExtraError,
    WeightsError,
    install_command,
)
from coam.types import Grid, Matches


def matches(count: int = 4) -> Matches:
    index = np.arange(count)
    points = np.stack([index, 10 * index], axis=1).astype(np.float32)
    scores = np.linspace(1, 0.1, count).astype(np.float32)
    return Matches(points, points + 1, scores, index, index + 100, (64, 48), (32, 32), meta={"model": "m"})


def test_grid_positions_by_hand() -> None:
    """A 3 x 2 division of a 12 x 10 photo: steps of 4 and 5, the first centre at (1.5, 2)."""
    grid = Grid(columns=3, rows=2, origin=(1.5, 2.0), step=(4.0, 5.0))
    assert len(grid) == 6
    np.testing.assert_array_equal(
        grid.positions(np.array([0, 2, 3, 5])), [[1.5, 2], [9.5, 2], [1.5, 7], [9.5, 7]]
    )
    assert grid.positions(np.array([], dtype=np.int64)).shape == (0, 2)
    assert grid.positions(np.array([1])).dtype == np.float32


def test_grid_ids_beyond_16_bit() -> None:
    grid = Grid(256, 256, (0.0, 0.0), (1.0, 1.0))
    np.testing.assert_array_equal(grid.positions(np.array([65535])), [[255, 255]])
    np.testing.assert_array_equal(grid.positions(np.array([40000], dtype=np.uint16)), [[64, 156]])


def test_top_and_select_keep_rows_together() -> None:
    four = matches(4)
    assert len(four) == 4
    two = four.top(2)
    np.testing.assert_array_equal(two.scores, four.scores[:2])
    assert len(four.top(99)) == 4
    assert len(four.top(0)) == 0
    for index in (np.array([3, 1]), np.array([False, True, False, True])):
        chosen = four.select(index)
        for name in ("points0", "points1", "scores", "ids0", "ids1"):
            np.testing.assert_array_equal(getattr(chosen, name), getattr(four, name)[index])
        assert (chosen.size0, chosen.size1, chosen.meta) == (four.size0, four.size1, four.meta)


def test_slices_masks_and_lists_give_matches() -> None:
    four = matches(4)
    for index, rows in (
        (slice(None, 2), [0, 1]),
        (slice(None, None, -1), [3, 2, 1, 0]),
        (four.scores > 0.5, [0, 1]),
        ([3, 1], [3, 1]),
        ([True, False, False, True], [0, 3]),
        ([], []),
        (np.array([2]), [2]),
    ):
        chosen = four[index]
        assert isinstance(chosen, Matches)
        assert chosen.ids0.tolist() == rows
        np.testing.assert_array_equal(chosen.points1, four.points1[rows])
        assert chosen.size0 == four.size0


def test_iteration_gives_single_matches_best_first() -> None:
    three = matches(3)
    (first, second, third) = three
    assert second == three[1] == ((1.0, 10.0), (2.0, 11.0), pytest.approx(0.55))
    assert (first.point0, third.score) == ((0.0, 0.0), pytest.approx(0.1))
    assert three[-1] == third
    assert three[np.int64(0)] == first
    assert [score for _, _, score in three] == three.scores.tolist()
    with pytest.raises(IndexError):
        _ = three[3]
    assert list(matches(0)) == []


def test_overlap_is_unknown_unless_calibrated() -> None:
    assert np.isnan(matches().overlap)


def test_repr_is_one_short_line() -> None:
    assert repr(matches()) == "Matches(4 matches, photos of 64 x 48 and 32 x 32)"
    sure = replace(matches(1), overlap=0.987)
    assert repr(sure) == "Matches(1 match, photos of 64 x 48 and 32 x 32, overlap 0.99)"


def test_doubtful_is_a_known_overlap_below_one_half() -> None:
    doubts = [replace(matches(), overlap=value).is_doubtful for value in (0.0, 0.49, 0.5, 1.0, float("nan"))]
    assert doubts == [True, True, False, False, False]


def test_matches_are_frozen() -> None:
    with pytest.raises(AttributeError):
        matches().overlap = 1.0


def test_opencv_takes_the_matches() -> None:
    import cv2

    found = replace(matches(), grid0=Grid(8, 6, (3.5, 3.5), (8.0, 8.0)))
    keypoints0, keypoints1, joined = found.to_cv2()
    assert [match.queryIdx for match in joined] == [match.trainIdx for match in joined] == [0, 1, 2, 3]
    assert [keypoints0[match.queryIdx].pt for match in joined] == [(0, 0), (1, 10), (2, 20), (3, 30)]
    assert [keypoints1[match.trainIdx].pt for match in joined] == [(1, 1), (2, 11), (3, 21), (4, 31)]
    np.testing.assert_allclose([match.distance for match in joined], [0, 0.3, 0.6, 0.9], atol=1e-6)
    assert (keypoints0[0].size, keypoints1[0].size) == (8, 1)
    photos = np.zeros((48, 64, 3), np.uint8), np.zeros((32, 32, 3), np.uint8)
    drawn = cv2.drawMatches(photos[0], keypoints0, photos[1], keypoints1, joined, None)
    assert drawn.shape == (48, 96, 3)
    assert drawn.any()
    assert [len(part) for part in matches(0).to_cv2()] == [0, 0, 0]


@pytest.mark.parametrize("ending", ["npz", "h5", "json"])
def test_save_and_load(tmp_path, ending: str) -> None:
    saved = matches()
    loaded = Matches.load(saved.save(tmp_path / f"m.{ending}"))
    for name in ("points0", "points1", "scores", "ids0", "ids1"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(saved, name))
    assert (loaded.size0, loaded.size1, loaded.meta) == (saved.size0, saved.size1, saved.meta)


def test_every_error_is_a_coam_error_and_the_extra_is_named() -> None:
    for kind in (ImageError, WeightsError, ConfigError, DataError, MissingExtraError):
        assert issubclass(kind, CoamError)
    assert str(MissingExtraError("gradio", "app")).startswith("gradio is not installed; install it with: ")


def test_the_install_hint_works_in_a_checkout_beside_one_and_without(
    tmp_path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkout = tmp_path / "my checkout"
    (checkout / "src" / "coam").mkdir(parents=True)
    (checkout / "pyproject.toml").touch()
    monkeypatch.setattr("coam.errors.__file__", str(checkout / "src" / "coam" / "errors.py"))
    monkeypatch.chdir(checkout)
    assert install_command("app") == "pip install -e '.[app]'"
    monkeypatch.chdir(tmp_path)
    assert install_command("app") == f"pip install -e '{checkout}[app]'"
    # Installed by `pip install .`: pip notes where from.
    monkeypatch.setattr("coam.errors.__file__", str(tmp_path / "site-packages" / "coam" / "errors.py"))
    origin = {"url": checkout.as_uri(), "dir_info": {}}
    monkeypatch.setattr("coam.errors.metadata.PathDistribution.read_text", lambda *_: json.dumps(origin))
    assert install_command("app") == f"pip install '{checkout}[app]'"
    shutil.rmtree(checkout)
    assert install_command("app") == "pip install 'coam[app]'"


def test_public_names() -> None:
    for name in coam.__all__:
        assert getattr(coam, name) is not None
        assert name in dir(coam)
    assert coam.Matches is Matches
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = coam.nonsense


def test_import_is_light() -> None:
    """`import coam` and its types load neither torch nor OpenCV nor anything optional."""
    heavy = "torch cv2 matplotlib pycolmap gradio ray kornia h5py"
    script = f"import sys, coam.types, coam.errors; print([m for m in '{heavy}'.split() if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == "[]"

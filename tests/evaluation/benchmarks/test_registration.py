from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.evaluation.benchmarks.registration import load_registration, score_registration
from coam.geometry.homography import apply_homography
from support.known_registration import TURN, elastic, noisy_matches
from support.simple_matchers import matches_of, save, textured

SIZE = (160, 120)


def write_images(folder: Path, *stems: str) -> Path:
    for stem in stems:
        save(folder / f"{stem}.png", textured(size=SIZE))
    return folder


def test_three_layouts_become_landmarks(tmp_path: Path) -> None:
    marks = {"move": [[1, 2], [30, 4], [5, 60], [70, 80.5]], "fix": [[2, 2], [31, 4], [6, 60], [71, 80.5]]}
    (write_images(tmp_path / "retina_02", "move", "fix") / "landmarks.json").write_text(json.dumps(marks))
    np.savetxt(
        write_images(tmp_path / "night" / "v_001", "1", "2") / "H_1_2", [[1, 0, 100], [0, 1, 0], [0, 0, 1]]
    )
    places = np.stack(np.meshgrid(np.arange(160), np.arange(120)), -1) + 3.0
    state = np.ones((120, 160), np.uint8)
    state[:, 80:] = 2
    folder = write_images(tmp_path / "courts" / "day" / "a-b", "0", "1")
    np.savez(folder / "truth.npz", points=places.astype(np.float32), state=state)
    dense, homography, marked = load_registration(tmp_path)
    assert dense.name == "courts/day/a-b"
    assert (marked.name, marked.subsets) == ("retina_02", ("retina",))
    assert marked.correspondences[0].tolist() == [1, 2, 2, 2]
    assert (homography.name, homography.subsets) == ("night/v_001", ("night",))
    assert homography.correspondences[:, 2].max() <= 159  # what image 2 shows
    assert len(homography.correspondences) == 5 * 12
    assert dense.subsets == ("courts", "day")
    assert len(dense.correspondences) == 6 * 12
    assert (dense.correspondences[:, 2:] - dense.correspondences[:, :2] == 3).all()


@pytest.mark.parametrize("text", ["[]", "{}", '{"move": [[1, 2]], "fix": [[1, 2], [3, 4]]}', '{"move": 5}'])
def test_damaged_landmarks_are_named(tmp_path: Path, text: str) -> None:
    (write_images(tmp_path / "a", "move", "fix") / "landmarks.json").write_text(text)
    with pytest.raises(DataError):
        load_registration(tmp_path)
    with pytest.raises(DataError, match="holds no pair"):
        load_registration(write_images(tmp_path / "empty", "x"))


def pair_of(tmp_path: Path, move) -> object:
    points = np.random.default_rng(1).uniform(40, 400, (30, 2))
    marks = {"move": points.tolist(), "fix": move(points).tolist()}
    (write_images(tmp_path / "k_1", "move", "fix") / "landmarks.json").write_text(json.dumps(marks))
    return load_registration(tmp_path)[0]


def test_a_right_registration_scores_its_error(tmp_path: Path) -> None:
    def move(points: np.ndarray) -> np.ndarray:
        return apply_homography(TURN, points)

    row = score_registration(pair_of(tmp_path, move), noisy_matches(move))
    assert row["error"] < 0.15
    assert (row["within5"], row["accepted"], row["sure_but_wrong"]) == (1, 1, 0)


def test_misplaced_marks_are_told_from_a_wrong_registration(tmp_path: Path) -> None:
    """Three of thirty marks 80 px off: the mean error cannot be below 5 px, and no motion is to blame."""

    def misplaced(points: np.ndarray) -> np.ndarray:
        moved = points.copy()
        moved[::10] += 60.0
        return moved

    row = score_registration(pair_of(tmp_path, misplaced), noisy_matches(lambda points: points))
    assert row["error"] == pytest.approx(60 * np.sqrt(2) / 10, abs=0.3)
    assert (row["within5"], row["marks_within5"], row["median_within5"]) == (0, 0, 1)
    assert row["sure_but_wrong"] == 0


def test_a_wrong_registration_that_seems_right_is_told(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, lambda points: points + 100.0)
    row = score_registration(pair, noisy_matches(lambda points: points))
    assert row["error"] == pytest.approx(100 * np.sqrt(2), abs=1)
    assert row["sure_but_wrong"] == 1


def test_auto_bends_where_a_homography_cannot(tmp_path: Path) -> None:
    move = elastic(10.0, 320.0)
    pair = pair_of(tmp_path, move)
    matches = noisy_matches(move)
    assert score_registration(pair, matches, model="homography")["error"] > 3
    assert score_registration(pair, matches)["error"] < 1


def test_no_matches_are_an_infinite_error(tmp_path: Path) -> None:
    pair = pair_of(tmp_path, lambda points: points)
    row = score_registration(pair, matches_of(np.zeros((0, 2)), np.zeros((0, 2))))
    assert (row["error"], row["accepted"], row["sure_but_wrong"]) == (np.inf, 0, 0)

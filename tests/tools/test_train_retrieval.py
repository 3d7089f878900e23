"""The tool that trains the retrieval head: made vectors whose places are known, figures by hand."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from train_retrieval import (
    KINDS,
    TrainOptions,
    found_among,
    interval,
    judge,
    list_photos,
    train,
    whitening,
)


def made_places(count=60, seed=0):
    """Unit vectors (2 count, 12): four numbers say the place, four the light, louder; four nothing."""
    random = np.random.default_rng(seed)
    places = np.repeat(random.normal(0, 1, (count, 4)), 2, axis=0)
    lights = np.tile(random.normal(0, 3, (2, 4)), (count, 1)) + random.normal(0, 1.5, (2 * count, 4))
    vectors = np.c_[places + random.normal(0, 0.1, places.shape), lights, random.normal(0, 0.1, places.shape)]
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def test_training_finds_what_photos_of_a_place_share():
    trained_on = np.array([f"season/{i // 2}" for i in range(120)])
    head = train(made_places(), trained_on, TrainOptions(size=12, steps=300, rate=2e-2))
    held = made_places(40, seed=1)
    places = np.array([f"season/{i // 2}" for i in range(80)])
    with torch.inference_mode():
        after = head(torch.from_numpy(held)).numpy()
    np.testing.assert_allclose(np.linalg.norm(after, axis=1), 1, atol=1e-5)
    assert found_among(held, places, 1).mean() < 0.05
    assert found_among(after, places, 1).mean() > 0.35
    table = judge(held, after, places)
    assert "| season | 40 | 80 |" in table


def test_whitening_gives_every_direction_the_same_spread():
    vectors = (np.random.default_rng(0).normal(size=(4000, 3)) * [5, 1, 0.2] + 7).astype(np.float32)
    mean, weight = whitening(vectors, 3, 0.0)
    spread = ((vectors - mean) @ weight.T).std(axis=0)
    np.testing.assert_allclose(spread, spread[0], rtol=1e-3)
    assert np.linalg.norm((vectors - mean) @ weight.T, axis=1).mean() == pytest.approx(1, rel=1e-4)


def test_found_among_by_hand():
    # On a line through the mean: a and its other photo point one way, the two of a set and b the other.
    vectors = np.array([[2, 0.1], [2, 0.2], [-2, 0.3], [-2, -0.5], [0, -0.1]], np.float32)
    places = np.array(["season/a", "season/a", "set/s", "set/s", "photo/b"])
    assert found_among(vectors, places, 1)[:4].tolist() == [1, 1, 1, 1]
    assert found_among(vectors, places, 2)[2:4].tolist() == [0.5, 0.5]  # one of two is of the set
    assert found_among(vectors, places, 1)[4] == 0


def test_intervals_are_of_places_not_of_photos():
    change = np.repeat([1.0, 0.0], [30, 10])
    assert interval(change, np.arange(40))[0] > 0.6
    assert interval(change, np.repeat(["a", "b"], [30, 10])) == (0.0, 1.0)


def test_photos_and_what_is_held_out(tmp_path):
    data, sets = tmp_path / "data", tmp_path / "sets"
    wanted = {f"{part}/{kind}/000" for part in ("aligned", "aligned_val") for kind in KINDS}
    for folder in wanted | {"aligned/season_more/399", "aligned/season_more/400"}:
        (data / folder).mkdir(parents=True)
        for name in ("01.jpg", "00.jpg", "map.txt"):
            (data / folder / name).touch()
    (sets / "lund").mkdir(parents=True)
    (sets / "lund/01.jpg").touch()
    photos = list_photos(data, sets)
    held = [photo.path for photo in photos if photo.held_out]
    assert len(photos) == 21
    assert held.count(sets / "lund/01.jpg") == 1
    assert sum("season_more" in str(path) for path in held) == 2
    assert {path.parts[-4] for path in held if "more" not in str(path)} == {"aligned_val", tmp_path.name}
    assert [photo.path.name for photo in photos[:2]] == ["00.jpg", "01.jpg"]

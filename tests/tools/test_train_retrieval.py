"""The tool that trains the retrieval head: made vectors whose places are known, figures by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from train_retrieval import (
    Photo,
    TrainOptions,
    found_among,
    interval,
    judge,
    list_photos,
    made_copy,
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
    photos = [Photo(Path(f"{i}.jpg"), f"season/{i // 2}", False) for i in range(120)]
    head = train(
        made_places(), photos, np.arange(120), TrainOptions(size=12, steps=300, batch=120, rate=2e-2)
    )
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
    wanted = {
        "photos": 7, "multiview/fox": 2, "multiview/rgbd_kitchen": 1,
        "aligned/season_more/399": 2, "aligned/season_more/400": 2,
        **{f"{part}/{kind}/000": 2 for part in ("aligned", "aligned_val")
           for kind in ("season", "exposures", "thermal", "day_night")},
    }  # fmt: skip
    for folder, count in wanted.items():
        (data / folder).mkdir(parents=True)
        for index in range(count):
            (data / folder / f"{index}.jpg").touch()
    (data / "multiview/rgbd_kitchen/0.depth.png").touch()
    (data / "photos_val").mkdir()
    (data / "photos_val/other.jpg").touch()
    (sets / "lund").mkdir(parents=True)
    (sets / "lund/01.jpg").touch()
    photos = list_photos(data, sets)
    held = {photo.place for photo in photos if photo.held_out}
    assert {"season_more/400", "set/lund", "set/rgbd_kitchen", "photo/2"} <= held
    assert not {"season_more/399", "set/fox", "photo/0"} & held
    assert not [photo for photo in photos if photo.held_out and photo.copies]
    assert not [photo for photo in photos if "depth" in photo.path.name]
    assert (
        sum(photo.place.startswith("photo/") for photo in photos) == 6
    )  # 0, 1, 2, 5, 6 and that of photos_val


def test_copies_show_a_part_in_another_light():
    rgb = np.asarray(Image.linear_gradient("L").convert("RGB"))
    one, other = (
        made_copy(rgb, np.random.default_rng(0), torch.Generator().manual_seed(seed)) for seed in (0, 1)
    )
    assert one.shape == rgb.shape
    assert one.dtype == np.uint8
    assert (one != other).any()

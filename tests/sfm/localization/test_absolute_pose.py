"""Absolute pose: look-alike places and degenerate matches are refused."""

from __future__ import annotations

import re

import numpy as np

from coam.sfm.localization.absolute_pose import Lifted, LocalizeOptions, solve_location


def world_and_view(count, seed, centre):
    """Points before a camera at `centre` that looks along z, and where it sees them."""
    generator = np.random.default_rng(seed)
    world = generator.uniform([-3, -2, 6], [3, 2, 10], (count, 3))
    seen = world - centre
    pixels = 500 * seen[:, :2] / seen[:, 2:] + [319.5, 239.5]
    return world, pixels


def test_look_alike_places_are_refused_not_decided_by_majority():
    import pycolmap

    camera = pycolmap.Camera.create_from_model_name(0, "SIMPLE_PINHOLE", 500.0, 640, 480)
    parts = []
    for source, centre in ((0, 0.0), (1, 4.0), (2, 0.0), (3, 4.0)):  # photos 1 and 3 show the look-alike
        world, pixels = world_and_view(120, source, np.array([centre, 0.0, 0.0]))
        parts.append((pixels, world, np.full(120, source)))
    lifted = Lifted(*(np.concatenate(part) for part in zip(*parts, strict=True)))
    answer = solve_location("q", lifted, camera, True, ["a", "b", "c", "d"], LocalizeOptions())
    assert answer.pose is None
    # the look-alike lies 4 to the side; the points lie 6 to 10 before the camera
    told = r"two halves of the model's photos give places 0 degrees and (\d+) % of the distance apart"
    found = re.fullmatch(told, answer.reason)
    assert found, answer.reason
    assert 40 < int(found[1]) < 60
    honest = lifted.select(lifted.source % 2 == 0)
    answer = solve_location("q", honest, camera, True, ["a", "b", "c", "d"], LocalizeOptions())
    np.testing.assert_allclose(answer.centre, 0, atol=1e-3)
    assert answer.matched == ("a", "c")


def test_matches_in_one_spot_are_refused():
    import pycolmap

    camera = pycolmap.Camera.create_from_model_name(0, "SIMPLE_PINHOLE", 500.0, 640, 480)
    world, pixels = world_and_view(400, 0, np.zeros(3))
    spot = np.linalg.norm(pixels - pixels[0], axis=1) < 25
    world, pixels = world[spot], pixels[spot]
    lifted = Lifted(pixels, world, np.zeros(len(world), np.int64))
    answer = solve_location("q", lifted, camera, True, ["a"], LocalizeOptions(min_inliers=3))
    assert answer.pose is None
    assert "one small spot" in answer.reason

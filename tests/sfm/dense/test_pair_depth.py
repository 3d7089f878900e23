"""Depth of a warp by known poses: exact where the warp is, and blind to errors across the epipolar line."""

from __future__ import annotations

import numpy as np
import pytest

from coam.sfm.dense.pair_depth import EpipolarMotion, PairDepthOptions, triangulate_warp
from coam.sfm.dense.views import View
from coam.warp.field import map_positions
from sfm.dense.conftest import true_depth, view_of


def simple_view(x: float) -> View:
    """A camera at (x, 0, 0) that looks along z: focal length 100, middle at (50, 40)."""
    return View("v", "v", (101, 81), (100.0, 100.0), (50.0, 40.0), np.eye(3), np.array([-x, 0.0, 0.0]))


def test_a_pixel_moves_by_focal_length_times_baseline_over_depth():
    motion = EpipolarMotion.between(simple_view(0), simple_view(0.5), np.array([[50.0, 40.0], [60.0, 30.0]]))
    np.testing.assert_allclose(motion.at(np.array([0.5, 0.25])), [[25.0, 40.0], [47.5, 30.0]], atol=1e-4)
    np.testing.assert_allclose(motion.speed(np.array([0.5, 0.25])), [50.0, 50.0], rtol=1e-5)
    inverse, distance = motion.inverse_depth(np.array([[25.0, 42.0], [47.5, 29.0]]))
    np.testing.assert_allclose(inverse, [0.5, 0.25], rtol=1e-5)
    np.testing.assert_allclose(distance, [2.0, 1.0], rtol=1e-5)


def test_places_behind_a_camera_have_no_depth():
    motion = EpipolarMotion.between(simple_view(0), simple_view(0.5), np.array([[50.0, 40.0]]))
    inverse, _ = motion.inverse_depth(np.array([[60.0, 40.0]]))  # it moved the wrong way
    assert np.isnan(inverse).all()


@pytest.mark.parametrize(("a", "b"), [(0, 2), (3, 4), (5, 1)])
def test_true_places_give_true_depth(room, a, b):
    view, other = view_of(room, a), view_of(room, b)
    pixels = map_positions((40, 30), room.size).astype(float)
    depth = true_depth(room, a, (40, 30))
    places, _ = other.project(view.to_world(pixels, depth))
    found = triangulate_warp(view, other, places, np.ones((30, 40)))
    known = np.isfinite(places).all(axis=-1)
    assert known.mean() > 0.5
    np.testing.assert_allclose(1 / found.inverse_depth[known], depth[known], rtol=1e-3)


def test_a_forward_motion_has_depth_but_none_at_the_epipole():
    ahead = View("b", "b", (101, 81), (100.0, 100.0), (50.0, 40.0), np.eye(3), np.array([0.0, 0.0, -1.0]))
    pixels = np.array([[60.0, 40.0], [50.0, 40.0]])
    motion = EpipolarMotion.between(simple_view(0), ahead, pixels)
    inverse, _ = motion.inverse_depth(motion.at(np.array([0.25, 0.25])).astype(float))
    assert inverse[0] == pytest.approx(0.25, rel=1e-4)
    assert not np.isfinite(inverse[1])


def test_uncertain_places_and_places_off_the_line_say_nothing():
    view, other = simple_view(0), simple_view(0.5)
    points = map_positions((101, 81), view.size) - [25.0, 0.0]
    points[:, :50, 1] += 9.0
    certainty = np.ones((81, 101), np.float32)
    certainty[:40] = 0.1
    found = triangulate_warp(view, other, points.astype(np.float32), certainty, PairDepthOptions())
    assert not np.isfinite(found.inverse_depth[:40]).any()
    assert not np.isfinite(found.inverse_depth[:, :50]).any()
    np.testing.assert_allclose(found.inverse_depth[40:, 50:], 0.5, rtol=1e-4)
    assert (found.weight[:40] == 0).all()

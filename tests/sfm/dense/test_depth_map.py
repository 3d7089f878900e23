"""Depth maps: agreement of neighbours, alignment in the photos, normals."""

from __future__ import annotations

import numpy as np
import pytest

from coam.images import load_image
from coam.sfm.dense.depth_map import (
    AgreementOptions,
    AlignmentOptions,
    DepthMap,
    agreed_depth,
    align_depth,
    enlarged,
    filled_from_nearest,
    grey_of,
    load_depth_map,
    save_depth_map,
    surface_normals,
)
from coam.sfm.dense.pair_depth import PairDepth
from sfm.dense.conftest import true_depth, view_of


def says(value: float, weight: float = 1.0, speed: float = 100.0) -> PairDepth:
    shape = (1, 1)
    return PairDepth(*(np.full(shape, v, np.float32) for v in (value, speed, weight)))


def test_the_majority_is_believed_and_averaged_by_how_exactly_it_speaks():
    # 0.5 and 0.51 are one pixel apart; 0.7 is a stray, and nothing is no opinion
    found = agreed_depth([says(0.5), says(0.51, speed=200.0), says(0.7), says(np.nan)], AgreementOptions())
    assert found[0, 0] == pytest.approx((0.5 * 1 + 0.51 * 4) / 5, rel=1e-5)


def test_one_voice_is_not_enough_unless_there_are_two_neighbours():
    assert agreed_depth([says(0.5), says(0.7), says(0.9)], AgreementOptions())[0, 0] == 0
    assert agreed_depth([says(0.5, 0.9), says(0.7, 0.4)], AgreementOptions())[0, 0] == pytest.approx(0.5)


def test_filled_from_nearest():
    values, distance = filled_from_nearest(np.array([[0, 2, 0, 0, 5]], np.float32))
    np.testing.assert_array_equal(values, [[2, 2, 2, 5, 5]])
    assert distance[0, 1] == 0
    assert distance[0, 2] == pytest.approx(1.0, abs=0.1)


def test_enlarging_interpolates_on_a_surface_and_keeps_edges():
    small = np.full((6, 12), 0.5, np.float32)
    small[:, 6:] = 0.9
    small[0] = 0
    large = enlarged(small, (12, 24))
    assert np.isin(large, np.float32([0.0, 0.5, 0.9])).all()
    assert (large[:1] == 0).all()
    assert (large[2:, :11] == np.float32(0.5)).all()


@pytest.fixture(scope="module")
def shown(room, tmp_path_factory):
    """Views of the toy scene with their grey pictures."""
    folder = room.write_photos(tmp_path_factory.mktemp("grey"))
    return [(view_of(room, i), grey_of(load_image(folder / n).rgb)) for i, n in enumerate(room.names)]


def test_alignment_in_the_photos_makes_depth_ten_times_as_exact(room, shown):
    truth = 1 / true_depth(room, 3)
    generator = np.random.default_rng(0)
    bumps = np.kron(generator.normal(0, 0.01, (12, 15)), np.ones((16, 16)))[:184]  # about a pixel
    start = (truth * (1 + bumps)).astype(np.float32)
    view, grey = shown[3]
    found = align_depth(start, view, grey, [shown[i] for i in (1, 2, 4, 5)], AlignmentOptions())
    inner = np.s_[20:-20, 20:-20]
    before = np.abs(start / truth - 1)[inner]
    after = np.abs(found / truth - 1)[inner]
    assert np.nanmedian(before) > 0.004
    assert np.nanmedian(after) < 0.15 * np.nanmedian(before)
    assert np.nanmean(after < 0.005) > 0.9


def test_photos_that_say_nothing_leave_depth_as_it_is(room, shown):
    start = (1 / true_depth(room, 3)).astype(np.float32) * 1.01
    view, grey = shown[3]
    blank = [(shown[i][0], np.full_like(grey, 90.0)) for i in (2, 4)]
    found = align_depth(start, view, grey, blank, AlignmentOptions())
    np.testing.assert_allclose(np.median(found / start), 1.0, rtol=1e-4)


def test_normals_are_those_of_the_planes(room):
    inverse = (1 / true_depth(room, 3)).astype(np.float32)
    normals = surface_normals(inverse, view_of(room, 3))
    known = (normals != 0).any(axis=-1)
    assert known.mean() > 0.8
    planes = np.array([n for n, _, _ in room.planes])
    cosine = np.abs(normals[known] @ planes.T).max(axis=1)
    assert np.quantile(cosine, 0.05) > 0.999
    towards = room.centres[3] @ normals[known].T  # the cameras stand far from the planes, outside
    assert (towards < 0).mean() < 0.5 or (towards > 0).mean() > 0.5


def test_depth_maps_come_back_and_damaged_ones_are_none(tmp_path):
    inverse = np.random.default_rng(0).random((7, 5)).astype(np.float32)
    normals = np.zeros((7, 5, 3), np.float32)
    normals[..., 2] = -1
    save_depth_map(DepthMap(inverse, normals), tmp_path / "a.npz")
    found = load_depth_map(tmp_path / "a.npz")
    assert found is not None
    np.testing.assert_array_equal(found.inverse_depth, inverse)
    np.testing.assert_allclose(found.normals, normals, atol=0.005)
    (tmp_path / "a.npz").write_bytes((tmp_path / "a.npz").read_bytes()[:100])
    assert load_depth_map(tmp_path / "a.npz") is None
    assert load_depth_map(tmp_path / "missing.npz") is None

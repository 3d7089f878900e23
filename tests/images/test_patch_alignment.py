"""Alignment in the photos: known shifts, other light, other sizes, and what must stay where it is."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from coam.images.patch_alignment import AlignOptions, align_matches


def rounded(photo):
    return np.asarray(np.clip(photo, 0, 255).round(), np.uint8)


def texture(height=200, width=260, seed=0):
    noise = np.random.default_rng(seed).normal(size=(height, width)).astype(np.float32)
    smooth = cv2.GaussianBlur(noise, (0, 0), 2.0)
    return rounded(127 + 40 * smooth / smooth.std())


def warped(photo, matrix):
    """A picture that shows at matrix @ x what `photo` shows at x. matrix (2, 3)."""
    size = (photo.shape[1], photo.shape[0])
    return np.asarray(
        cv2.warpAffine(photo, matrix, size, flags=cv2.INTER_LINEAR, borderMode=cv2.BORDER_REFLECT)
    )


@pytest.fixture
def points():
    x, y = np.meshgrid(np.arange(40, 220, 12), np.arange(40, 160, 12))
    return np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64)


def start(truth, seed=1, off=0.6):
    return truth + np.random.default_rng(seed).uniform(-off, off, truth.shape)


def align(photo0, photo1, points0, points1, matrix=None, step=4.0):
    """Both photos have the same grid step, and one affine map (default: none) lies between them."""
    affine = np.tile(np.eye(2) if matrix is None else matrix, (len(points0), 1, 1))
    return align_matches(photo0, photo1, points0, points1, affine, (step, step), AlignOptions())


def test_a_shift_is_found_to_a_few_hundredths_of_a_pixel(points):
    photo = texture()
    moved = warped(photo, np.array([[1, 0, 3.25], [0, 1, -2.75]]))
    truth = points + np.array([3.25, -2.75])
    found, likeness = align(photo, moved, points, start(truth))
    assert (
        np.abs(found - truth).max() < 0.15
    )  # a bilinear warp blurs; the prior pulls to where the search began
    assert np.median(np.abs(found - truth)) < 0.03
    assert likeness.min() > 0.99


def test_brightness_and_contrast_do_not_matter(points):
    photo = texture()
    moved = rounded(0.5 * warped(photo, np.array([[1, 0, 1.5], [0, 1, 0.5]])) + 90)
    truth = points + np.array([1.5, 0.5])
    found, _ = align(photo, moved, points, start(truth))
    assert np.median(np.abs(found - truth)) < 0.03


def test_turned_and_larger(points):
    angle, scale = np.radians(20), 1.3
    matrix = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    shift = np.array([130, 100]) - matrix @ [130, 100]
    photo = texture()
    other = warped(photo, np.c_[matrix, shift])
    truth = points @ matrix.T + shift
    inside = ((truth > 12) & (truth < [247, 187])).all(axis=1)
    found, _ = align(photo, other, points[inside], start(truth[inside]), matrix)
    assert np.median(np.linalg.norm(found - truth[inside], axis=1)) < 0.06


def test_large_photos_are_aligned_from_coarse_to_fine():
    """Photos four times as large as the network saw them: its error is two pixels, not half a one."""
    rng = np.random.default_rng(3)
    layers = [cv2.GaussianBlur(rng.normal(size=(600, 800)).astype(np.float32), (0, 0), s) for s in (2, 8, 16)]
    photo = rounded(127 + sum(20 * layer / layer.std() for layer in layers))
    moved = warped(photo, np.array([[1, 0, 7.5], [0, 1, 5.25]]))
    x, y = np.meshgrid(np.arange(100, 700, 40), np.arange(100, 500, 40))
    points = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float64)
    truth = points + np.array([7.5, 5.25])
    found, likeness = align(photo, moved, points, start(truth, off=3.0), step=16.0)
    aligned = np.isfinite(likeness)
    assert aligned.mean() > 0.95
    assert np.median(np.linalg.norm(found - truth, axis=1)[aligned]) < 0.05


def test_what_does_not_look_alike_stays(points):
    begin = start(points)
    found, likeness = align(texture(seed=0), texture(seed=9), points, begin)
    stayed = np.isnan(likeness)
    assert stayed.mean() > 0.9  # the textures are smooth, so a few agree by chance
    assert np.array_equal(found[stayed], begin[stayed])


def test_a_flat_wall_does_not_move(points):
    flat = np.full((200, 260), 100, np.uint8)
    found, likeness = align(flat, flat, points, points)
    assert np.array_equal(found, points)
    assert np.isnan(likeness).all()


def test_no_matches():
    photo = texture()
    found, likeness = align(photo, photo, np.zeros((0, 2)), np.zeros((0, 2)))
    assert found.shape == (0, 2)
    assert likeness.shape == (0,)


def test_any_number_of_matches_gives_what_each_gives_alone(points):
    photo = texture()
    moved = warped(photo, np.array([[1, 0, 1.25], [0, 1, 0.5]]))
    begin = start(points + np.array([1.25, 0.5]))
    many = 20_000 // len(points)
    found, likeness = align(photo, moved, np.tile(points, (many, 1)), np.tile(begin, (many, 1)))
    alone, alike = align(photo, moved, points, begin)
    np.testing.assert_allclose(found, np.tile(alone, (many, 1)), atol=0.01)
    np.testing.assert_allclose(likeness, np.tile(alike, many), atol=0.01)

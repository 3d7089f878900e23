from __future__ import annotations

import cv2
import numpy as np
import pytest

import coam
from coam import samples
from coam.errors import ConfigError, UntrainedWarning
from coam.geometry.homography import apply_homography
from coam.images import load_image
from coam.warp.field import map_positions


@pytest.fixture(scope="module")
def matcher() -> coam.Matcher:
    return coam.load_matcher(device="cpu", resolution=480)


@pytest.fixture(scope="module")
def photo() -> np.ndarray:
    """A part of the courtyard, 480 x 360, with texture everywhere but in the sky."""
    return np.ascontiguousarray(load_image(samples.courtyard().image("day_04")).rgb[60:420, 80:560])


def inner(field: coam.warp.WarpField, margin: int = 24) -> np.ndarray:
    mask = np.zeros(field.certainty.shape, dtype=bool)
    mask[margin:-margin, margin:-margin] = True
    return mask


def test_identity(matcher: coam.Matcher, photo: np.ndarray) -> None:
    warp = matcher.warp(photo, photo)
    for field in (warp.forward, warp.backward):
        assert field.points.shape == (360, 480, 2)
        assert np.abs(field.displacement).max() < 0.1
        assert (field.certainty > 0.5).mean() > 0.97
    assert warp.overlap > 0.9
    np.testing.assert_allclose(warp.apply().astype(int), photo.astype(int), atol=24)


def test_constant_shift_and_what_it_leaves_outside(matcher: coam.Matcher) -> None:
    whole = load_image(samples.courtyard().image("day_04")).rgb
    photo0, photo1 = whole[60:420, 40:520], whole[52:412, 88:568]  # 48 px right, 8 px up
    field = matcher.warp(photo0, photo1).forward
    seen = inner(field)
    seen[:, : 48 + 24] = False
    wanted = field.positions + np.asarray([-48, 8], dtype=np.float32)
    error = np.linalg.norm(field.points - wanted, axis=2)
    assert (error[seen] < 1).mean() > 0.97
    assert (field.certainty[seen] > 0.5).mean() > 0.9
    assert (field.certainty[:, :40] < 0.5).mean() > 0.9  # photo 1 does not show it


def test_known_homography_both_ways(matcher: coam.Matcher, photo: np.ndarray) -> None:
    homography = np.array([[0.93, 0.07, 18.0], [-0.05, 1.02, 9.0], [1e-4, -6e-5, 1.0]])
    other = cv2.warpPerspective(photo, homography, (480, 360), flags=cv2.INTER_LINEAR)
    warp = matcher.warp(photo, other)
    ways = ((warp.forward, homography), (warp.backward, np.linalg.inv(homography)))
    for field, matrix in ways:
        true = apply_homography(matrix, field.positions.reshape(-1, 2).astype(np.float64))
        true = true.reshape(field.points.shape)
        seen = inner(field) & ((true > 24) & (true < np.asarray([455, 335]))).all(axis=2)
        error = np.linalg.norm(field.points - true, axis=2)
        assert np.median(error[seen]) < 0.35
        sure = seen & (field.certainty > 0.5)
        assert sure.sum() > 0.85 * seen.sum()
        assert (error[sure] < 3).mean() > 0.98


def test_what_is_covered_in_photo_1_is_uncertain(matcher: coam.Matcher, photo: np.ndarray) -> None:
    covered = photo.copy()
    patch = load_image(samples.motorcycle().left).rgb[150:270, 200:340]
    covered[120:240, 170:310] = patch
    warp = matcher.warp(photo, covered)
    hidden = np.zeros((360, 480), dtype=bool)
    hidden[128:232, 178:302] = True
    for field in (warp.forward, warp.backward):  # neither knows of what the patch covers, nor of the patch
        assert (field.certainty[hidden] < 0.5).mean() > 0.9
    around = inner(warp.forward) & ~cv2.dilate(hidden.astype(np.uint8), np.ones((41, 41))).astype(bool)
    assert (warp.forward.certainty[around] > 0.5).mean() > 0.9
    assert np.abs(warp.forward.displacement[around]).max(axis=-1).mean() < 0.5


def test_the_size_of_the_maps(matcher: coam.Matcher, photo: np.ndarray) -> None:
    small = matcher.warp(photo, photo, size=120)
    assert small.forward.certainty.shape == (90, 120)
    assert np.abs(small.forward.displacement).max() < 0.1  # in original pixels all the same
    large = matcher.warp(cv2.resize(photo, (960, 720)), photo)
    assert large.forward.certainty.shape == (360, 480)  # at most the matcher's resolution
    assert large.backward.certainty.shape == (360, 480)
    scaled = (large.forward.points + 0.5) * 2 - 0.5 - map_positions((480, 360), (960, 720))
    assert np.median(np.abs(scaled)) < 0.3
    for wrong in (0, -3, 2.5, True, "big", 10**6):
        with pytest.raises(ConfigError, match="size must be"):
            matcher.warp(photo, photo, size=wrong)


@pytest.mark.parametrize("shapes", [((1, 1), (1, 1)), ((7, 300), (300, 7)), ((33, 47), (160, 90))])
def test_awkward_sizes(matcher: coam.Matcher, shapes: tuple[tuple[int, int], tuple[int, int]]) -> None:
    rng = np.random.default_rng(0)
    photos = [rng.integers(0, 255, (*shape, 3), dtype=np.uint8) for shape in shapes]
    warp = matcher.warp(*photos)
    fields = (warp.forward, warp.backward)
    for field, own, other in zip(fields, shapes, shapes[::-1], strict=True):
        assert field.certainty.shape == own
        assert np.isfinite(field.points).all()
        assert (field.points >= 0).all()
        assert (field.points <= np.asarray([other[1] - 1, other[0] - 1])).all()
        assert (field.certainty >= 0).all()
        assert (field.certainty <= 1).all()


def test_photos_of_different_things_are_uncertain(matcher: coam.Matcher, photo: np.ndarray) -> None:
    warp = matcher.warp(photo, samples.motorcycle().left)
    assert (warp.certainty > 0.5).mean() < 0.05


def test_a_model_without_a_fine_map(photo: np.ndarray) -> None:
    with pytest.warns(UntrainedWarning):
        matcher = coam.load_matcher("cdunet-paper", device="cpu", resolution=128)  # untrained
    warp = matcher.warp(photo, photo)
    assert warp.forward.points.shape == (96, 128, 2)
    assert np.abs(warp.forward.displacement).max() < 4


def test_sampled_matches_hold_and_surer_ones_more_often(matcher: coam.Matcher) -> None:
    pair = samples.motorcycle()
    warp = matcher.warp(pair.left, pair.right)
    shares = []
    for least in (0.5, 0.9):
        matches = warp.sample(1000, seed=0, min_certainty=least)
        assert len(matches) == 1000
        true, valid = pair.true_points1(matches.points0)
        assert valid.mean() > 0.75  # the truth knows nothing of depth edges
        error = np.linalg.norm(matches.points1 - true, axis=1)[valid]
        shares.append(float((error < 3).mean()))
    assert shares[0] > 0.87  # .886 at 480 px; at 800 px, for which certainty was fitted, see docs/warp.md
    assert shares[1] > shares[0] + 0.02  # .921


def test_masks_take_certainty_away_on_either_side(matcher: coam.Matcher) -> None:
    pair = samples.motorcycle()
    plain = matcher.warp(pair.left, pair.right)
    width, height = plain.forward.size
    left_half, all_right = np.zeros((height, width), bool), np.ones((height, width), bool)
    left_half[:, : width // 2] = True
    masked = matcher.warp(pair.left, pair.right, mask0=left_half, mask1=all_right)
    columns = plain.forward.certainty.shape[1]
    assert (masked.forward.certainty[:, columns // 2 + 1 :] == 0).all()
    kept = slice(0, columns // 2 - 1)
    np.testing.assert_array_equal(masked.forward.certainty[:, kept], plain.forward.certainty[:, kept])
    # Backwards, what is left out is where photo 0 may not be used.
    used = masked.backward.points[..., 0] < width // 2 - 1
    assert (masked.backward.certainty[masked.backward.points[..., 0] > width // 2 + 1] == 0).all()
    np.testing.assert_array_equal(masked.backward.certainty[used], plain.backward.certainty[used])

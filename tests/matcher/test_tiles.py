"""Large photos by tiles: geometry of the tiles by hand, and a pair with a known homography."""

import subprocess
import sys
from dataclasses import replace

import cv2
import numpy as np
import pytest

import coam
from coam import samples
from coam.matcher import Matcher
from coam.matcher.tiles import STEP, Window, agreeing, consistent, full_grid, match_tiles, region_of, tiles_of
from coam.types import Matches


def moved(points0: np.ndarray, points1: np.ndarray, size: tuple[int, int] = (4000, 3000)) -> Matches:
    count = len(points0)
    ids = np.arange(count)
    arrays = [np.asarray(p, dtype=np.float32) for p in (points0, points1, np.ones(count))]
    return Matches(*arrays, ids, ids, size, size)


def test_tiles_cover_the_photo_and_begin_on_one_grid():
    size = (4000, 3000)
    tiles = list(tiles_of(size, 800, 64))
    assert len(tiles) == 6 * 4
    covered = np.zeros((size[1], size[0]), dtype=bool)
    for tile in tiles:
        assert (tile.width, tile.height) == (800, 800)
        assert tile.left % STEP == tile.top % STEP == 0
        covered[tile.top : tile.top + 800, tile.left : tile.left + 800] = True
    assert covered.all()
    lefts = sorted({tile.left for tile in tiles})
    assert min(800 - np.diff(lefts)) >= 64  # they overlap


def test_a_small_photo_is_one_tile():
    assert list(tiles_of((300, 200), 800, 64)) == [Window(0, 0, 300, 200)]
    assert list(tiles_of((801, 200), 800, 64))[-1].width >= 800


def test_the_region_follows_the_map_of_the_guides():
    """x' = 0.5 x + 1000, y' = 0.5 y + 500: the tile at (800, 800) lies at (1400, 900), 400 pixels wide."""
    grid = np.stack(np.meshgrid(np.arange(850, 1600, 100), np.arange(850, 1600, 100)), -1).reshape(-1, 2)
    guides = moved(grid, grid * 0.5 + [1000, 500])
    region = region_of(Window(800, 800, 800, 800), guides)
    margin = 0.1 * 400 + 16
    assert abs(region.left - (1400 - margin)) <= 1
    assert abs(region.top - (900 - margin)) <= 1
    assert abs(region.width - (400 + 2 * margin)) <= 2


def test_the_region_stays_in_the_photo_and_is_never_empty():
    points = np.random.default_rng(0).uniform(0, 800, (20, 2))
    region = region_of(Window(0, 0, 800, 800), moved(points, points + np.asarray([3300, 2300])))
    assert region.left + region.width <= 4000
    assert region.top + region.height <= 3000
    alone = region_of(Window(0, 0, 800, 800), moved(points, np.full((20, 2), [3999, 2999])))
    assert min(alone.width, alone.height) >= 32


def test_outliers_do_not_guide():
    points = np.random.default_rng(0).uniform(0, 800, (200, 2)).astype(np.float32)
    right = points + 100
    wrong = right.copy()
    wrong[::10] += 500
    kept = consistent(moved(points, wrong), tolerance=20)
    assert len(kept) >= 175  # one or two among many outliers may go
    np.testing.assert_array_equal(kept.points1, kept.points0 + 100)


def test_a_match_agrees_with_one_of_two_depths():
    """Left half moves by 0, right half by 200: at the seam both are right, 100 is not."""
    grid = np.stack(np.meshgrid(np.arange(0, 400, 20.0), np.arange(0, 400, 20.0)), -1).reshape(-1, 2)
    shift = np.where(grid[:, :1] < 200, 0.0, 200.0) * [[1.0, 0.0]]
    guides = moved(grid, grid + shift)
    seam = np.full((3, 2), [195.0, 200.0])
    found = moved(seam, seam + np.asarray([[0, 0], [200, 0], [100, 0]]))
    np.testing.assert_array_equal(agreeing(found, guides, 30.0), [True, True, False])


def test_full_resolution_finds_more_and_finer_matches_than_the_reduced_photos():
    matcher = coam.load_matcher(device="cpu", resolution=256, looks="once")
    image = cv2.cvtColor(cv2.imread(str(samples.courtyard().image_dir / "day_04.jpg")), cv2.COLOR_BGR2RGB)
    height, width = image.shape[:2]
    corners = np.float32([[0, 0], [width, 0], [width, height], [0, height]])
    map_01 = cv2.getPerspectiveTransform(corners, np.float32([[40, 10], [620, 30], [600, 470], [10, 440]]))
    other = cv2.warpPerspective(image, map_01, (width, height))
    other = (255 * (other / 255.0) ** 1.3).astype(np.uint8)

    def errors(matches: Matches) -> np.ndarray:
        truth = cv2.perspectiveTransform(matches.points0[None].astype(np.float64), map_01)[0]
        return np.linalg.norm(truth - matches.points1, axis=1)

    whole, tiled = matcher.match(image, other), match_tiles(matcher, image, other, max_matches=4000)
    assert tiled.meta["tiles"] >= 6
    assert len(tiled) > 1.5 * len(whole)
    assert (errors(tiled) < 1).mean() >= (errors(whole) < 1).mean()
    assert (errors(tiled) < 3).mean() > 0.98
    assert len(np.unique(tiled.ids0)) == len(tiled)
    assert (np.diff(tiled.scores) <= 0).all()
    assert tiled.grid0 == full_grid((width, height))


def test_small_photos_are_matched_as_usual(monkeypatch: pytest.MonkeyPatch):
    matcher = coam.load_matcher(device="cpu", resolution=128, looks="once")
    rng = np.random.default_rng(0)
    a, b = (rng.integers(0, 255, (96, 128, 3), dtype=np.uint8) for _ in range(2))
    expected, found = matcher.match(a, b), match_tiles(matcher, a, b)
    np.testing.assert_array_equal(found.points1, expected.points1)
    assert "tiles" not in found.meta


def test_a_variant_shares_the_network_and_nothing_else():
    matcher = coam.load_matcher(device="cpu", resolution=128)
    other = matcher.variant(looks="once", max_matches=7)
    assert isinstance(other, Matcher)
    assert other.network is matcher.network
    assert other._cache is not matcher._cache
    assert matcher.config == replace(other.config, looks=matcher.config.looks, max_matches=2048)
    assert other.config.max_matches == 7
    assert matcher.matching is not other.matching


@pytest.mark.slow
def test_twelve_megapixels_in_less_than_four_gibibytes():
    program = """
import cv2, numpy, resource, coam
from coam import samples
from coam.images import load_image
from coam.matcher.tiles import match_tiles
large = cv2.resize(load_image(samples.motorcycle().left).rgb, (4000, 3000), interpolation=cv2.INTER_CUBIC)
matches = match_tiles(coam.load_matcher(device="cpu", looks="once"), large, numpy.roll(large, 40, 1))
print(len(matches), matches.meta["tiles"], resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    count, tiles, mebibytes = (int(word) for word in run.stdout.split())
    assert count > 2048
    assert tiles >= 20
    assert mebibytes < 4096

"""Images of any depth, read by windows and drawn in another frame."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

from coam.errors import ConfigError, ImageError
from coam.matcher.tiles import Window
from coam.registration.rasters import DisplayOptions, display_of, of_array, open_raster, tiles_over
from coam.registration.resampling import ResampleOptions, places_of, resample_whole, resample_window
from coam.registration.transforms import PlaneTransform, Transform
from support.known_registration import TURN

SHIFT = PlaneTransform("translation", np.array([[1, 0, 3], [0, 1, -2], [0, 0, 1.0]]))
RAMP = np.arange(40 * 30, dtype=np.float64).reshape(30, 40)


@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int16", "int32", "float32", "float64"])
@pytest.mark.parametrize("bands", [1, 2, 5])
def test_a_whole_shift_moves_values_exactly(dtype: str, bands: int) -> None:
    values = np.stack([(RAMP + 7 * band) % 250 for band in range(bands)], axis=-1).astype(dtype)
    moved, inside = resample_whole(of_array(values), SHIFT, (40, 30))
    assert moved.dtype == np.dtype(dtype)
    assert np.array_equal(moved[:28, 3:], values[2:, :37])
    assert not moved[:, :3].any()
    assert inside.sum() == 28 * 37


def test_tiles_are_the_same_as_the_whole() -> None:
    picture = np.random.default_rng(0).integers(0, 255, (150, 200, 3), dtype=np.uint8)
    transform = PlaneTransform("similarity", TURN)
    once, _ = resample_whole(of_array(picture), transform, (210, 160), ResampleOptions(tile=4096))
    tiled, _ = resample_whole(of_array(picture), transform, (210, 160), ResampleOptions(tile=37))
    assert np.abs(once.astype(int) - tiled).max() <= 1  # OpenCV interpolates at 1/32 pixel


def test_a_turn_is_drawn_as_opencv_does() -> None:
    smooth = cv2.GaussianBlur(
        np.random.default_rng(0).uniform(0, 255, (150, 200)).astype(np.float32), (0, 0), 3
    )
    ours, inside = resample_whole(of_array(smooth), PlaneTransform("similarity", TURN), (200, 150))
    theirs = cv2.warpPerspective(smooth, TURN, (200, 150), flags=cv2.INTER_CUBIC)
    deep = cv2.erode(inside.astype(np.uint8), np.ones((9, 9))) > 0
    deep[:4] = deep[-4:] = deep[:, :4] = deep[:, -4:] = False  # OpenCV mixes black in at the frame's edge
    assert np.abs(ours[..., 0] - theirs)[deep].max() < 0.6


def test_missing_values_do_not_bleed() -> None:
    values = np.full((20, 30), 50.0, np.float32)
    values[:, 15:] = -9999
    half = PlaneTransform("translation", np.array([[1, 0, 0.5], [0, 1, 0], [0, 0, 1.0]]))
    moved, inside = resample_whole(of_array(values, nodata=-9999), half, (30, 20))
    assert set(np.unique(moved)) == {50.0, -9999.0}
    assert inside[:, :15].sum() > 0
    assert not inside[:, 16:].any()
    nans = np.where(values == -9999, np.nan, values)
    moved, inside = resample_whole(of_array(nans), half, (30, 20), ResampleOptions(fill=-1))
    assert set(np.unique(moved)) == {50.0, -1.0}


def test_a_large_moving_image_is_averaged() -> None:
    checker = (np.indices((160, 160)).sum(axis=0) % 2 * 200).astype(np.uint8)
    eighth = PlaneTransform("similarity", np.array([[0.125, 0, -0.4375], [0, 0.125, -0.4375], [0, 0, 1]]))
    small, _ = resample_whole(of_array(checker), eighth, (20, 20))
    assert small[2:-2, 2:-2].min() >= 99
    assert small[2:-2, 2:-2].max() <= 101


def test_outside_of_everything_is_filled() -> None:
    far = PlaneTransform("translation", np.array([[1, 0, 900], [0, 1, 0], [0, 0, 1.0]]))
    moved, inside = resample_window(of_array(np.ones((9, 9), np.uint8)), far, Window(0, 0, 9, 9))
    assert not moved.any()
    assert not inside.any()


def test_a_lattice_is_near_the_exact_places() -> None:
    from coam.registration.transforms import LocalTransform, Polynomial

    bent = Polynomial(2, np.array([100, 75.0]), 100.0, np.array([[0, 0]] * 3 + [[6, 0], [0, 4], [3, 3.0]]))
    transform: Transform = LocalTransform("polynomial", TURN, bent)
    window = Window(11, 7, 101, 58)
    fine, coarse = (places_of(transform, window, lattice) for lattice in (1, 8))
    assert coarse.shape == (58, 101, 2)
    assert np.abs(fine - coarse).max() < 0.02


def test_overviews_are_block_means_of_what_may_be_used() -> None:
    values = RAMP[..., None].astype(np.float32)
    mask = np.ones((30, 40), bool)
    mask[0, 0] = False
    means, filled = open_raster(of_array(values), mask).reduced(Window(0, 0, 40, 30), 2)
    assert means.shape == (15, 20, 1)
    assert means[0, 0, 0] == pytest.approx((1 + 40 + 41) / 3)
    assert means[1, 1, 0] == pytest.approx(RAMP[2:4, 2:4].mean())
    assert filled.all()


def test_display_is_robust_to_outliers_and_keeps_bytes() -> None:
    values = np.random.default_rng(0).normal(1000, 30, (100, 100, 1)).astype(np.float32)
    values[0, 0] = 60_000
    everywhere = np.ones((100, 100), bool)
    shown = display_of(values, everywhere, np.dtype(np.uint16), DisplayOptions(), "x").rgb(values)
    assert shown.shape == (100, 100, 3)
    assert 30 < shown[..., 0].std() < 70
    photo = np.random.default_rng(0).integers(0, 256, (100, 100, 3), dtype=np.uint8)
    kept = display_of(photo.astype(np.float32), everywhere, np.dtype(np.uint8), DisplayOptions(), "x")
    assert np.array_equal(kept.rgb(photo), photo)
    with pytest.raises(ConfigError, match="has 1 band"):
        display_of(values, everywhere, np.dtype(np.uint16), DisplayOptions(bands=(3,)), "x")


def test_a_flat_image_is_shown_without_a_fault() -> None:
    flat = np.full((5, 5, 1), 7.0, np.float32)
    assert display_of(flat, np.ones((5, 5), bool), np.dtype("f4"), DisplayOptions(), "x").rgb(flat).shape == (
        5,
        5,
        3,
    )


def test_sixteen_bit_png_keeps_its_depth(tmp_path: Path) -> None:
    deep = (RAMP * 40).astype(np.uint16)
    Image.fromarray(deep).save(tmp_path / "deep.png")
    raster = open_raster(tmp_path / "deep.png")
    assert (raster.dtype, raster.bands, raster.size) == (np.uint16, 1, (40, 30))
    assert np.array_equal(raster.read(raster.whole)[..., 0], deep)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((30, 40), {}),
        ((30, 40, 3), {"photometric": "rgb"}),
        ((6, 30, 40), {"planarconfig": "separate", "photometric": "minisblack"}),
        ((30, 40), {"compression": "zlib"}),
    ],
)
@pytest.mark.parametrize("reader", ["rasterio", "tifffile"])
def test_tiff_files_of_many_kinds(
    tmp_path: Path,
    shape: tuple[int, ...],
    options: dict[str, str],
    reader: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tifffile = pytest.importorskip("tifffile")
    pytest.importorskip(reader)
    import coam.registration.rasters as rasters

    values = np.random.default_rng(0).uniform(0, 4000, shape).astype(np.float32)
    tifffile.imwrite(tmp_path / "a.tif", values, **options)
    monkeypatch.setattr(rasters, "find_spec", lambda name: True if name == reader else None)
    raster = open_raster(tmp_path / "a.tif")
    want = values[..., None] if values.ndim == 2 else np.moveaxis(values, 0, -1) if shape[0] == 6 else values
    assert (raster.size, raster.bands, raster.dtype) == ((40, 30), want.shape[2], np.float32)
    assert np.array_equal(raster.read(Window(5, 4, 11, 9)), want[4:13, 5:16])


@pytest.mark.parametrize("content", [b"", b"II*\0 no tiff at all", b"nothing"])
def test_damaged_tiff_files_are_one_line(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.tif").write_bytes(content)
    with pytest.raises(ImageError, match=r"a\.tif"):
        open_raster(tmp_path / "a.tif")
    with pytest.raises(ImageError, match="no such file"):
        open_raster(tmp_path / "b.tif")


def test_what_is_no_image_is_refused() -> None:
    for wrong in (np.zeros((3, 4, 5, 6)), np.zeros((0, 4)), np.zeros((4, 4), complex)):
        with pytest.raises(ImageError):
            open_raster(wrong)
    with pytest.raises(ImageError, match="mask"):
        open_raster(np.zeros((4, 4)), np.ones((3, 3), bool))


def test_tiles_cover_once() -> None:
    seen = np.zeros((23, 31), int)
    for window in tiles_over((31, 23), 10):
        seen[window.top : window.top + window.height, window.left : window.left + window.width] += 1
    assert (seen == 1).all()

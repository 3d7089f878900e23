"""One image onto another, end to end: files of any depth, refusals, what is written, what comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
from PIL import Image

import coam
from coam.errors import ConfigError, DataError, ImageError
from coam.geometry.homography import apply_homography
from coam.images import load_image
from coam.registration import Limits, RegisterOptions, Registration, RegistrationRefused, register
from coam.registration.fitting import fit_transform
from coam.registration.outputs import KNOWN, ground_control_points, picture_of, write_outputs
from coam.registration.pair import dense_transform, find_registration, refusal, spread_windows
from coam.registration.pictures import draw_before_after, draw_residuals, overlay_of, registration_page
from coam.registration.rasters import of_array, open_raster
from coam.registration.resampling import DEFAULT_RESAMPLE
from coam.samples import motorcycle
from coam.store.documents import write_sealed_json
from coam.types import Matches
from coam.warp.field import WarpField, map_positions
from support.known_registration import TURN, KnowingMatcher, as_matcher, elastic, noisy_matches, seen_through
from support.simple_matchers import textured

SIZE = (320, 240)
MARKS = np.array([[40, 30], [280, 40], [160, 120], [60, 200], [270, 210.0]])


@pytest.fixture
def moving() -> np.ndarray:
    return textured(0, SIZE)


@pytest.fixture
def fixed(moving: np.ndarray) -> np.ndarray:
    return seen_through(moving, TURN, SIZE)


def knowing(**how) -> KnowingMatcher:
    return KnowingMatcher(TURN, **how)


def found_on(moving: np.ndarray, fixed: np.ndarray, **how) -> Registration:
    return register(moving, fixed, matcher=as_matcher(knowing(**how)))


def test_the_known_transform_comes_back(moving: np.ndarray, fixed: np.ndarray) -> None:
    found = found_on(moving, fixed)
    assert found.transform.kind == "similarity"
    assert np.abs(found.points(MARKS) - apply_homography(TURN, MARKS)).max() < 0.1
    assert found.confidence > 0.9
    assert 0.6 < found.coverage <= 1
    assert found.refusal == ""
    drawn, inside = found.apply_with_mask(moving)
    deep = cv2.erode(inside.astype(np.uint8), np.ones((9, 9)), borderValue=0) > 0
    assert np.abs(drawn.astype(int) - fixed)[deep].mean() < 1.0


def test_the_real_matcher_registers_another_sensor(tmp_path: Path) -> None:
    photo = cv2.resize(load_image(motorcycle().left).rgb, SIZE, interpolation=cv2.INTER_AREA)
    matrix = np.array([[1.02, -0.05, 8.0], [0.05, 1.02, -5.0], [0, 0, 1]])
    seen = seen_through(photo, matrix, SIZE)
    inverted = ((255 - seen.mean(axis=2)) * 12 + 100).astype(np.uint16)  # one band of 12 bits
    Image.fromarray(inverted).save(tmp_path / "ir.png")
    matcher = coam.load_matcher(device="cpu", looks="once", resolution=320)
    found = register(photo, tmp_path / "ir.png", matcher=matcher)
    assert np.linalg.norm(found.points(MARKS) - apply_homography(matrix, MARKS), axis=1).mean() < 0.5


def test_noise_is_refused_with_a_reason(moving: np.ndarray) -> None:
    noise = np.random.default_rng(0).integers(0, 255, moving.shape, dtype=np.uint8)
    matcher = coam.load_matcher(device="cpu", looks="once", resolution=320)
    with pytest.raises(RegistrationRefused, match=r"probability|no transform"):
        register(moving, noise, matcher=matcher)


def test_what_is_refused_draws_nothing_unless_forced(moving: np.ndarray, fixed: np.ndarray) -> None:
    options = RegisterOptions(limits=Limits(error=0.01))
    with pytest.raises(RegistrationRefused, match="misses left-out matches") as caught:
        register(moving, fixed, matcher=as_matcher(knowing()), options=options)
    attempt = caught.value.attempt
    assert attempt is not None
    with pytest.raises(RegistrationRefused):
        attempt.apply(moving)
    forced = register(moving, fixed, matcher=as_matcher(knowing()), options=options, force=True)
    assert "misses left-out matches" in forced.refusal


def test_every_limit_has_its_reason(moving: np.ndarray, fixed: np.ndarray) -> None:
    quality = found_on(moving, fixed).quality
    assert refusal(quality, Limits()) == ""
    assert "probability of" in refusal(replace(quality, confidence=0.2), Limits())
    assert "bear out" in refusal(replace(quality, coverage=0.2), Limits(coverage=0.3))
    assert "left-out" in refusal(replace(quality, held_out_error=4.0), Limits(error=3.0))


def test_few_matches_of_a_doubtful_pair_are_not_trusted(moving: np.ndarray, fixed: np.ndarray) -> None:
    with pytest.raises(RegistrationRefused):
        found_on(moving, fixed, count=20, overlap=0.05, noise=2.0)


def test_save_and_load_keep_everything(moving: np.ndarray, fixed: np.ndarray, tmp_path: Path) -> None:
    found = found_on(moving, fixed)
    again = Registration.load(found.save(tmp_path / "a.json"))
    assert np.array_equal(again.apply(moving), found.apply(moving))
    assert again.quality.confidence == pytest.approx(found.confidence, abs=1e-6)
    assert np.array_equal(again.residual_map, found.residual_map, equal_nan=True) or np.allclose(
        again.residual_map, found.residual_map, atol=1e-5, equal_nan=True
    )
    assert again.residuals == pytest.approx(found.residuals, abs=1e-3)
    assert (again.why, again.tried.keys(), again.meta) == (found.why, found.tried.keys(), found.meta)


def test_a_file_from_before_uncertainty_was_known_is_read(
    moving: np.ndarray, fixed: np.ndarray, tmp_path: Path
) -> None:
    content = found_on(moving, fixed).to_json()
    for name in ("uncertainty", "bearable"):
        del content["quality"][name]
    again = Registration.load(write_sealed_json(tmp_path / "old.json", content))
    assert np.isnan(again.quality.uncertainty)
    assert again.quality.bearable == max(5.0, 0.005 * max(again.fixed_size))
    assert not any("draws" in line for line in again.in_words())


@pytest.mark.parametrize(
    "damage",
    ["", "[]", "{}", '{"format": "coam-registration", "version": 99}', '{"format": "other", "version": 1}'],
)
def test_damaged_files_are_one_line(tmp_path: Path, damage: str) -> None:
    (tmp_path / "a.json").write_text(damage)
    with pytest.raises(DataError, match=r"a\.json"):
        Registration.load(tmp_path / "a.json")


def test_a_changed_file_is_refused(moving: np.ndarray, fixed: np.ndarray, tmp_path: Path) -> None:
    path = found_on(moving, fixed).save(tmp_path / "a.json")
    content = json.loads(path.read_text())
    content["transform"]["matrix"][0][2] += 5
    path.write_text(json.dumps(content))
    with pytest.raises(DataError, match="checksum"):
        Registration.load(path)


def test_apply_wants_the_size_that_was_registered(moving: np.ndarray, fixed: np.ndarray) -> None:
    found = found_on(moving, fixed)
    mask = np.zeros(SIZE[::-1], np.uint8)
    assert found.apply(mask).shape == SIZE[::-1]
    with pytest.raises(ImageError, match="320 x 240"):
        found.apply(moving[:100])


def test_masks_are_respected(moving: np.ndarray, fixed: np.ndarray) -> None:
    seen = {}

    class Watching(KnowingMatcher):
        def match(self, image0, image1, mask0=None, mask1=None):
            seen["masks"] = mask0, mask1
            return super().match(image0, image1)

    usable = np.ones(SIZE[::-1], bool)
    usable[:100] = False
    register(moving, fixed, fixed_mask=usable, matcher=as_matcher(Watching(TURN)))
    assert seen["masks"][0] is None
    assert np.array_equal(seen["masks"][1], usable)


def test_a_large_image_is_looked_at_closer() -> None:
    """Its windows in full resolution, with the moving image drawn in their frame: there nothing moves."""
    picture = cv2.resize(textured(1, (300, 300)), (1200, 1200), interpolation=cv2.INTER_CUBIC)

    class Closer(KnowingMatcher):
        def match(self, image0, image1, mask0=None, mask1=None):
            inside = image0.shape[0] == 320 and self.calls > 0
            self.matrix = np.eye(3) if inside else TURN
            return super().match(image0, image1)

    matcher = Closer(noise=0.2, resolution=320)
    found = register(picture, seen_through(picture, TURN, (1200, 1200)), matcher=as_matcher(matcher))
    assert found.meta["windows"] >= 9
    marks = MARKS * 3.7
    assert np.abs(found.points(marks) - apply_homography(TURN, marks)).max() < 0.15
    windows = list(spread_windows((1200, 700), 320, 4))
    assert len(windows) == 12
    assert all(w.left + w.width <= 1200 and w.top + w.height <= 700 for w in windows)
    assert [w.width for w in spread_windows((200, 100), 320, 4)] == [200]


def test_overviews_of_large_images_are_mapped_back(moving: np.ndarray, fixed: np.ndarray) -> None:
    large = [cv2.resize(image, (640, 480), interpolation=cv2.INTER_CUBIC) for image in (moving, fixed)]
    options = RegisterOptions(overview=330)
    found = register(large[0], large[1], matcher=as_matcher(knowing()), options=options)
    expected = 2 * (apply_homography(TURN, (MARKS - 0.5) / 2)) + 0.5
    assert np.abs(found.points(MARKS) - expected).max() < 0.2


def test_a_dense_map_becomes_a_transform() -> None:
    positions = map_positions((80, 60), SIZE)
    wave = 3 * np.sin(positions[..., 1:] / 25)
    places = (positions + np.array([5, 7]) + np.concatenate([wave, 0 * wave], axis=2)).astype(np.float32)
    certainty = np.ones((60, 80), np.float32)
    certainty[:, :8] = 0
    transform = dense_transform(WarpField(places, certainty, SIZE, SIZE))
    assert transform is not None
    inner = MARKS[MARKS[:, 0] > 45]
    expected = inner + np.array([5, 7]) + np.stack([3 * np.sin(inner[:, 1] / 25), 0 * inner[:, 1]], axis=1)
    assert np.abs(transform.inverse_points(inner) - expected).max() < 0.3
    assert dense_transform(WarpField(places, 0 * certainty, SIZE, SIZE)) is None


# ---- what is written


def test_every_output_is_written(moving: np.ndarray, fixed: np.ndarray, tmp_path: Path) -> None:
    pytest.importorskip("tifffile")
    found = found_on(moving, fixed)
    names = ["a.png", "a.jpg", "a.tif", "a.json", "a.html", "a.points", "a.checker.png", "a.arrows.jpg"]
    outputs = [tmp_path / name for name in [*names, "a.before-after.png"]]
    assert {path.suffix for path in outputs} <= set(KNOWN)
    write_outputs(found, of_array(moving), of_array(fixed), outputs, DEFAULT_RESAMPLE)
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in outputs)
    drawn = found.apply(moving)
    assert np.array_equal(load_image(tmp_path / "a.png").rgb, drawn)
    raster = open_raster(tmp_path / "a.tif")
    assert np.array_equal(raster.read(raster.whole), drawn)
    page = (tmp_path / "a.html").read_text()
    assert "swipe" in page
    assert "http" not in page.replace("http-equiv", "")


def test_a_refused_registration_writes_no_image(
    moving: np.ndarray, fixed: np.ndarray, tmp_path: Path
) -> None:
    refused = replace(found_on(moving, fixed), refusal="no")
    with pytest.raises(RegistrationRefused):
        write_outputs(
            refused,
            of_array(moving),
            of_array(fixed),
            [tmp_path / "a.json", tmp_path / "a.png"],
            DEFAULT_RESAMPLE,
        )
    assert list(tmp_path.iterdir()) == []


def test_the_ending_before_the_ending_names_a_picture() -> None:
    assert picture_of(Path("x.checker.png")) == ".checker"
    assert picture_of(Path("x.png")) == ""
    assert picture_of(Path("x.checker.tif")) == ""


def test_geotiff_keeps_place_type_and_nodata(moving: np.ndarray, fixed: np.ndarray, tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    place = rasterio.Affine(0.5, 0.0, 500_000.0, 0.0, -0.5, 5_300_000.0)
    georeferenced = {"driver": "GTiff", "width": SIZE[0], "height": SIZE[1]}
    with rasterio.open(
        tmp_path / "fixed.tif",
        "w",
        count=3,
        dtype="uint8",
        crs="EPSG:32633",
        transform=place,
        **georeferenced,
    ) as file:
        file.write(np.moveaxis(fixed, -1, 0))
    bands = np.stack([moving[..., 0] * 16.0 + band for band in range(4)]).astype(np.int16)
    bands[:, :20] = -999
    with rasterio.open(
        tmp_path / "moving.tif", "w", count=4, dtype="int16", nodata=-999, **georeferenced
    ) as file:
        file.write(bands)
    rasters = open_raster(tmp_path / "moving.tif"), open_raster(tmp_path / "fixed.tif")
    found = find_registration(*rasters, as_matcher(knowing()))
    write_outputs(found, *rasters, [tmp_path / "out.tif"], DEFAULT_RESAMPLE)
    with rasterio.open(tmp_path / "out.tif") as file:
        assert file.crs.to_epsg() == 32633
        assert file.transform == place
        assert (file.count, file.dtypes[0], file.nodata) == (4, "int16", -999)
        values = file.read()
    seen = values[0] != -999
    assert 0.6 < seen.mean() < 0.95
    assert np.abs(values[3][seen] - values[0][seen] - 3.0).max() <= 1  # rounded
    text = ground_control_points(found, rasters[1], count=30)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert text.startswith("#CRS: ")
    rows = np.array([[float(word) for word in line.split(",")] for line in lines[1:]])
    assert len(rows) == 30
    pixels = (rows[:, :2] - [500_000, 5_300_000]) / [0.5, -0.5] - 0.5
    back = found.points(rows[:, 2:4] * [1, -1] - 0.5)
    assert np.linalg.norm(back - pixels, axis=1) == pytest.approx(rows[:, 7], abs=1e-3)


# ---- pictures


def test_pictures_show_the_moving_image_in_place(moving: np.ndarray, fixed: np.ndarray) -> None:
    found = found_on(moving, fixed)
    overlay = overlay_of(found, moving, fixed)
    deep = cv2.erode(overlay.inside.astype(np.uint8), np.ones((9, 9)), borderValue=0) > 0
    assert np.abs(overlay.warped1.astype(int) - overlay.photo0)[deep].mean() < 3
    both = np.asarray(draw_before_after(found, overlay, moving))
    before, after = both[:, :320].astype(int), both[:, -320:].astype(int)
    assert (
        np.abs(before[..., 0] - before[..., 1])[deep].mean()
        > 3 * np.abs(after[..., 0] - after[..., 1])[deep].mean()
    )
    assert draw_residuals(found, overlay).size == SIZE
    half = overlay_of(found, moving, fixed, longest=160)
    assert half.photo0.shape == (120, 160, 3)
    shrunk = cv2.resize(overlay.warped1, (160, 120), interpolation=cv2.INTER_AREA)
    inner = cv2.erode(half.inside.astype(np.uint8), np.ones((9, 9)), borderValue=0) > 0
    assert np.abs(half.warped1.astype(int) - shrunk)[inner].mean() < 4


def test_a_page_cannot_be_broken_by_names(moving: np.ndarray, fixed: np.ndarray) -> None:
    found = found_on(moving, fixed)
    page = registration_page(found, overlay_of(found, moving, fixed), ("</script><b>", "x"))
    assert "</script><b>" not in page


@pytest.mark.parametrize("wrong", ["rigid", ""])
def test_an_unknown_model_is_named(moving: np.ndarray, fixed: np.ndarray, wrong: str) -> None:
    with pytest.raises(ConfigError, match="no model"):
        register(moving, fixed, model=wrong, matcher=as_matcher(knowing()))


class WavyMatcher(KnowingMatcher):
    """Knows an elastic move, finds no match in the upper right of the fixed image, and has a warp there."""

    most: int = 2048

    def variant(self, max_matches: int = 2048, **_: object) -> KnowingMatcher:
        other = WavyMatcher()
        other.most = max_matches
        return other

    def match(self, image0, image1, mask0=None, mask1=None) -> Matches:
        found = noisy_matches(WAVES, size=(640, 480), count=self.most, noise=0.6)
        bare = (found.points1[:, 0] > 380) & (found.points1[:, 1] < 200)
        return found.select(~bare)

    def warp(self, image0, image1, mask0=None, mask1=None) -> SimpleNamespace:
        """Its places are 1.5 px off along x and y, and it knows: three in four or more are within 3 px."""
        positions = map_positions((640, 480), (640, 480))
        points = Backwards(WAVES)(positions.reshape(-1, 2).astype(np.float64)).reshape(positions.shape)
        blocks = np.random.default_rng(2).normal(0, 1.5, (60, 80, 2)).repeat(8, axis=0).repeat(8, axis=1)
        certainty = np.full((480, 640), 0.8, np.float32)
        field = WarpField((points + blocks).astype(np.float32), certainty, (640, 480), (640, 480))
        return SimpleNamespace(backward=field)


WAVES = elastic(10.0, 320.0)


class Backwards:
    """The inverse of a move, by iteration."""

    def __init__(self, move) -> None:
        self.move = move

    def __call__(self, points: np.ndarray) -> np.ndarray:
        found = points
        for _ in range(30):
            found = found + points - self.move(found)
        return found


def test_a_local_model_is_held_by_the_warp_where_nothing_matches() -> None:
    picture = textured(0, (640, 480))
    found = register(picture, picture, matcher=as_matcher(WavyMatcher()))
    assert found.transform.kind == "spline"
    assert found.meta["matches"] > 5000  # more than the first look had
    x, y = np.meshgrid(np.linspace(400, 620, 12), np.linspace(20, 190, 12))
    bare = np.stack([x, y], axis=-1).reshape(-1, 2)
    error = np.linalg.norm(found.inverse_points(bare) - Backwards(WAVES)(bare), axis=1)
    assert error.mean() < 1.2
    first = fit_transform(*points_of(WavyMatcher().match(picture, picture)), (640, 480))
    assert first is not None
    alone = np.linalg.norm(first.transform.inverse_points(bare) - Backwards(WAVES)(bare), axis=1)
    assert alone.mean() > 4


def points_of(matches: Matches) -> tuple[np.ndarray, np.ndarray]:
    return matches.points0, matches.points1

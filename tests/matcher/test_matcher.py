"""Photos in, matches in original pixels out: where they lie, how they move, and what is refused.

What does not depend on training runs on a small untrained network; what does, on the packaged weights.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from PIL import Image

import coam
from coam import samples
from coam.caches import LRUCache
from coam.errors import ConfigError, ImageError, UntrainedWarning
from coam.images import load_image
from coam.matcher import Matcher, load_matcher
from coam.matcher import matcher as matcher_module
from coam.models.registry import ModelFile, build_model
from coam.tensors import pick_device
from coam.types import Matches
from support.match_rules import check_rules, needs_weights

SMALL = {"width": 32, "heads": 2, "rounds": (1, 1), "decoder_widths": (24, 16, 12)}
EVERYTHING = {"min_score": 0.0, "min_distinctiveness": 0.0}  # random weights make no distinct positions

Picture = np.ndarray[Any, np.dtype[np.uint8]]


@pytest.fixture(scope="module")
def untrained() -> ModelFile:
    torch.manual_seed(0)
    return ModelFile(build_model("stacked", SMALL).eval(), "small", "stacked", trained=False)


def small_matcher(file: ModelFile, preset: str = "default", **options: Any) -> Matcher:
    """A matcher whose matches mean nothing but must obey all rules."""
    rules = {"resolution": 96, "looks": "once", **EVERYTHING, **options}
    config = replace(matcher_module.PRESETS[preset], **rules)
    return Matcher(file, config, torch.device("cpu"))


@pytest.fixture(scope="module")
def small(untrained: ModelFile) -> Matcher:
    return small_matcher(untrained)


@pytest.fixture(scope="module")
def trained() -> Matcher:
    return load_matcher(device="cpu", resolution=384, looks="once")


@pytest.fixture(scope="module")
def left() -> Picture:
    return load_image(samples.motorcycle().left).rgb


@pytest.fixture(scope="module")
def yard() -> Picture:
    return load_image(samples.courtyard().image("day_04")).rgb


def noise(height: int, width: int, seed: int = 0) -> Picture:
    small_noise = np.random.default_rng(seed).integers(
        0, 255, (height // 4 + 2, width // 4 + 2, 3), dtype=np.uint8
    )
    return cv2.resize(small_noise, (width, height), interpolation=cv2.INTER_CUBIC)


def network_pixels(matcher: Matcher, picture: Picture) -> float:
    """How many pixels of the photo one pixel of the network's input is."""
    return max(picture.shape[:2]) / matcher.config.resolution


def furthest_from_grid(matches: Matches) -> float:
    """How far, in steps of the grid, refined points lie from the grid positions their ids name."""
    inside = np.clip(matches.grid1.positions(matches.ids1), 0, np.array(matches.size1) - 1)
    return float((np.abs(matches.points1 - inside) / matches.grid1.step).max())


# ---- rules that hold for any weights


@pytest.mark.parametrize(
    ("size0", "size1"),
    [
        ((60, 96), (60, 96)),
        ((97, 131), (64, 200)),
        ((5, 7), (90, 50)),
        ((1, 1), (1, 1)),
        ((3, 300), (300, 3)),
    ],
)
def test_rules_for_photos_of_any_size(small: Matcher, size0: tuple[int, int], size1: tuple[int, int]) -> None:
    matches = small.match(noise(*size0), noise(*size1, seed=1))
    check_rules(matches)
    assert len(matches) > 0
    assert (matches.size0, matches.size1) == (size0[::-1], size1[::-1])
    assert matches.meta["trained"] is False
    # The fine window is five cells of stride 2, the grid's step 4: a refined point stays near its position.
    assert furthest_from_grid(matches) <= 1.5


@pytest.mark.parametrize("refinement", ["none", "quadratic", "paper", "fine"])
@pytest.mark.parametrize("ranking", ["dual_softmax", "paper"])
def test_rules_for_every_ranking_and_refinement(untrained: ModelFile, refinement: str, ranking: str) -> None:
    matcher = small_matcher(untrained, refinement=refinement, ranking=ranking, alignment="none")
    matches = matcher.match(noise(64, 96), noise(80, 60, seed=1))
    check_rules(matches)
    assert len(matches) > 0
    if refinement == "none":
        np.testing.assert_allclose(matches.points1, matches.grid1.positions(matches.ids1), atol=1e-3)


def test_default_grid_is_every_fourth_pixel_of_the_resized_photo(small: Matcher) -> None:
    """480 x 320 at 96 becomes 96 x 64: 24 x 16 cells, 20 original pixels apart."""
    grid = small.match(noise(320, 480), noise(320, 480)).grid0
    assert grid is not None
    assert (grid.columns, grid.rows, grid.step, grid.origin) == (24, 16, (20.0, 20.0), (9.5, 9.5))


def test_limits_on_number_and_score(untrained: ModelFile) -> None:
    a, b = noise(64, 96), noise(64, 96, seed=1)
    every = small_matcher(untrained, crowding=1.0).match(a, b)
    assert len(every) > 20
    few = small_matcher(untrained, crowding=1.0, max_matches=20, refinement="none").match(a, b)
    all_unrefined = small_matcher(untrained, crowding=1.0, refinement="none").match(a, b)
    np.testing.assert_array_equal(few.ids0, all_unrefined.ids0[:20])
    middle = float(np.median(every.scores))
    good = small_matcher(untrained, crowding=1.0, min_score=middle).match(a, b)
    np.testing.assert_array_equal(good.scores, every.scores[every.scores >= middle])


def test_paper_preset_squashes_and_compares_128_x_128(untrained: ModelFile) -> None:
    config = matcher_module.PRESETS["paper"]
    assert (config.resolution, config.squash, config.grid, config.max_matches) == (512, True, 128, 2000)
    assert (config.ranking, config.refinement) == ("paper", "none")
    matcher = small_matcher(untrained, preset="paper", resolution=64)
    dense0, dense1 = matcher.describe(noise(100, 300), noise(300, 100))
    assert dense0.size == dense1.size == (64, 64)
    matches = matcher.match(noise(100, 300), noise(300, 100))
    check_rules(matches)
    assert (matches.grid0.columns, matches.grid0.rows) == (128, 128)
    assert matches.grid0.step == pytest.approx((300 / 128, 100 / 128))
    assert len(matches) <= 2000


def test_published_network_gets_the_published_grid() -> None:
    model = build_model("cdunet", {"encoder": "resnet34", "decoder_widths": (16, 16, 16, 16, 32)}).eval()
    matcher = small_matcher(ModelFile(model, "p", "cdunet", trained=False))
    assert (matcher.config.grid, matcher.config.refinement) == (128, "quadratic")  # it has no fine map
    matches = matcher.match(noise(64, 96), noise(64, 96, seed=1))
    check_rules(matches)
    assert len(matches.grid0) == 128**2


def test_grey_colour_and_every_kind_of_source_agree(small: Matcher, tmp_path: Path) -> None:
    grey = noise(64, 96)[..., 0]
    colour = np.repeat(grey[..., None], 3, axis=2)
    path = tmp_path / "grey.png"
    Image.fromarray(grey).save(path)
    expected = small.match(colour, colour[:, ::-1])
    for source in (
        grey,
        path,
        str(path),
        path.read_bytes(),
        Image.open(path),
        torch.from_numpy(colour).permute(2, 0, 1),
    ):
        found = small.match(source, colour[:, ::-1])
        np.testing.assert_array_equal(found.points1, expected.points1)


def test_the_same_twice(small: Matcher) -> None:
    a, b = noise(64, 96), noise(96, 64, seed=1)
    first, second = small.match(a, b), small.match(a, b)
    np.testing.assert_array_equal(first.points1, second.points1)
    np.testing.assert_array_equal(first.scores, second.scores)


@pytest.mark.parametrize("orientation", [3, 6, 8])
def test_exif_turned_copy_gives_the_points_of_the_upright_one(
    small: Matcher, tmp_path: Path, orientation: int
) -> None:
    upright, other = noise(64, 96), noise(80, 64, seed=1)
    # How far the stored pixels are turned counter-clockwise, so that the viewer's turn makes them upright.
    stored = np.rot90(upright, {3: 2, 6: 1, 8: 3}[orientation])
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(stored)).save(tmp_path / "turned.png", exif=exif)
    expected, found = small.match(upright, other), small.match(tmp_path / "turned.png", other)
    assert found.size0 == (96, 64)
    np.testing.assert_array_equal(found.points0, expected.points0)
    np.testing.assert_array_equal(found.points1, expected.points1)


# ---- given keypoints


def test_given_keypoints_come_back_exactly_and_in_order(small: Matcher) -> None:
    keypoints = np.array([[80.3, 10.7], [0, 0], [95, 63], [12.34567, 50.1], [80.3, 10.7]], dtype=np.float32)
    matches = small.match(noise(64, 96), noise(70, 50, seed=1), keypoints0=keypoints)
    np.testing.assert_array_equal(matches.points0, keypoints)
    np.testing.assert_array_equal(matches.points1[0], matches.points1[4])
    np.testing.assert_array_equal(matches.ids0, np.arange(5))
    assert ((matches.ids1 >= 0) & (matches.ids1 < len(matches.grid1))).all()
    assert (matches.points1 >= 0).all()
    assert (matches.points1 <= (49, 69)).all()
    assert ((matches.scores >= 0) & (matches.scores <= 1)).all()


@pytest.mark.parametrize("refinement", ["fine", "none", "quadratic"])
def test_no_keypoints_no_matches(untrained: ModelFile, refinement: str) -> None:
    matcher = small_matcher(untrained, refinement=refinement)
    assert len(matcher.match(noise(64, 96), noise(64, 96), keypoints0=np.empty((0, 2)))) == 0


# ---- many pairs


def test_match_many_equals_match_and_encodes_each_photo_once(
    untrained: ModelFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = []
    for i in range(4):
        paths.append(tmp_path / f"{i}.png")
        Image.fromarray(noise(64, 96, seed=i)).save(paths[-1])
    pairs = [(a, b) for i, a in enumerate(paths) for b in paths[i + 1 :]]
    matcher = small_matcher(untrained)
    singles = [matcher.match(a, b) for a, b in pairs]
    read: Counter[str] = Counter()
    encoded: Counter[str] = Counter()
    load, encode = matcher_module.load_image, matcher.network.encode

    def counted_load(source: Any) -> Any:
        read[Path(source).name] += 1
        return load(source)

    def counted_encode(tensor: torch.Tensor) -> Any:
        encoded[f"{float(tensor.sum()):.3f}"] += 1
        return encode(tensor)

    monkeypatch.setattr(matcher_module, "load_image", counted_load)
    monkeypatch.setattr(matcher.network, "encode", counted_encode)
    for single, many in zip(singles, matcher.match_many(pairs), strict=True):
        np.testing.assert_array_equal(single.points0, many.points0)
        np.testing.assert_array_equal(single.points1, many.points1)
        np.testing.assert_array_equal(single.scores, many.scores)
    assert read == {f"{i}.png": 1 for i in range(4)}
    assert sorted(encoded.values()) == [1, 1, 1, 1]


def test_match_many_keeps_no_more_than_it_may(untrained: ModelFile, tmp_path: Path) -> None:
    for i in range(4):
        Image.fromarray(noise(64, 96, seed=i)).save(tmp_path / f"{i}.png")
    matcher = small_matcher(untrained, cached_images=2)
    pairs = [(tmp_path / f"{i}.png", tmp_path / f"{j}.png") for i in range(4) for j in range(4) if i < j]
    assert len(list(matcher.match_many(pairs))) == 6
    assert len(matcher._cache) == 2


def test_match_many_is_lazy(small: Matcher) -> None:
    def endless() -> Any:
        while True:
            yield noise(32, 32), noise(32, 32)

    assert isinstance(next(iter(small.match_many(endless()))), Matches)


def test_prepared_photos_serve_in_place_of_photos(small: Matcher) -> None:
    a, b = noise(64, 96), noise(96, 64, seed=1)
    expected, found = small.match(a, b), small.match(small.prepare(a), small.prepare(b))
    np.testing.assert_array_equal(found.points1, expected.points1)


# ---- what the trained model finds


@needs_weights
def test_a_photo_matches_itself(trained: Matcher, yard: Picture, left: Picture) -> None:
    """Seen: median 0.31 and 0.30 pixels of the network's input, which is the grain of its fine map."""
    for picture in (yard, left):
        matches = trained.match(picture, picture)
        check_rules(matches)
        assert len(matches) == 2048
        assert (matches.ids0 == matches.ids1).mean() > 0.99
        error = np.linalg.norm(matches.points1 - matches.points0, axis=1) / network_pixels(trained, picture)
        assert np.median(error) < 0.4
        bias = np.mean(matches.points1 - matches.points0, axis=0) / network_pixels(trained, picture)
        assert np.abs(bias).max() < 0.06  # seen: 0.02


@needs_weights
@pytest.mark.parametrize("shift", [(24, 16), (-37, 51), (4, 0)])
def test_a_shift_moves_the_matches(trained: Matcher, yard: Picture, shift: tuple[int, int]) -> None:
    """Two crops of one photo: what lies at p in the first lies at p - shift in the second. Seen: 1.000."""
    x0, y0 = (max(0, -s) for s in shift)
    x1, y1 = (max(0, s) for s in shift)
    height, width = yard.shape[0] - 64, yard.shape[1] - 64
    matches = trained.match(yard[y0 : y0 + height, x0 : x0 + width], yard[y1 : y1 + height, x1 : x1 + width])
    check_rules(matches)
    error = np.linalg.norm(matches.points1 - (matches.points0 - shift), axis=1)
    assert (error < 3).mean() > 0.95
    assert np.median(error) < 0.9


def mild_homography(width: int, height: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    corners = np.array([[0, 0], [1, 0], [1, 1], [0, 1]])
    moved = np.array([[0.05, 0.03], [0.97, 0.06], [0.93, 0.96], [0.02, 0.94]])
    scale = np.array([width - 1, height - 1])
    return cv2.getPerspectiveTransform(
        (corners * scale).astype(np.float32), (moved * scale).astype(np.float32)
    )


@needs_weights
def test_a_homography_moves_the_matches(trained: Matcher, yard: Picture, left: Picture) -> None:
    """Seen: share within 3 pixels 1.000 for both, within 1 pixel 0.89 and 0.82."""
    for picture in (yard, left):
        height, width = picture.shape[:2]
        homography = mild_homography(width, height)
        matches = trained.match(picture, cv2.warpPerspective(picture, homography, (width, height)))
        check_rules(matches)
        truth = cv2.perspectiveTransform(matches.points0[None].astype(np.float64), homography)[0]
        error = np.linalg.norm(matches.points1 - truth, axis=1)
        assert len(matches) > 1000
        assert (error < 3).mean() > 0.95
        assert (error < 1).mean() > 0.65


def share_within(matches: Matches, pixels: float) -> float:
    """Share of matches of the motorcycle pair, where the truth is known, that are at most `pixels` off."""
    truth, valid = samples.motorcycle().true_points1(matches.points0)
    assert valid.sum() > 300
    return float((np.linalg.norm(matches.points1 - truth, axis=1)[valid] <= pixels).mean())


@needs_weights
def test_real_stereo_pair_at_half_resolution(trained: Matcher) -> None:
    """Seen: 0.96 within 3 pixels."""
    pair = samples.motorcycle()
    matches = trained.match(pair.left, pair.right)
    check_rules(matches)
    assert share_within(matches, 3) > 0.9


@pytest.mark.slow
@needs_weights
def test_real_stereo_pair_with_default_settings() -> None:
    pair = samples.motorcycle()
    matches = coam.match(pair.left, pair.right, device="cpu")
    assert len(matches) == 2048
    assert share_within(matches, 3) > 0.97
    assert share_within(matches, 1) > 0.85


@pytest.mark.slow
@needs_weights
def test_real_stereo_pair_with_the_papers_settings() -> None:
    """Seen: 0.95 within 3 pixels; without refinement a grid of 5.8 x 3.9 pixels allows no more."""
    pair = samples.motorcycle()
    matches = load_matcher(device="cpu", preset="paper").match(pair.left, pair.right)
    check_rules(matches)
    assert len(matches) == 2000
    assert share_within(matches, 3) > 0.85
    assert share_within(matches, 10) > 0.97


@needs_weights
def test_given_keypoints_are_found(trained: Matcher) -> None:
    pair = samples.motorcycle()
    y, x = np.mgrid[60:440:20, 60:680:20]
    keypoints = np.stack([x.ravel(), y.ravel()], axis=1).astype(np.float32)
    truth, valid = pair.true_points1(keypoints)
    matches = trained.match(pair.left, pair.right, keypoints0=keypoints)
    error = np.linalg.norm(matches.points1 - truth, axis=1)[valid]
    assert valid.sum() > 300
    assert (error < 5).mean() > 0.75


# ---- explanations


def test_explanation_maps_sum_to_one_for_any_point(small: Matcher) -> None:
    a, b = noise(64, 96), noise(100, 70, seed=1)
    for point in ((0, 0), (95, 63), (31.5, 20.25)):
        explained = small.explain(a, b, point)
        assert explained.point == point
        assert set(explained.attention) == {"stride 16", "stride 32"}
        for attention in explained.attention.values():
            assert attention.min() >= 0
            assert attention.sum() == pytest.approx(1.0, abs=1e-5)
        assert explained.similarity.shape == explained.distinctiveness1.shape
        assert np.abs(explained.similarity).max() <= 1 + 1e-5
        assert ((explained.distinctiveness0 >= 0) & (explained.distinctiveness0 <= 1)).all()
        assert 0 <= explained.best[0] <= 69
        assert 0 <= explained.best[1] <= 99


@pytest.mark.parametrize("point", [(-1, 5), (96, 5), (5, 64), (float("nan"), 5)])
def test_points_outside_are_refused(small: Matcher, point: tuple[float, float]) -> None:
    with pytest.raises(ImageError, match="outside photo 0, which is 96 x 64"):
        small.explain(noise(64, 96), noise(64, 96), point)


@needs_weights
def test_explanation_looks_at_the_right_place(trained: Matcher) -> None:
    pair = samples.motorcycle()
    for point in ((300.0, 200.0), (420.0, 260.0)):
        (truth,), (valid,) = pair.true_points1([point])
        assert valid
        explained = trained.explain(pair.left, pair.right, point)
        assert np.linalg.norm(np.array(explained.best) - truth) < 4
        rows, columns = explained.similarity.shape
        row, column = np.unravel_index(explained.similarity.argmax(), (rows, columns))
        peak = np.array([(column + 0.5) * 741 / columns - 0.5, (row + 0.5) * 500 / rows - 0.5])
        assert np.linalg.norm(peak - truth) < 16  # two cells of 8 original pixels


# ---- what is refused


def test_unknown_options_name_the_known_ones() -> None:
    with pytest.raises(
        ConfigError, match="the matcher has no option 'resolutoin'; it has resolution, squash"
    ):
        load_matcher(resolutoin=3)
    with pytest.raises(ConfigError, match="there is no preset 'best'; choose one of default, paper"):
        load_matcher(preset="best")
    with pytest.raises(ConfigError, match="there is no model 'superglue'"):
        load_matcher("superglue")


@pytest.mark.parametrize("device", ["gpu", "cpu:x", ""])
def test_unknown_devices(device: str) -> None:
    with pytest.raises(ConfigError) as caught:
        pick_device(device)
    assert str(caught.value) == f"there is no device {device}; choose auto, cpu, cuda, cuda:1 or mps"


@pytest.mark.parametrize("device", ["cuda:99", "xpu"])
def test_impossible_devices(device: str) -> None:
    with pytest.raises(ConfigError, match=r"cannot be used here .*choose cpu or auto") as caught:
        pick_device(device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "pairs", [["a.jpg"], ["ab"], "a.jpg", [("a.jpg", "b.jpg", "c.jpg")], [5], [Path("a")]]
)
def test_match_many_wants_pairs(small: Matcher, pairs: Any) -> None:
    with pytest.raises(ConfigError, match=r"match_many takes pairs of photos, \(a, b\); it was given"):
        list(small.match_many(pairs))


@pytest.mark.parametrize("point", [3, (3,), (1, 2, 3), "ab", None, ("x", 2)])
def test_explain_wants_one_point(small: Matcher, point: Any) -> None:
    with pytest.raises(ConfigError, match=r"point must be two numbers \(x, y\)"):
        small.explain(noise(64, 96), noise(64, 96), point)


def test_every_result_tells_its_looks_and_seconds(small: Matcher) -> None:
    photo = noise(64, 96)
    for matches in (*small.match_many([(photo, photo)] * 2), small.match(photo, photo, [(3, 4)])):
        assert matches.meta["seconds"] > 0
        assert matches.meta["looks"] >= 1
    assert math.isnan(matches.overlap)  # of given keypoints, as docs/formats.md says


def test_devices_that_exist() -> None:
    assert pick_device("cpu") == torch.device("cpu")
    assert pick_device(torch.device("cpu")) == torch.device("cpu")
    assert pick_device("auto").type in ("cpu", "cuda", "mps")


def test_max_keypoints_is_another_name_for_max_matches(untrained: ModelFile) -> None:
    assert load_matcher(device="cpu", max_keypoints=17).config.max_matches == 17


def test_missing_photo(small: Matcher, tmp_path: Path) -> None:
    with pytest.raises(ImageError, match=r"nowhere\.jpg"):
        small.match(tmp_path / "nowhere.jpg", noise(32, 32))


def test_match_loads_the_model_once(monkeypatch: pytest.MonkeyPatch, untrained: ModelFile) -> None:
    loaded = []

    def counted_load(**options: Any) -> Matcher:
        loaded.append(options)
        return small_matcher(untrained, **options)

    monkeypatch.setattr(matcher_module, "load_matcher", counted_load)
    monkeypatch.setattr(matcher_module, "_LOADED", LRUCache(2))
    for max_matches in (10, 10, 20, 10, 30, 10, 20):  # two are kept: 30 drives 20 out, not 10
        assert len(coam.match(noise(64, 96), noise(64, 96, seed=1), max_matches=max_matches)) == max_matches
    assert [options["max_matches"] for options in loaded] == [10, 20, 30, 20]


def test_the_matcher_says_what_it_is(untrained: ModelFile, trained: Matcher) -> None:
    small = small_matcher(untrained, max_matches=7)
    assert repr(small) == "Matcher(small, untrained, cpu, resolution=96, max_matches=7, looks='once')"
    assert repr(trained).startswith("Matcher(cdunet-lite1, cpu, resolution=384, max_matches=2048")


@needs_weights
def test_global_descriptor_tells_places_apart(trained: Matcher) -> None:
    yard = samples.courtyard()
    first, second = (trained.global_descriptor(yard.image(name)) for name in ("day_04", "day_05"))
    elsewhere = trained.global_descriptor(samples.motorcycle().left)
    assert np.linalg.norm(first) == pytest.approx(1.0, abs=1e-5)
    assert float(first @ second) > float(first @ elsewhere) + 0.02


# ---- values that must be refused


@pytest.mark.parametrize(
    "keypoints", [np.zeros((2, 3)), [1, 2, 3], [[np.nan, 1.0]], [[500.0, 3.0]], "abc"], ids=str
)
def test_keypoints_that_are_no_points_of_the_photo(small: Matcher, keypoints: Any) -> None:
    with pytest.raises((ConfigError, ImageError)):
        small.match(noise(64, 96), noise(64, 96), keypoints0=keypoints)


@pytest.mark.parametrize(
    "options",
    [
        {"ranking": "best"},
        {"refinement": "finest"},
        {"grid": 0},
        {"grid": -3},
        {"max_matches": -1},
        {"resolution": "big"},
        {"fine_radius": -1},
        {"cached_images": 0},
    ],
    ids=str,
)
def test_option_values_that_do_not_exist(options: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        load_matcher(device="cpu", **options)


def test_a_photo_that_was_replaced_is_read_again(untrained: ModelFile, tmp_path: Path) -> None:
    matcher, path = small_matcher(untrained), tmp_path / "a.png"
    Image.fromarray(noise(64, 96)).save(path)
    list(matcher.match_many([(path, path)]))
    Image.fromarray(noise(80, 50, seed=1)).save(path)
    (again,) = matcher.match_many([(path, path)])
    assert again.size0 == (50, 80)


# ---- what the overlap says


def test_flat_pictures_are_no_evidence_of_the_same_place() -> None:
    flat = np.full((96, 128, 3), 128, np.uint8)
    matches = load_matcher(device="cpu", resolution=256).match(flat, flat)
    assert len(matches) == 0
    assert matches.overlap == 0.0


def test_few_or_sure_matches_are_chosen_after_the_pair_was_judged() -> None:
    pair = samples.motorcycle()
    matcher = load_matcher(device="cpu", resolution=256)
    everything = matcher.match(pair.left, pair.right)
    sure = int((everything.scores >= 0.8).sum())
    for options, count in (({"max_matches": 5}, 5), ({"min_score": 0.8}, sure), ({"max_matches": 0}, 0)):
        some = matcher.variant(**options).match(pair.left, pair.right)
        assert len(some) == count
        assert some.overlap == everything.overlap
        assert some.meta["looks"] == everything.meta["looks"]
        assert list(some.scores[:1]) == list(everything.scores[: min(1, count)])


def test_a_model_without_weights_warns(recwarn: pytest.WarningsRecorder) -> None:
    with pytest.warns(UntrainedWarning, match="capsnet has no trained weights here"):
        load_matcher("capsnet", device="cpu")
    recwarn.clear()
    load_matcher(device="cpu")
    assert not [warning for warning in recwarn if issubclass(warning.category, UntrainedWarning)]

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from simple_matchers import CountingMatcher, save, textured

from coam.errors import ConfigError, MissingExtraError, WeightsError
from coam.evaluation.baselines import FeatureMatcher, Features, two_nearest
from coam.evaluation.hpatches import load_hpatches, score_hpatches
from coam.evaluation.matchers import find_matcher, spec_of, timed_matches
from coam.evaluation.peers import PEERS, LightGlueOnAliked, LoftrMatcher, disk_detector, xfeat_detector
from coam.types import Matches


def test_two_nearest_by_hand() -> None:
    target = np.array([[0, 0], [10, 0], [0, 3]], np.float32)
    index, distance = two_nearest(np.array([[1, 0], [9, 0], [0, 3]], np.float32), target, chunk=2)
    assert index.tolist() == [0, 1, 2]
    np.testing.assert_allclose(distance, [[1, np.sqrt(10)], [1, 9], [0, 3]], rtol=1e-5)


def features(rows: list[list[float]]) -> Features:
    table = np.asarray(rows, np.float32)
    return Features(np.arange(2 * len(rows), dtype=np.float32).reshape(-1, 2), table, (10, 10))


def test_mutual_check_and_ratio_test() -> None:
    first = features([[0, 0], [5, 0], [0.4, 0]])  # rows 0 and 2 want the same partner, 0 is nearer
    second = features([[0, 0.1], [5, 0.1], [5, 0.12]])  # row 1 of `first` has two nearly equal partners
    matcher = FeatureMatcher(lambda path: first, ratio=0.8)
    matches = matcher.match(first, second)
    assert matches.points0.tolist() == [[0, 1]]
    assert matches.points1.tolist() == [[0, 1]]
    assert matches.scores[0] == pytest.approx(1 - 0.1 / np.sqrt(25 + 0.0144), abs=1e-3)
    without_ratio = FeatureMatcher(lambda path: first, ratio=None).match(first, second)
    assert len(without_ratio) == 2


@pytest.mark.parametrize("name", ["sift", "rootsift", "orb"])
def test_baselines_find_a_known_shift(hpatches_root: Path, name: str) -> None:
    pair = load_hpatches(hpatches_root)[-1]
    (matches,) = find_matcher(name).create().match_many([(pair.image0, pair.image1)])
    assert len(matches) >= 8
    assert score_hpatches(pair, matches)["mma@3"] > 0.9
    assert matches.size0 == (160, 120)
    assert (np.diff(matches.scores) <= 0).all()


@pytest.mark.parametrize("name", ["sift", "orb"])
def test_a_blank_photo_has_no_matches(tmp_path: Path, name: str) -> None:
    save(tmp_path / "blank.png", np.full((60, 80, 3), 128, np.uint8))
    save(tmp_path / "full.png", textured())
    pairs = [
        (tmp_path / "blank.png", tmp_path / "full.png"),
        (tmp_path / "blank.png", tmp_path / "blank.png"),
    ]
    for matches in find_matcher(name).create().match_many(pairs):
        assert len(matches) == 0
        assert matches.points0.shape == (0, 2)


def test_baselines_describe_each_photo_once(hpatches_root: Path) -> None:
    matcher = find_matcher("sift").create()
    detected: list[Path] = []
    detect = matcher.detect
    matcher.detect = lambda path: (detected.append(path), detect(path))[1]
    pairs = load_hpatches(hpatches_root)
    assert len(list(matcher.match_many((p.image0, p.image1) for p in pairs))) == 7
    assert len(detected) == len(set(detected)) == 9


def test_settings_are_part_of_the_identity() -> None:
    first, second = find_matcher("sift"), find_matcher("sift", max_matches=500)
    assert first.identity != second.identity
    assert second.config == {"max_keypoints": 500, "ratio": 0.8, "mutual": True}


def test_options_that_do_not_exist_are_refused() -> None:
    with pytest.raises(ConfigError, match="sift has no option 'resolution'"):
        find_matcher("sift", resolution=512)


def test_an_unknown_name_lists_what_there_is() -> None:
    with pytest.raises(ConfigError, match="cdunet-lite1"):
        find_matcher("superglue")


def test_our_matcher_carries_settings_and_hash() -> None:
    spec = find_matcher("cdunet-lite1", device="cpu", resolution=128)
    assert spec.config["resolution"] == 128
    assert spec.config["device"] == "cpu"
    assert len(spec.model_hash) == 64
    assert "cached_images" not in spec.config


def test_your_own_function_can_be_plugged_in(hpatches_root: Path) -> None:
    spec = find_matcher("simple_matchers:plugged_in")
    pair = load_hpatches(hpatches_root)[0]
    (matches,) = spec.create().match_many([(pair.image0, pair.image1)])
    assert len(matches) == 50
    assert len(spec.config["source_sha256"]) == 64  # another version of the file is another matcher


def test_your_own_class_can_be_plugged_in() -> None:
    assert isinstance(find_matcher("simple_matchers:CountingMatcher").create(), CountingMatcher)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package:f", "cannot import no_such_package"),
        ("simple_matchers:nothing", "has no 'nothing'"),
        ("json:dumps", "takes 1 arguments"),
    ],
)
def test_plug_in_mistakes(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        find_matcher(name).create()


def test_a_matcher_that_returns_something_else_is_refused() -> None:
    spec = spec_of(lambda a, b: [1, 2, 3], "mine")
    with pytest.raises(ConfigError, match=r"mine returned a list; it must return coam.Matches"):
        list(timed_matches(spec.create(), [(Path("a"), Path("b"))], "mine"))


def test_time_is_kept() -> None:
    (matches,) = timed_matches(spec_of(_empty).create(), [(Path("a"), Path("b"))], "mine")
    assert matches.meta["seconds"] >= 0


def _empty(path0: Path, path1: Path) -> Matches:
    none = np.zeros(0, np.int64)
    points = np.zeros((0, 2), np.float32)
    return Matches(points, points, np.zeros(0, np.float32), none, none, (1, 1), (1, 1))


@pytest.mark.parametrize("name", sorted(PEERS))
def test_peers_never_download(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kornia")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(WeightsError, match=r"coam downloads nothing: get it from github.com"):
        find_matcher(name)


def test_without_kornia_the_extra_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(MissingExtraError, match=r"coam\[peers\]"):
        find_matcher("xfeat")
    assert 'peers = ["kornia' in (Path(__file__).parents[2] / "pyproject.toml").read_text()


def test_peers_run_on_random_weights(hpatches_root: Path) -> None:
    """The plumbing (sizes, pixel frames, order) with networks that know nothing: weights are not here."""
    feature = pytest.importorskip("kornia.feature")
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    pair = load_hpatches(hpatches_root)[-1]
    matchers = [
        FeatureMatcher(disk_detector(feature.DISK().eval(), cpu, 64), ratio=None),
        FeatureMatcher(
            xfeat_detector(feature.XFeat(top_k=64, detection_threshold=0.0).eval(), cpu), ratio=None
        ),
        LightGlueOnAliked(
            feature.ALIKED("aliked-n16", max_num_keypoints=32, detection_threshold=0.0).eval(),
            feature.LightGlue(None, input_dim=128, filter_threshold=0.0).eval(),
            cpu,
        ),
        LoftrMatcher(feature.LoFTR(None).eval(), cpu, 100, long_side=160),
    ]
    for matcher in matchers:
        (matches,) = matcher.match_many([(pair.image0, pair.image1)])
        assert matches.size0 == (160, 120)
        assert matches.points0.shape == matches.points1.shape == (len(matches.scores), 2)
        assert (np.diff(matches.scores) <= 0).all()
        if len(matches):
            assert matches.points0.min() >= -0.5
            assert (matches.points0.max(axis=0) <= [160, 120]).all()


def test_our_matcher_encodes_each_photo_once(hpatches_root: Path, tmp_path: Path) -> None:
    from coam.evaluation.predictions import PredictionStore, predict

    spec = find_matcher("cdunet-lite1", device="cpu", resolution=96)
    matcher = spec.create()
    encoded: list[object] = []
    prepare = matcher.prepare
    matcher.prepare = lambda source: (encoded.append(source), prepare(source))[1]
    pairs = load_hpatches(hpatches_root)
    counting = spec_of(matcher, "counting")
    assert predict(pairs, counting, PredictionStore(tmp_path / "out", counting.identity)) == 7
    assert len(encoded) == len(set(encoded)) == 9

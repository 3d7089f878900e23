from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import ConfigError
from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.matchers.by_name import find_matcher, spec_of, timed_matches
from coam.types import Matches
from support.simple_matchers import CountingMatcher, matches_of


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
    spec = find_matcher("support.simple_matchers:plugged_in")
    pair = load_hpatches(hpatches_root)[0]
    (matches,) = spec.create().match_many([(pair.image0, pair.image1)])
    assert len(matches) == 50
    assert len(spec.config["source_sha256"]) == 64  # another version of the file is another matcher


def test_your_own_class_can_be_plugged_in() -> None:
    assert isinstance(find_matcher("support.simple_matchers:CountingMatcher").create(), CountingMatcher)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("no_such_package:f", "cannot import no_such_package"),
        ("support.simple_matchers:nothing", "has no 'nothing'"),
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
    return matches_of(np.zeros((0, 2)), np.zeros((0, 2)), (1, 1))


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

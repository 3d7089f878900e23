"""coam as a matcher of vismatch: the real package where it can be imported, else its published interface."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import coam
from coam import samples
from coam.images import load_image
from support.vismatch_interface import module

OPTIONS = {"resolution": 320, "looks": "once"}


@pytest.fixture
def vismatch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    try:
        package = importlib.import_module("vismatch")
    except Exception:  # not installed, or without a torchvision that fits
        package = module()
        monkeypatch.setitem(sys.modules, "vismatch", package)
    monkeypatch.delitem(sys.modules, "coam.plugins.vismatch", raising=False)
    monkeypatch.setattr(package, "get_matcher", package.get_matcher)  # put back what `register` replaces
    monkeypatch.setattr(package, "available_models", list(package.available_models))
    yield package
    sys.modules.pop("coam.plugins.vismatch", None)


def test_a_registered_matcher_gives_what_coam_gives(vismatch: Any) -> None:
    plugin = importlib.import_module("coam.plugins.vismatch")
    plugin.register()
    plugin.register()  # a second time changes nothing
    assert vismatch.available_models.count("coam") == 1
    matcher = vismatch.get_matcher("coam", device="cpu", max_num_keypoints=500, **OPTIONS)
    assert isinstance(matcher, vismatch.BaseMatcher)
    yard = samples.courtyard()
    paths = [yard.image(name) for name in ("day_04", "day_05")]
    ours = coam.match(*paths, device="cpu", max_matches=500, **OPTIONS)
    found = matcher(*paths)
    np.testing.assert_array_equal(found["matched_kpts0"], ours.points0)
    np.testing.assert_array_equal(found["matched_kpts1"], ours.points1)
    np.testing.assert_array_equal(found["matched_confidences"], ours.scores)
    assert len(found["matched_kpts0"]) == 500
    assert found["all_desc0"].shape[0] == 0
    with pytest.raises(Exception, match="no-such-matcher"):
        vismatch.get_matcher("no-such-matcher")  # others still go to vismatch


def test_tensors_and_a_known_homography(vismatch: Any) -> None:
    """The lower right of a photo against the whole, by tensors: a shift by (48, 32)."""
    plugin = importlib.import_module("coam.plugins.vismatch")
    rgb = load_image(samples.courtyard().image("day_04")).rgb
    whole = torch.from_numpy(rgb).permute(2, 0, 1).float() / 255
    part = whole[:, 32:, 48:] * 1.0004  # a little above one, as bicubic resizing leaves it
    found = plugin.CoamMatcher("cpu", **OPTIONS)(whole, part)
    assert found["num_inliers"] > 500
    x, y, w = found["H"] @ (320.0, 240.0, 1.0)
    assert np.hypot(x / w - 272, y / w - 208) < 0.5  # pixels


def test_the_file_works_when_it_is_copied(vismatch: Any, tmp_path: Path) -> None:
    source = importlib.import_module("coam.plugins.vismatch").__file__
    shutil.copy(source, tmp_path / "copied_matcher.py")
    sys.path.insert(0, str(tmp_path))
    try:
        copied = importlib.import_module("copied_matcher")
        assert copied.CoamMatcher("cpu", **OPTIONS).matcher.config.resolution == 320
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("copied_matcher", None)

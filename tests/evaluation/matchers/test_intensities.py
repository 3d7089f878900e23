"""Registration by intensities: motions made by hand come back."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest

from coam.errors import ConfigError
from coam.evaluation.matchers.by_name import find_matcher
from coam.geometry.homography import apply_homography
from coam.images import load_image
from coam.samples import motorcycle
from support.simple_matchers import save

NEEDS = {"phase-correlation": "skimage", "ecc": "cv2", "mutual-information": "SimpleITK"}
MADE = np.array([[1.04, -0.06, 7.0], [0.06, 1.04, -5.0], [0, 0, 1]])


@pytest.mark.parametrize(
    ("name", "within"), [("phase-correlation", 1.0), ("ecc", 0.5), ("mutual-information", 4.0)]
)
def test_a_made_motion_comes_back(tmp_path: Path, name: str, within: float) -> None:
    pytest.importorskip(NEEDS[name])
    photo = cv2.resize(load_image(motorcycle().left).rgb, (320, 240), interpolation=cv2.INTER_AREA)
    moved = cv2.warpPerspective(photo, MADE, (320, 240), borderMode=cv2.BORDER_REFLECT)
    save(tmp_path / "a.png", photo)
    save(tmp_path / "b.png", moved)
    (found,) = find_matcher(name).create().match_many([(tmp_path / "a.png", tmp_path / "b.png")])
    assert 200 < len(found) <= 400
    error = np.linalg.norm(apply_homography(MADE, found.points0) - found.points1, axis=1)
    assert error.mean() < within


def test_they_take_no_options() -> None:
    with pytest.raises(ConfigError, match="takes no options"):
        find_matcher("ecc", resolution=500)

"""coam as a matcher of hloc: found when registered or copied, dense in original pixels, sparse by indices."""

from __future__ import annotations

import importlib
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cv2
import h5py
import numpy as np
import pytest

import coam
from coam import samples
from coam.geometry.epipolar import epipolar_distances, fundamental_from_pose
from coam.images import load_image
from support.hloc_interface import load_matcher, match_dense, match_sparse, write_package

QUICK = {"resolution": 320, "device": "cpu"}
YARD = samples.courtyard()


@pytest.fixture
def matchers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """hloc's folder of matchers, with hloc importable."""
    folder = write_package(tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    forget()
    yield folder
    forget()


def forget() -> None:
    for name in [name for name in sys.modules if name.split(".")[0] == "hloc" or name == "coam.plugins.hloc"]:
        del sys.modules[name]


def plugin() -> Any:
    return importlib.import_module("coam.plugins.hloc")


def distances_to_epipolar_lines(view0: str, view1: str, points0: Any, points1: Any) -> np.ndarray:
    """Pixels between points of view 1 and the epipolar lines of their partners, by the true cameras."""
    pose0, pose1 = YARD.pose(view0), YARD.pose(view1)
    rotation = pose1.rotation @ pose0.rotation.T
    translation = pose1.translation - rotation @ pose0.translation
    cameras = [YARD.camera(view) for view in (view0, view1)]
    matrices = [np.diag([*camera.focal, 1.0]) for camera in cameras]
    for matrix, camera in zip(matrices, cameras, strict=True):
        matrix[:2, 2] = camera.principal
    fundamental = fundamental_from_pose(*matrices, np.c_[rotation, translation])
    return epipolar_distances(points0, points1, fundamental)[1]


def test_it_is_found_when_registered_and_when_copied(matchers: Path) -> None:
    module = plugin()
    with pytest.raises(ImportError):
        load_matcher({"name": "coam", **QUICK})
    module.register()
    module.register()
    assert load_matcher({"name": "coam", **QUICK}).matcher.config.resolution == 320
    shutil.copy(module.__file__, matchers / "mine.py")
    importlib.invalidate_caches()
    found = load_matcher({"name": "mine", **QUICK, "max_matches": 99})
    assert found.matcher.config.max_matches == 99


def test_dense_matches_are_right_in_original_pixels(matchers: Path) -> None:
    module = plugin()
    module.register()
    conf = {**module.DENSE, "model": {**module.DENSE["model"], **QUICK}}
    points0, points1, scores = match_dense(conf, YARD.image("day_04"), YARD.image("day_05"))
    assert points0.shape == points1.shape == (len(scores), 2)
    assert len(scores) > 1000
    assert points0.max() > 480  # original pixels: the photos are 640 wide and were matched at 320
    errors = distances_to_epipolar_lines("day_04", "day_05", points0, points1)
    ours = coam.match(YARD.image("day_04"), YARD.image("day_05"), looks="once", max_matches=4096, **QUICK)
    assert abs(len(ours) - len(scores)) < 0.02 * len(ours)  # only rounding of pixels lies between
    expected = distances_to_epipolar_lines("day_04", "day_05", ours.points0, ours.points1)
    assert abs(np.median(errors) - np.median(expected)) < 0.05
    assert np.median(errors[:1000]) < 0.6


def test_sparse_matches_of_another_detector(matchers: Path, tmp_path: Path) -> None:
    """SIFT keypoints of two views; the true cameras say which matches are right."""
    module = plugin()
    module.register()
    features = tmp_path / "features.h5"
    points: dict[str, np.ndarray] = {}
    with h5py.File(features, "w") as file:
        for view in ("day_04", "day_05"):
            rgb = load_image(YARD.image(view)).rgb
            found = cv2.SIFT.create(nfeatures=1000).detect(np.ascontiguousarray(rgb), None)
            points[view] = np.unique(np.float32([keypoint.pt for keypoint in found]), axis=0)
            group = file.create_group(f"{view}.jpg")
            group["keypoints"] = points[view]
            group["image_size"] = np.array(rgb.shape[1::-1])
    conf = {**module.SPARSE, "model": {**module.SPARSE["model"], **QUICK}}
    with pytest.raises(KeyError, match="add_photos"):
        match_sparse(conf, features, "day_04.jpg", "day_05.jpg")
    assert module.add_photos(features, YARD.image_dir, long_side=480) == 2
    assert module.add_photos(features, YARD.image_dir) == 0  # they are there
    matches, scores = match_sparse(conf, features, "day_04.jpg", "day_05.jpg")
    assert matches.shape == scores.shape == (len(points["day_04"]),)
    row = np.flatnonzero(matches >= 0)
    assert len(row) > 250
    assert len(set(matches[row])) == len(row)  # one to one
    assert (scores[row] > 0).all()
    assert (scores[matches < 0] == 0).all()
    best = row[np.argsort(-scores[row])][:200]
    errors = distances_to_epipolar_lines(
        "day_04", "day_05", points["day_04"][best], points["day_05"][matches[best]]
    )
    assert (errors < 3).mean() > 0.8

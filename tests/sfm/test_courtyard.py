"""The bundled courtyard: a reduced set with SIFT on a grid, all of it with the shipped model (minutes)."""

from __future__ import annotations

import shutil

import numpy as np
import pytest

from coam.errors import CoamError
from coam.geometry.alignment import pose_errors
from coam.sfm.cameras import CameraChoice, camera_spec
from coam.sfm.colmap_model import model_poses
from coam.sfm.localization.localize import localize
from coam.sfm.pipeline import run_sfm
from coam.sfm.workspace import SfmOptions, load_model
from support.sift_grid import SiftGridMatcher


@pytest.fixture(scope="module")
def yard():
    samples = pytest.importorskip("coam.samples")
    try:
        yard = samples.courtyard()
    except CoamError as error:
        pytest.skip(str(error))
    if not yard.names:
        pytest.skip("the courtyard is not rendered yet")
    return yard


@pytest.fixture(scope="module")
def shipped():
    from coam.matcher import load_matcher

    try:
        matcher = load_matcher(max_matches=4096, resolution=640)  # the size of the pictures
    except CoamError as error:
        pytest.skip(str(error))
    if not matcher.file.trained:
        pytest.skip("no trained weights in this installation")
    return matcher


@pytest.fixture(scope="module")
def poses(yard):
    truth = {}
    for name in yard.names:
        pose = yard.pose(name)
        truth[yard.image(name).name] = (np.asarray(pose.rotation, float), np.asarray(pose.translation, float))
    return truth


def copy(paths, folder):
    folder.mkdir()
    for path in paths:
        shutil.copy(path, folder / path.name)
    return folder


def scene_size(yard):
    """Diagonal of the box around the middle 90 % of the surface points, metres."""
    low, high = np.percentile(yard.points, [5, 95], axis=0)
    return float(np.linalg.norm(high - low))


@pytest.mark.slow
def test_all_sixteen_are_registered_where_they_are(yard, shipped, poses, tmp_path):
    photos = copy([*yard.day, *yard.night], tmp_path / "photos")
    options = SfmOptions(cameras=CameraChoice(sharing="all"))
    summary = run_sfm(photos, tmp_path / "model", shipped, options)
    assert summary["registered_images"] == 16, summary["not_registered"]
    assert summary["mean_reprojection_error"] < 1.0
    errors = pose_errors(model_poses(load_model(tmp_path / "model")[0]), poses, scene_size(yard))
    assert np.median(errors.position) < 0.01 * errors.scene_size
    assert np.median(errors.rotation) < 0.5
    assert len(errors.correct(0.05, 5.0)) == 16  # none wrong


@pytest.mark.slow
def test_night_views_are_located_in_the_day_model(yard, shipped, poses, tmp_path):
    options = SfmOptions(cameras=CameraChoice(sharing="all"))
    run_sfm(copy(yard.day, tmp_path / "day"), tmp_path / "model", shipped, options)
    located = localize(tmp_path / "model", copy(yard.night, tmp_path / "night"), shipped)
    assert [location.reason for location in located] == [""] * 4
    model = model_poses(load_model(tmp_path / "model")[0])
    found = {location.name: location.pose for location in located}
    errors = pose_errors({**model, **found}, poses, scene_size(yard))
    night = [errors.names.index(name) for name in found]
    assert errors.position[night].max() < 0.02 * errors.scene_size
    assert errors.rotation[night].max() < 2.0


def test_reduced_set_with_sift_on_a_grid(yard, poses, tmp_path):
    """Five day views and two night queries: real pictures through every stage but the network."""
    matcher = SiftGridMatcher(features=2500)
    photos = copy(yard.day[3:8], tmp_path / "day")
    summary = run_sfm(photos, tmp_path / "model", matcher)
    assert summary["registered_images"] == 5
    assert summary["mean_reprojection_error"] < 0.5  # the grid step is 4 pixels
    model, _ = load_model(tmp_path / "model")
    size = scene_size(yard)
    errors = pose_errors(model_poses(model), poses, size)
    assert errors.position.max() < 0.01 * size
    assert errors.rotation.max() < 0.5
    # SIFT finds few matches between day and night: 28 do not fix a focal length as well, 39 do
    camera = {"*": camera_spec(next(iter(model.cameras.values())))}
    for night, given, most in ((yard.night[1], camera, 0.005), (yard.night[2], None, 0.02)):
        location = localize(tmp_path / "model", night, matcher, given)[0]
        assert location.reason == ""
        errors = pose_errors({**model_poses(model), location.name: location.pose}, poses, size)
        assert errors.position[errors.names.index(location.name)] < most * size


@pytest.mark.slow
def test_photos_of_other_places_stay_out(yard, poses, tmp_path):
    """Six views of the courtyard, and the real photos of the other samples: two of each place."""
    from coam.matcher import load_matcher
    from coam.samples import box, motorcycle, town

    others = [*town(), *box(), motorcycle().left, motorcycle().right]
    photos = copy(yard.day[:6], tmp_path / "photos")
    for path in others:
        shutil.copy(path, photos / f"{path.parent.name}_{path.name}")
    matcher = load_matcher(max_matches=4096, resolution=448)
    options = SfmOptions(orientation="as-is", tracks="merged")
    summary = run_sfm(photos, tmp_path / "model", matcher, options)
    assert summary["registered"] == sorted(path.name for path in yard.day[:6])
    assert len(summary["models"]) == 1
    assert len(summary["not_registered"]) == len(others)

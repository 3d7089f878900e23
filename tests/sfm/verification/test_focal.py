"""Focal length estimation from pairs of one camera."""

from __future__ import annotations

import copy

import numpy as np
import pytest

from coam.geometry.pose import rotation_angle
from coam.sfm.cameras import CameraChoice, camera_from_spec, make_cameras
from coam.sfm.photos import read_photo_folder
from coam.sfm.verification.focal import FocalOptions, agreed_focal, calibrate
from coam.sfm.verification.two_view import verify_pairs
from coam.store.journal import PairJournal
from support.toy_scene import Scene


def test_focal_length_nobody_told(built, photos, tmp_path):
    """The guess is 480, the truth 380; with the estimate, rotations of pairs are right to a degree."""
    scene = Scene(count=7, size=(400, 304), focal=380.0)
    folder = read_photo_folder(photos)
    cameras = make_cameras(folder.photos, CameraChoice())
    (camera,) = cameras.cameras
    assert camera.mean_focal_length() == pytest.approx(480)
    verified = verify_pairs(PairJournal(built[0] / "matches.h5"), cameras.by_name, tmp_path / "v.h5")
    verified, good = calibrate(verified, cameras.by_name, FocalOptions())
    assert good
    assert camera.mean_focal_length() == pytest.approx(380, rel=0.03)
    for (first, second), geometry in verified.geometries.items():
        a, b = scene.names.index(first), scene.names.index(second)
        assert rotation_angle((scene.rotations[b] @ scene.rotations[a].T).T @ geometry.rotation) < 1.5


def test_a_camera_that_no_pair_tells_of_keeps_its_guess_and_does_not_stop_the_others(built, photos, tmp_path):
    """The first photo has a camera of its own: no pair shares it."""
    folder = read_photo_folder(photos)
    choice = make_cameras(folder.photos, CameraChoice())
    (shared,) = choice.cameras
    first, *others = sorted(choice.by_name)
    alone = copy.deepcopy(shared)
    cameras = {first: alone, **dict.fromkeys(others, shared)}
    verified = verify_pairs(PairJournal(built[0] / "matches.h5"), cameras, tmp_path / "v.h5")
    _, good = calibrate(verified, cameras, FocalOptions())
    assert not good
    assert alone.mean_focal_length() == pytest.approx(480)
    assert shared.mean_focal_length() == pytest.approx(380, rel=0.03)


def test_scattered_focal_lengths_are_not_believed():
    camera = camera_from_spec("SIMPLE_PINHOLE 800 600 960 400 300")

    def agreed(focals):
        return agreed_focal(np.stack([focals, np.ones(len(focals))], axis=1), camera, FocalOptions())

    assert agreed(np.linspace(690, 710, 9)) == pytest.approx(700)
    assert agreed(np.linspace(690, 710, 4)) is None  # too few
    assert agreed(np.geomspace(250, 3000, 9)) is None  # too far apart
    assert agreed(np.full(9, 90.0)) is None  # no camera has that

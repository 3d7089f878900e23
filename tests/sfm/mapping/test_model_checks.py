"""Consistency of a model with its verified pairs."""

from __future__ import annotations

import numpy as np

from coam.sfm.colmap_model import model_poses
from coam.sfm.mapping.mapper import deregister
from coam.sfm.mapping.model_checks import (
    contradicted_photos,
    cut_off,
    folded_parts,
    misplaced_photos,
    model_warnings,
    pair_votes,
    smaller_components,
    weakly_connected,
)
from coam.sfm.mapping.options import CheckOptions
from coam.sfm.verification.rotation_cycles import CycleReport
from coam.sfm.verification.two_view import VerifyOptions, read_verified, verify_pairs
from coam.sfm.workspace import load_model
from coam.store.journal import PairJournal


def votes_of(model, verified):
    return pair_votes(model, verified, VerifyOptions(), CheckOptions())


def turn(model, name, degrees):
    """Turn one registered camera of a model."""
    import pycolmap

    image = next(model.image(i) for i in model.reg_image_ids() if model.image(i).name == name)
    off = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([0.0, np.radians(degrees), 0.0])), np.zeros(3))
    image.frame.set_cam_from_world(image.camera_id, off * image.cam_from_world())


def test_components_but_the_largest():
    pairs = [("a", "b"), ("b", "c"), ("e", "f"), ("x", "a")]
    assert smaller_components(["a", "b", "c", "d", "e", "f"], pairs) == [["e", "f"], ["d"]]
    assert smaller_components([], []) == []


def test_weakly_connected_and_misplaced_photos_are_warned_about(built, tmp_path):
    model, _ = load_model(built[0])
    assert weakly_connected(model, 30) == []
    alone = weakly_connected(model, 10**6)  # no two photos share a million points
    assert alone == [[name] for name in built[1]["registered"][1:]]
    cameras = dict.fromkeys(built[1]["registered"], model.cameras[1])
    verified = verify_pairs(PairJournal(built[0] / "matches.h5"), cameras, tmp_path / "v.h5")
    cycles = CycleReport({("a", "b"): "x"}, (), 0, 0)
    lines = model_warnings(model, verified, cycles, VerifyOptions(), CheckOptions())
    assert lines == ["1 pairs were contradicted or not confirmed by stronger ones and not used: a-b"]
    turn(model, "view03.png", 20)
    assert contradicted_photos(votes_of(model, verified)) == {"view03.png": (4, 4)}
    lines = model_warnings(model, verified, cycles, VerifyOptions(), CheckOptions())
    assert lines[0] == (
        "view03.png: 4 of its 4 verified pairs disagree with its place in the model; likely wrong"
    )


def test_a_misplaced_photo_is_deregistered(built):
    """One of five cameras is turned by 40 degrees: all its pairs vote against it, the others agree."""
    verified = read_verified(PairJournal(built[0] / "matches.h5"), built[0] / "verified.h5")
    model, _ = load_model(built[0])
    assert deregister(model, misplaced_photos(votes_of(model, verified)), 0.5) == []
    turn(model, "view03.png", 40)
    misplaced = misplaced_photos(votes_of(model, verified))
    assert misplaced == ["view03.png"]
    most = [*misplaced, "view00.png", "view01.png"]
    assert deregister(model, most, 0.5) == []  # three of five: nobody knows which part is right
    assert deregister(model, misplaced, 0.5) == ["view03.png"]
    assert sorted(model_poses(model)) == ["view00.png", "view01.png", "view04.png", "view06.png"]


def test_the_parts_of_a_folded_model_are_found():
    """Both halves of a street agree with themselves, a look-alike joins them; the step between says no."""
    street = {("a", "b"): 9.0, ("b", "c"): 8.0, ("a", "c"): 3.0, ("d", "e"): 7.0, ("c", "e"): 0.5}
    assert folded_parts({**street, ("c", "d"): 6.0}) == []
    assert folded_parts({**street, ("c", "d"): -6.0}) == [["d", "e"]]
    assert contradicted_photos({**street, ("c", "d"): -6.0}) == {}  # no photo by itself is in doubt
    assert misplaced_photos({**street, ("c", "d"): -6.0}) == ["d", "e"]
    assert folded_parts({**street, ("c", "d"): -0.4}) == []  # the look-alike is no weaker than what it denies
    assert folded_parts({}) == []


def test_what_only_deregistered_photos_joined_is_cut_off():
    strong = {("a", "b"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "f")}
    assert cut_off(["a", "b", "c", "d", "e", "f"], strong) == []
    assert cut_off(["a", "b", "d", "e", "f"], strong) == ["a", "b"]  # c was taken out
    assert cut_off(["a", "c", "d", "f"], strong) == ["a", "f"]

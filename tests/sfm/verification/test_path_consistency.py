"""Path consistency: look-alike matches contradict stronger pairs; the model of a street of equal houses."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from coam.geometry.alignment import pose_errors
from coam.sfm.cameras import CameraChoice
from coam.sfm.colmap_model import model_poses
from coam.sfm.matching.pair_matches import matches_to_record, record_to_matches
from coam.sfm.pipeline import run_sfm
from coam.sfm.verification.path_consistency import (
    PathConsistencyOptions,
    SpanningForest,
    check_path_consistency,
    transfer_along,
)
from coam.sfm.workspace import SfmOptions, load_model
from coam.types import Grid, Matches
from support.toy_scene import FooledMatcher, Street

GRID = Grid(50, 40, (4.0, 4.0), (8.0, 8.0))
SIZE = (400, 320)


def moved(shift, ids=None, wrong=()):
    """Matches of two photos one of which shows everything `shift` pixels further right; `wrong`: moved on."""
    ids0 = np.arange(len(GRID)) if ids is None else np.asarray(ids)
    points0 = GRID.positions(ids0).astype(np.float32)
    points1 = points0 + np.float32([shift, 0])
    points1[list(wrong)] += [64, 0]
    inside = (points1[:, 0] > 0) & (points1[:, 0] < SIZE[0])
    column = np.clip(np.rint((points1[:, 0] - 4) / 8), 0, 49).astype(int)
    matches = Matches(
        points0, points1, np.full(len(ids0), 0.5, np.float32), ids0, ids0 // 50 * 50 + column, SIZE, SIZE,
        GRID, GRID, overlap=1.0,
    )  # fmt: skip
    return record_to_matches(matches_to_record(matches, "")).select(inside)


def test_the_maximum_spanning_forest_is_made_of_the_strongest_pairs():
    evidence = {("a", "b"): 9.0, ("b", "c"): 8.0, ("a", "c"): 7.0, ("c", "d"): 1.0, ("x", "y"): 0.0}
    forest = SpanningForest(evidence)
    assert forest.pairs == {("a", "b"), ("b", "c"), ("c", "d"), ("x", "y")}
    assert forest.path("a", "d") == ["a", "b", "c", "d"]
    assert forest.path("d", "b") == ["d", "c", "b"]
    assert forest.path("y", "x") == ["y", "x"]
    assert forest.path("a", "x") == forest.path("a", "new") == forest.path("new", "a") == []
    assert SpanningForest({}).pairs == set()


def checked(third, strength=300.0, options=None):
    """What is left of the pair a-c, where a-b and b-c are stronger and move everything by 16 pixels each."""
    pairs = {("a", "b"): moved(16), ("b", "c"): moved(16), ("a", "c"): third}
    evidence = {("a", "b"): 900.0, ("b", "c"): 800.0, ("a", "c"): strength}
    consistent, removed = check_path_consistency(evidence, pairs.__getitem__, options)
    for pair in (("a", "b"), ("b", "c")):  # nothing is stronger than these
        assert len(consistent[pair]) == len(pairs[pair])
    return list(consistent.get(("a", "c"), [])), removed


def test_matches_that_lead_elsewhere_are_removed():
    ids = np.arange(1000, 1040)  # one row, without its last columns: they leave the picture
    assert checked(moved(32, ids)) == (list(range(40)), {})
    # four of forty are wrong: they go, the others stay
    assert checked(moved(32, ids, wrong=range(4))) == (list(range(4, 40)), {})
    # what is off by less than 2 % of the photo (8 pixels) is not wrong
    assert checked(moved(39, ids)) == (list(range(40)), {})
    reason = "40 of 40 matches lead elsewhere over stronger pairs"
    assert checked(moved(41, ids)) == ([], {("a", "c"): reason})


def test_matches_that_no_path_reaches_stay_with_consistent_ones():
    pairs = {("a", "b"): moved(16, range(1000, 1030)), ("b", "c"): moved(16), ("a", "c"): None}
    evidence = {("a", "b"): 900.0, ("b", "c"): 800.0, ("a", "c"): 300.0}
    ids = [*range(1000, 1030), *range(300, 320)]  # nothing in a-b says where the last twenty are
    pairs["a", "c"] = moved(32, ids)
    assert len(check_path_consistency(evidence, pairs.__getitem__)[0]["a", "c"]) == 50
    pairs["a", "c"] = moved(32, ids, wrong=range(8))  # only 22 of 30 agree: the others are not trusted
    consistent, _ = check_path_consistency(evidence, pairs.__getitem__)
    assert list(consistent["a", "c"]) == list(range(8, 30))


@pytest.mark.parametrize(("strength", "stays"), [(210.0, True), (190.0, False)])
def test_a_pair_that_no_path_reaches_must_be_strong(strength, stays):
    """A quarter of the best pair of c (800) is 200: walks that come back to where they began are strong."""
    pairs = {("a", "b"): moved(16, range(100)), ("b", "c"): moved(16, range(500, 600)), ("a", "c"): moved(32)}
    evidence = {("a", "b"): 900.0, ("b", "c"): 800.0, ("a", "c"): strength}
    consistent, removed = check_path_consistency(evidence, pairs.__getitem__)
    assert (("a", "c") in consistent) == stays
    assert removed == ({} if stays else {("a", "c"): "weak, and no path over stronger pairs confirms it"})


UNCONFIRMED = "weak, and no path over stronger pairs confirms it"
ALONE = "too weak to stand alone, and nothing confirms it"


def kept(pairs, evidence):
    consistent, removed = check_path_consistency(evidence, pairs.__getitem__)
    assert consistent.keys() | removed.keys() == evidence.keys()
    return sorted(consistent), removed


def test_pairs_that_the_network_does_not_believe_in_join_no_photo():
    """x is a photo of elsewhere: its pairs with a and b passed verification, and it has no better ones."""
    pairs = {("a", "b"): moved(16), ("a", "x"): moved(16), ("b", "x"): moved(0)}
    evidence = {("a", "b"): 900.0, ("a", "x"): 9.9, ("b", "x"): 4.0}
    unconfirmed = {("a", "x"): UNCONFIRMED, ("b", "x"): UNCONFIRMED}
    assert kept(pairs, evidence) == ([("a", "b")], unconfirmed)


def test_a_pair_that_nothing_confirms_must_be_strong():
    """x is a house front like that of a: nobody else agrees, or only pairs that join no photo themselves."""
    pairs = {("a", "b"): moved(16), ("a", "x"): moved(16), ("b", "x"): moved(0)}
    evidence = {("a", "b"): 900.0, ("a", "x"): 99.0}
    assert kept(pairs, evidence) == ([("a", "b")], {("a", "x"): ALONE})
    assert kept(pairs, evidence | {("b", "x"): 9.0})[1] == {("a", "x"): ALONE, ("b", "x"): ALONE}
    # a second pair of its own that leads to the same place is the evidence; so is more of it in one pair
    assert kept(pairs, evidence | {("b", "x"): 10.0}) == (sorted(pairs), {})
    assert kept(pairs, evidence | {("a", "x"): 100.0, ("b", "x"): 9.0}) == (sorted(pairs), {})
    # one that leads elsewhere is none, nor is one that no path reaches
    elsewhere = pairs | {("b", "x"): moved(64)}
    assert kept(elsewhere, evidence | {("b", "x"): 10.0})[0] == [("a", "b")]
    unreached = {
        ("a", "b"): moved(16),
        ("a", "x"): moved(16, range(100)),
        ("b", "x"): moved(0, range(900, 1000)),
    }
    assert kept(unreached, evidence | {("b", "x"): 50.0}) == (
        [("a", "b")],
        {("a", "x"): ALONE, ("b", "x"): ALONE},
    )


def test_followed_back_where_it_cannot_be_followed_ahead():
    """b-c is known on one side only in the reach of what comes from c."""
    transfers = {}
    transfers["a", "b"] = transfers["b", "c"] = lambda points: (np.zeros(0, int), np.zeros((0, 2)))
    transfers["c", "b"] = transfers["b", "a"] = lambda points: (np.arange(len(points)), points - [16, 0])
    arrived, agrees = transfer_along(
        moved(32, range(1000, 1040)), ["a", "b", "c"], lambda *pair: transfers[pair], PathConsistencyOptions()
    )
    assert arrived.all()
    assert agrees.all()


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    """Only the matcher knows what is to be seen: the photos are grey."""
    scene, folder = Street(), tmp_path_factory.mktemp("street")
    for index, name in enumerate(scene.names):
        Image.new("L", scene.size, 100 + index).save(folder / name)
    return scene, folder


def street_errors(street, output, path_consistency):
    scene, photos = street
    camera = {"*": "SIMPLE_PINHOLE 400 304 300 200 152"}
    options = SfmOptions(
        tracks="merged", path_consistency=path_consistency, cameras=CameraChoice(given=camera)
    )
    summary = run_sfm(photos, output, FooledMatcher(scene, keep=0.4), options)
    truth = {name: (scene.rotations[i], scene.translations[i]) for i, name in enumerate(scene.names)}
    return summary, pose_errors(model_poses(load_model(output)[0]), truth)


def test_a_walk_down_a_street_of_equal_houses(street, tmp_path):
    """From three steps on most matches join houses that only look alike; every camera is in its place."""
    summary, errors = street_errors(street, tmp_path, PathConsistencyOptions())
    assert summary["registered_images"] == 8
    assert errors.correct(max_position=0.02, max_rotation=1.0) == street[0].names


@pytest.mark.slow
def test_the_street_fools_who_checks_no_paths(street, tmp_path):
    """Where every path is believed to agree, cameras are whole houses (three steps) off."""
    believing = PathConsistencyOptions(min_transferred=0, trusted_share=0.0, max_error=9.0, strong_share=0.0)
    _, errors = street_errors(street, tmp_path, believing)
    off = errors.position[errors.position > 1]
    assert len(off) >= 3
    np.testing.assert_allclose(off / 3, np.rint(off / 3), atol=0.05)

"""Look-alike places: what stronger pairs say about the matches of weaker ones, and the model of a street."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from toy_scene import FooledMatcher, Street

from coam.sfm.alignment import model_poses, pose_errors
from coam.sfm.detours import DetourOptions, Forest, check_detours, follow
from coam.sfm.intrinsics import CameraChoice
from coam.sfm.match_pairs import matches_to_record, record_to_matches
from coam.sfm.pipeline import SfmOptions, load_model, run_sfm
from coam.types import Grid, Matches

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


def test_the_forest_is_made_of_the_strongest_pairs():
    evidence = {("a", "b"): 9.0, ("b", "c"): 8.0, ("a", "c"): 7.0, ("c", "d"): 1.0, ("x", "y"): 0.0}
    forest = Forest(evidence)
    assert forest.pairs == {("a", "b"), ("b", "c"), ("c", "d"), ("x", "y")}
    assert forest.path("a", "d") == ["a", "b", "c", "d"]
    assert forest.path("d", "b") == ["d", "c", "b"]
    assert forest.path("y", "x") == ["y", "x"]
    assert Forest({}).pairs == set()


def judged(third, strength=3.0, options=None):
    """What is left of the pair a-c, where a-b and b-c are stronger and move everything by 16 pixels each."""
    pairs = {("a", "b"): moved(16), ("b", "c"): moved(16), ("a", "c"): third}
    evidence = {("a", "b"): 9.0, ("b", "c"): 8.0, ("a", "c"): strength}
    report = check_detours(evidence, pairs.__getitem__, options)
    assert len(report.kept["a", "b"]) == len(pairs["a", "b"])  # nothing is stronger than these
    assert report.matches == sum(map(len, pairs.values())) - sum(map(len, report.kept.values()))
    return report


def test_matches_that_lead_elsewhere_are_taken_out():
    ids = np.arange(1000, 1040)  # one row, without its last columns: they leave the picture
    assert list(judged(moved(32, ids)).kept["a", "c"]) == list(range(40))
    # four of forty are wrong: they go, the others stay
    assert list(judged(moved(32, ids, wrong=range(4))).kept["a", "c"]) == list(range(4, 40))
    # what is off by less than 2 % of the photo (8 pixels) is not wrong
    assert len(judged(moved(39, ids)).kept["a", "c"]) == 40
    report = judged(moved(41, ids))
    assert report.removed == {("a", "c"): "40 of 40 matches lead elsewhere over stronger pairs"}
    assert report.matches == 40


def test_what_no_detour_reaches_stays_with_matches_that_are_right():
    pairs = {("a", "b"): moved(16, range(1000, 1030)), ("b", "c"): moved(16), ("a", "c"): None}
    evidence = {("a", "b"): 9.0, ("b", "c"): 8.0, ("a", "c"): 3.0}
    ids = [*range(1000, 1030), *range(300, 320)]  # nothing in a-b says where the last twenty are
    pairs["a", "c"] = moved(32, ids)
    assert len(check_detours(evidence, pairs.__getitem__).kept["a", "c"]) == 50
    pairs["a", "c"] = moved(32, ids, wrong=range(8))  # only 22 of 30 agree: the others are not trusted
    assert list(check_detours(evidence, pairs.__getitem__).kept["a", "c"]) == list(range(8, 30))


@pytest.mark.parametrize(("strength", "stays"), [(2.1, True), (1.9, False)])
def test_a_pair_that_no_detour_reaches_must_be_strong(strength, stays):
    """A quarter of the best pair of c (8) is 2: walks that come back to where they began are strong."""
    pairs = {("a", "b"): moved(16, range(100)), ("b", "c"): moved(16, range(500, 600)), ("a", "c"): moved(32)}
    evidence = {("a", "b"): 9.0, ("b", "c"): 8.0, ("a", "c"): strength}
    report = check_detours(evidence, pairs.__getitem__)
    assert (("a", "c") in report.kept) == stays
    assert report.removed == ({} if stays else {("a", "c"): "weak, and no detour confirms it"})


def test_followed_back_where_it_cannot_be_followed_ahead():
    """b-c is known on one side only in the reach of what comes from c."""
    steps = {}

    def step(first, second):
        return steps[first, second]

    steps["a", "b"] = steps["b", "c"] = lambda points: (np.zeros(0, int), np.zeros((0, 2)))
    steps["c", "b"] = steps["b", "a"] = lambda points: (np.arange(len(points)), points - [16, 0])
    arrived, agrees = follow(moved(32, range(1000, 1040)), ["a", "b", "c"], step, DetourOptions())
    assert arrived.all()
    assert agrees.all()


@pytest.fixture(scope="module")
def street(tmp_path_factory):
    """Only the matcher knows what is to be seen: the photos are grey."""
    scene, folder = Street(), tmp_path_factory.mktemp("street")
    for index, name in enumerate(scene.names):
        Image.new("L", scene.size, 100 + index).save(folder / name)
    return scene, folder


def street_errors(street, output, detours):
    scene, photos = street
    camera = {"*": "SIMPLE_PINHOLE 400 304 300 200 152"}
    options = SfmOptions(tracks="merged", detours=detours, cameras=CameraChoice(given=camera))
    summary = run_sfm(photos, output, FooledMatcher(scene, keep=0.4), options)
    truth = {name: (scene.rotations[i], scene.translations[i]) for i, name in enumerate(scene.names)}
    return summary, pose_errors(model_poses(load_model(output)[0]), truth)


def test_a_walk_down_a_street_of_equal_houses(street, tmp_path):
    """From three steps on most matches join houses that only look alike; every camera is in its place."""
    summary, errors = street_errors(street, tmp_path, DetourOptions())
    assert summary["registered_images"] == 8
    assert errors.correct(max_position=0.02, max_rotation=1.0) == street[0].names


@pytest.mark.slow
def test_the_street_fools_who_takes_no_detours(street, tmp_path):
    """Where every detour is believed to agree, cameras are whole houses (three steps) off."""
    believing = DetourOptions(few=0, trusted=0.0, max_error=9.0, strong=0.0)
    _, errors = street_errors(street, tmp_path, believing)
    off = errors.position[errors.position > 1]
    assert len(off) >= 3
    np.testing.assert_allclose(off / 3, np.rint(off / 3), atol=0.05)

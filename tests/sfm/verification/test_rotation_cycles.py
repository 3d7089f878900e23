"""Rotation cycle consistency: planted wrong pairs are found."""

from __future__ import annotations

from itertools import combinations

import pytest
from scipy.spatial.transform import Rotation

from coam.geometry.pose import rotation_angle
from coam.sfm.verification.rotation_cycles import check_cycles


def rotations_of(count, seed=0):
    absolute = Rotation.random(count, random_state=seed).as_matrix()
    names = [f"{i}" for i in range(count)]
    return names, {
        (names[a], names[b]): absolute[b] @ absolute[a].T for a, b in combinations(range(count), 2)
    }


def test_cycle_error_by_hand():
    x = Rotation.from_euler("x", 30, degrees=True).as_matrix()

    def closing(third, max_error):
        rotations = {("a", "b"): x, ("b", "c"): x, ("a", "c"): third}
        return check_cycles(rotations, dict.fromkeys(rotations, 9), max_error, min_share=0.0).closing

    assert closing(x @ x, 1e-5) == 1
    assert [closing(x, degrees) for degrees in (29.999, 30.001)] == [0, 1]
    assert rotation_angle(Rotation.from_euler("z", 179.5, degrees=True).as_matrix()) == pytest.approx(179.5)


def test_planted_wrong_pairs_are_found_and_only_they():
    _, rotations = rotations_of(7)
    wrong = [("0", "1"), ("2", "5"), ("3", "6")]
    for number, key in enumerate(wrong):
        rotations[key] = Rotation.from_euler("y", 90 + number, degrees=True).as_matrix() @ rotations[key]
    report = check_cycles(rotations, dict.fromkeys(rotations, 100))
    assert sorted(report.removed) == wrong
    assert report.triangles == report.closing > 15
    assert report.unchecked == ()


def test_the_weakest_pair_of_a_lone_broken_triangle_goes():
    _, rotations = rotations_of(3)
    rotations["0", "2"] = Rotation.from_euler("y", 70, degrees=True).as_matrix() @ rotations["0", "2"]
    report = check_cycles(rotations, {("0", "1"): 300, ("1", "2"): 250, ("0", "2"): 30})
    assert list(report.removed) == [("0", "2")]
    assert report.unchecked == (("0", "1"), ("1", "2"))

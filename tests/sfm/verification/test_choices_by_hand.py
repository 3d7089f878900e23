"""What verification decides from numbers alone: thresholds, strong pairs, medians, cycles by plain loops."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from coam.geometry.pose import rotation_angle
from coam.sfm.cameras import camera_from_spec
from coam.sfm.matching.pair_matches import matches_to_record, record_to_matches
from coam.sfm.verification.focal import FocalOptions, _weighted_quantiles, agreed_focal, calibrate
from coam.sfm.verification.path_consistency import (
    PathConsistencyOptions,
    _consistent_matches,
    strong_pairs,
)
from coam.sfm.verification.rotation_cycles import check_cycles
from coam.sfm.verification.two_view import (
    VerifiedMatches,
    VerifiedPair,
    VerifyOptions,
    chance_inliers,
    narrowness,
    verify_pair,
    verify_with_poses,
)
from coam.store.journal import PairJournal
from coam.types import Grid, Matches
from support.toy_scene import OracleMatcher, Scene


def test_chance_is_at_most_all() -> None:
    assert chance_inliers(7, 1000.0, 40, 30) == 7


def test_narrowness_by_hand() -> None:
    # Around the middle: x is +-3, y is +-1; with n - 1 below, the variances are 12 and 4/3.
    assert narrowness(np.array([[0, 0], [6, 0], [6, 2], [0, 2.0]])) == pytest.approx(np.sqrt(4 / 3))
    assert narrowness(np.array([[0, 0], [1, 1], [2, 2.0]])) == 0.0


def test_how_many_inliers_are_needed_is_said() -> None:
    scene = Scene(count=2, size=(400, 304), focal=380.0)
    found = OracleMatcher(scene, keep=1.0, outliers=0.0).match(*scene.names[:2])
    matches = record_to_matches(matches_to_record(found, ""))
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 380 200 152")
    few = matches.select(np.arange(20))
    # A band of 2 px as long as the diagonal of 502 px: 20 matches hit it .17 times, six times as much is 1.
    band = 2 * 0.0025 * 400 * np.hypot(400, 304) / (400 * 304)
    options = VerifyOptions(chance=6.0)
    reason = verify_pair(few, camera, camera, options).reason
    assert reason == f"20 matches, {20 + 6 * 20 * band:.0f} needed" == "20 matches, 21 needed"
    assert verify_pair(matches, camera, camera, VerifyOptions(min_overlap=0.1)).reason == ""


def test_strong_pairs_by_hand() -> None:
    evidence = {("a", "b"): 10.0, ("b", "c"): 4.0, ("c", "d"): 1.0, ("a", "d"): 2.4}
    # Best of a, b: 10; of c: 4; of d: 2.4. A pair is measured by the smaller best of its two photos.
    assert strong_pairs(evidence, 0.25) == {("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")}
    assert strong_pairs(evidence, 0.5) == {("a", "b"), ("b", "c"), ("a", "d")}
    assert strong_pairs({("a", "b"): 10.0, ("a", "c"): 6.0, ("b", "c"): 3.0}, 0.5) == {
        ("a", "b"), ("a", "c"), ("b", "c"),
    }  # fmt: skip
    assert strong_pairs({("a", "b"): 10.0, ("a", "c"): 6.0, ("b", "c"): 2.9}, 0.5) == {("a", "b"), ("a", "c")}


def test_which_matches_stay_by_hand() -> None:
    options = PathConsistencyOptions(min_transferred=4, trusted_share=0.8)
    arrived = np.array([True] * 10 + [False] * 2)

    def agreeing(count: int) -> np.ndarray:
        return np.arange(12) < count

    stays, reason = _consistent_matches(arrived, agreeing(8), True, options)
    assert (stays.tolist(), reason) == ([True] * 8 + [False] * 2 + [True] * 2, "")  # 8 of 10 are trusted
    stays, reason = _consistent_matches(arrived, agreeing(7), True, options)
    assert (stays.tolist(), reason) == ([True] * 7 + [False] * 5, "")
    _, reason = _consistent_matches(arrived, agreeing(3), True, options)
    assert reason == "7 of 10 matches lead elsewhere over stronger pairs"
    for strong in (True, False):
        stays, reason = _consistent_matches(np.arange(12) < 3, agreeing(3), strong, options)
        assert stays.all()
        assert bool(reason) is not strong
    assert _consistent_matches(np.arange(12) < 4, agreeing(4), False, options)[1] == ""


def test_weighted_quantiles_by_hand() -> None:
    values, weights = np.array([30.0, 10, 20, 40]), np.array([1.0, 5, 3, 1])  # in order: 10 to .5, 20 to .8
    found = _weighted_quantiles(values, weights, (0.25, 0.5, 0.51, 0.8, 0.85, 1.0))
    assert found.tolist() == [10, 10, 20, 20, 30, 40]


def test_focal_lengths_are_weighed_and_must_be_many_and_near() -> None:
    camera = camera_from_spec("SIMPLE_PINHOLE 800 600 960 400 300")

    def agreed(focals: list[float], weights: list[float] | None = None) -> float | None:
        return agreed_focal(
            np.stack([focals, weights or np.ones(len(focals))], axis=1), camera, FocalOptions()
        )

    assert agreed([500, 510, 520, 530, 900], [1, 1, 1, 1, 0.1]) == 520
    assert agreed([500, 510, 520, 530, 540], [1, 1, 1, 1, 9]) == 540
    odd = [239.0, 3201.0, 100.0]  # beyond .3 and 4 long sides of 800 px: 240 to 3200
    assert agreed([500, 505, 510, 515, 520, *odd]) == 510  # 5 of 8 are sensible: more than .6
    assert agreed([500, 505, 510, 515, 520, *odd, 90.0]) is None  # 5 of 9
    assert agreed([241.0, 241, 241, 241, 241]) == 241
    # Quarters at 400 and 700 of a median of 500: exactly .6 of it; 701 is more.
    assert agreed([300, 400, 500, 700, 800]) == 500
    assert agreed([300, 400, 500, 701, 800]) is None


def cycles_by_loops(rotations, inliers, max_error, min_share):
    """The same removals by going over all triangles again after each."""
    names = sorted({name for pair in rotations for name in pair})

    def turn(a, b):
        return rotations[a, b] if (a, b) in rotations else rotations[b, a].T

    triangles = []
    for a, b, c in combinations(names, 3):
        sides = [tuple(sorted(side)) for side in ((a, b), (b, c), (a, c))]
        if all(side in rotations for side in sides):
            closes = rotation_angle(turn(a, c).T @ turn(b, c) @ turn(a, b)) <= max_error
            triangles.append((sides, closes))
    removed = {}
    while True:
        shares = {}
        for pair in sorted(rotations):
            good = total = 0.0
            for sides, closes in triangles:
                if pair in sides:
                    strength = min(inliers[side] for side in sides if side != pair)
                    weight = strength if closes else strength**2 / (strength + inliers[pair])
                    total += weight
                    good += weight * closes
            if total:
                shares[pair] = good / total
        worst = min(shares.values(), default=1.0)
        if worst >= min_share:
            break
        pair = min((p for p in shares if shares[p] == worst), key=inliers.__getitem__)
        own = [closes for sides, closes in triangles if pair in sides]
        removed[pair] = (own.count(False), len(own))
        triangles = [(sides, closes) for sides, closes in triangles if pair not in sides]
    checked = {side for sides, _ in triangles for side in sides}
    unchecked = tuple(pair for pair in sorted(rotations) if pair not in checked and pair not in removed)
    return removed, unchecked, len(triangles), sum(closes for _, closes in triangles)


@pytest.mark.parametrize("seed", range(5))
def test_cycles_by_plain_loops(seed: int) -> None:
    generator = np.random.default_rng(seed)
    absolute = Rotation.random(8, random_state=seed).as_matrix()
    pairs = [pair for pair in combinations(range(8), 2) if generator.random() < 0.8]
    rotations, inliers = {}, {}
    for a, b in pairs:
        noise = Rotation.from_rotvec(np.radians(generator.normal(0, 2, 3))).as_matrix()
        wrong = Rotation.random(random_state=generator.integers(99)).as_matrix()
        name = (str(a), str(b))
        rotations[name] = (wrong if generator.random() < 0.3 else noise) @ absolute[b] @ absolute[a].T
        inliers[name] = int(generator.integers(20, 500))
    report = check_cycles(rotations, inliers, 10.0, 0.4)
    removed, unchecked, triangles, closing = cycles_by_loops(rotations, inliers, 10.0, 0.4)
    assert len(removed) > 1
    numbers = {pair: [int(w) for w in text.split() if w.isdigit()] for pair, text in report.removed.items()}
    assert {pair: (broken, of) for pair, (broken, of, _) in numbers.items()} == removed
    assert report.unchecked == unchecked
    assert (report.triangles, report.closing) == (triangles, closing)


def test_with_known_poses_the_limit_is_in_pixels() -> None:
    """Cameras side by side: matches off their rows, to which both photos give way: 0.0025 of 400 px each."""
    grid = Grid(50, 38, (4.0, 4.0), (8.0, 8.0))
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 400 200 152")
    ids = 50 * 10 + np.arange(10, 22, 2)
    points0 = grid.positions(ids).astype(np.float32)
    off = np.sqrt(2) * np.array([0.0, 0.9, -0.97, 1.03, -1.1, 1.45])
    points1 = (points0 + np.stack([np.full(6, -40.0), off], axis=1)).astype(np.float32)
    found = Matches(
        points0, points1, np.ones(6, np.float32), ids, ids, (400, 304), (400, 304), grid, grid, overlap=1.0
    )
    matches = record_to_matches(matches_to_record(found, ""))
    poses = [(np.eye(3), np.zeros(3)), (np.eye(3), np.array([-1.0, 0, 0]))]
    result = verify_with_poses(matches, (camera, camera), poses, VerifyOptions(min_inliers=1))
    assert result.inliers.tolist() == [0, 1, 2]
    near = verify_with_poses(
        matches,
        (camera, camera),
        [poses[0], (np.eye(3), np.array([-0.5, 0, 0]))],
        VerifyOptions(min_inliers=1),
    )
    assert near.translation.tolist() == result.translation.tolist() == [-1, 0, 0]
    assert near.inliers.tolist() == [0, 1, 2]
    none = verify_with_poses(matches, (camera, camera), poses, VerifyOptions(min_inliers=4))
    assert len(none.inliers) == 0
    assert none.reason == "3 of 6 matches agree with the known poses"


def test_known_focal_lengths_are_left_alone(tmp_path) -> None:
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 380 200 152")
    camera.has_prior_focal_length = True
    given = VerifiedMatches(PairJournal(tmp_path / "m.h5"), {("a", "b"): VerifiedPair(np.arange(30))})
    found, good = calibrate(given, {"a": camera, "b": camera}, FocalOptions())
    assert found is given
    assert good is True
    assert camera.mean_focal_length() == 380

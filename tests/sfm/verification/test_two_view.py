"""Two-view verification: right pairs pass, chance and degenerate ones do not; what is kept and done again."""

from __future__ import annotations

import numpy as np
import pytest

from coam.geometry.pose import rotation_angle
from coam.sfm.cameras import camera_from_spec
from coam.sfm.matching.pair_matches import matches_to_record, record_to_matches
from coam.sfm.verification.two_view import (
    VerifyOptions,
    chance_inliers,
    narrowness,
    usable_matches,
    verify_pair,
    verify_pairs,
    verify_with_poses,
)
from coam.store.journal import PairJournal
from support.toy_scene import OracleMatcher, Scene, Street


def pair(**settings):
    scene = Scene(count=3, size=(400, 304), focal=380.0)
    matches = OracleMatcher(scene, **settings).match("view00.png", "view01.png")
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 380 200 152")
    return scene, record_to_matches(matches_to_record(matches, "")), camera


def test_right_pair_gives_the_true_rotation():
    scene, matches, camera = pair(keep=0.5, outliers=0.3)
    result = verify_pair(matches, camera, camera, VerifyOptions())
    assert len(result.inliers)
    true = scene.rotations[1] @ scene.rotations[0].T
    assert rotation_angle(true.T @ result.rotation) < 0.5
    true_points = scene.project(1, scene.surface(0, matches.points0.astype(float)))
    error = np.linalg.norm(true_points - matches.points1, axis=1)
    assert (error[result.inliers] < 3).mean() > 0.97
    assert len(result.inliers) > 0.9 * (error < 1.0).sum()


def test_random_matches_are_refused_whatever_their_number():
    _, matches, camera = pair(keep=1.0, outliers=1.0)
    assert len(matches) > 500
    result = verify_pair(matches, camera, camera, VerifyOptions())
    assert len(result.inliers) == 0
    assert "needed" in result.reason


def test_pair_score_refuses():
    from dataclasses import replace

    _, matches, camera = pair()
    refused, kept = (
        verify_pair(replace(matches, overlap=overlap), camera, camera, VerifyOptions())
        for overlap in (0.02, float("nan"))
    )
    assert refused.reason == "the pair score is 0.02"
    assert len(refused.inliers) == 0 < len(kept.inliers)


def test_matches_on_one_line_and_at_the_border_are_not_trusted():
    _, matches, camera = pair(keep=1.0, outliers=0.0)
    row = matches.ids0 // matches.grid0.columns
    line = matches.select(np.flatnonzero((row > 17) & (row < 21)))
    strict = VerifyOptions(min_inliers=8, chance=0, min_spread=0.05)
    assert "one line" in verify_pair(line, camera, camera, strict).reason
    inside = matches.select(usable_matches(matches, ("a", "b"), {}, 1.0))
    assert 0 < len(inside) < len(matches)
    assert (inside.points0 > 8).all()
    assert (inside.points0 < np.array([400 - 9, 304 - 9])).all()


def test_narrowness_of_a_slanted_strip():
    along, across = np.linspace(-50, 50, 101), np.tile([-2.0, 2.0], 51)[:101]
    strip = np.stack([along - across, along + across], axis=1) / np.sqrt(2)
    assert narrowness(strip) == pytest.approx(2.0, rel=0.02)


def test_chance():
    # a band 2 x 2 px wide over a diagonal of 500 px in 400 x 300 px
    assert chance_inliers(1000, 2.0, 400, 300) == pytest.approx(1000 * 4 * 500 / 120000)


def test_known_poses_separate_right_from_wrong():
    scene, matches, camera = pair(keep=0.5, outliers=0.4)
    poses = [(scene.rotations[i], scene.translations[i]) for i in range(2)]
    result = verify_with_poses(matches, (camera, camera), poses, VerifyOptions())
    true_points = scene.project(1, scene.surface(0, matches.points0.astype(float)))
    error = np.linalg.norm(true_points - matches.points1, axis=1)
    assert set(np.flatnonzero(error < 0.9)) <= set(result.inliers)
    assert (error[result.inliers] < 5).mean() > 0.95


def test_cheirality_tells_ahead_from_behind():
    """Walking ahead, a camera put a step back instead of ahead has the same epipolar lines."""
    street = Street(count=2, seed=4)
    street.rotations[1], street.translations[1] = street.rotations[0], street.translations[0] - [0.1, 0, 1]
    found = OracleMatcher(street, noise=0.1, outliers=0.0, keep=0.5).match(*street.names)
    matches = record_to_matches(matches_to_record(found, ""))
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 300 200 152")
    start = (street.rotations[0], street.translations[0])
    ahead = (street.rotations[1], street.translations[1])
    behind = (street.rotations[0], street.translations[0] + [0.1, 0, 1])
    right = verify_with_poses(matches, (camera, camera), (start, ahead), VerifyOptions())
    lenient = VerifyOptions(min_inliers=1)
    wrong = verify_with_poses(matches, (camera, camera), (start, behind), lenient)
    assert len(matches) > 250
    assert len(right.inliers) > 0.95 * len(matches)
    assert len(wrong.inliers) < 0.1 * len(matches)  # what moved by less than a pixel may be anywhere


def test_another_prior_or_an_edited_mask_is_verified_again(tmp_path):
    """A known focal length gives a calibrated geometry (COLMAP's kind 2), a guessed one not (3)."""
    scene = Scene(count=3, size=(400, 304), focal=380.0)
    matches = OracleMatcher(scene, keep=0.5).match("view00.png", "view01.png")
    matched = PairJournal(tmp_path / "m.h5")
    pair = ("view00.png", "view01.png")
    matched.append({pair: matches_to_record(matches, "stamp")})
    matched.finish({pair: "stamp"})

    def verify(known=True, masked_columns=0):
        camera = camera_from_spec("SIMPLE_PINHOLE 400 304 380 200 152")
        camera.has_prior_focal_length = known
        mask = np.ones((304, 400), np.bool_)
        mask[:, :masked_columns] = False
        cameras = dict.fromkeys(pair, camera)
        return verify_pairs(matched, cameras, tmp_path / "v.h5", masks={pair[0]: mask}).geometries[pair]

    calibrated, guessed, known_again = verify(), verify(known=False), verify()
    assert (calibrated.config, guessed.config, known_again.config) == (2, 3, 2)
    edited = verify(masked_columns=200)
    assert 0 < len(edited.inliers) < 0.7 * len(calibrated.inliers)
    assert matches.points0[edited.inliers, 0].min() >= 199.5
    before = (tmp_path / "v.h5").read_bytes()
    verify(masked_columns=200)
    assert (tmp_path / "v.h5").read_bytes() == before  # up to date

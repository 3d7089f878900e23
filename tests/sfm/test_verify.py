"""Strict verification, rotation cycles, alignment, cameras."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from scipy.spatial.transform import Rotation
from toy_scene import OracleMatcher, Scene, Street

from coam.errors import ConfigError, DataError
from coam.sfm.alignment import pose_errors, similarity
from coam.sfm.cycles import check_cycles, cycle_error, rotation_angle
from coam.sfm.focal import agreed_focal, estimate_focals, with_calibrated_rotation
from coam.sfm.intrinsics import (
    CameraChoice,
    camera_from_spec,
    looks_like_one_shoot,
    make_cameras,
    read_intrinsics_list,
)
from coam.sfm.journal import PairJournal
from coam.sfm.match_pairs import matches_to_record, record_to_matches
from coam.sfm.photos import Photo, read_photo_folder
from coam.sfm.verify import (
    VerifyOptions,
    chance_inliers,
    inside_border,
    narrowness,
    verify_pair,
    verify_pairs,
    verify_with_poses,
)


def pair(**settings):
    scene = Scene(count=3, size=(400, 304), focal=380.0)
    matches = OracleMatcher(scene, **settings).match("view00.png", "view01.png")
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 380 200 152")
    return scene, record_to_matches(matches_to_record(matches, "")), camera


def test_right_pair_gives_the_true_rotation():
    scene, matches, camera = pair(keep=0.5, outliers=0.3)
    result = verify_pair(matches, camera, camera, VerifyOptions())
    assert result.accepted
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
    assert not result.accepted
    assert "needed" in result.reason


def test_pair_score_refuses():
    from dataclasses import replace

    _, matches, camera = pair()
    assert not verify_pair(replace(matches, overlap=0.02), camera, camera, VerifyOptions()).accepted
    assert verify_pair(replace(matches, overlap=float("nan")), camera, camera, VerifyOptions()).accepted


def test_matches_on_one_line_and_at_the_border_are_not_trusted():
    _, matches, camera = pair(keep=1.0, outliers=0.0)
    row = matches.ids0 // matches.grid0.columns
    line = matches.select(np.flatnonzero((row > 17) & (row < 21)))
    strict = VerifyOptions(min_inliers=8, chance=0, min_spread=0.05)
    assert "one line" in verify_pair(line, camera, camera, strict).reason
    inside = matches.select(np.flatnonzero(inside_border(matches, 1.0)))
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
    result = verify_with_poses(matches, camera, camera, *poses, VerifyOptions())
    true_points = scene.project(1, scene.surface(0, matches.points0.astype(float)))
    error = np.linalg.norm(true_points - matches.points1, axis=1)
    assert set(np.flatnonzero(error < 0.9)) <= set(result.inliers)
    assert (error[result.inliers] < 5).mean() > 0.95


def rotations_of(count, seed=0):
    absolute = Rotation.random(count, random_state=seed).as_matrix()
    names = [f"{i}" for i in range(count)]
    return names, {
        (names[a], names[b]): absolute[b] @ absolute[a].T for a, b in combinations(range(count), 2)
    }


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
        return verify_pairs(matched, cameras, tmp_path / "v.h5", keep={pair[0]: mask})[pair]

    calibrated, guessed, known_again = verify(), verify(known=False), verify()
    assert (calibrated.config, guessed.config, known_again.config) == (2, 3, 2)
    edited = verify(masked_columns=200)
    assert 0 < len(edited.inliers) < 0.7 * len(calibrated.inliers)
    assert matches.points0[edited.inliers, 0].min() >= 199.5
    before = (tmp_path / "v.h5").read_bytes()
    verify(masked_columns=200)
    assert (tmp_path / "v.h5").read_bytes() == before  # up to date


def test_cycle_error_by_hand():
    x = Rotation.from_euler("x", 30, degrees=True).as_matrix()
    assert cycle_error(x, x, x @ x) == pytest.approx(0, abs=1e-5)
    assert cycle_error(x, x, x) == pytest.approx(30)
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


def test_alignment_recovers_a_planted_similarity():
    generator = np.random.default_rng(0)
    source = generator.normal(size=(10, 3))
    turn = Rotation.random(random_state=1).as_matrix()
    scale, rotation, translation = similarity(source, 2.5 * source @ turn.T + [1, 2, 3])
    assert scale == pytest.approx(2.5)
    np.testing.assert_allclose(rotation, turn, atol=1e-9)
    np.testing.assert_allclose(translation, [1, 2, 3], atol=1e-9)


def test_wrong_cameras_do_not_spoil_the_alignment_of_the_others():
    scene = Scene(count=10)
    truth = {name: (scene.rotations[i], scene.translations[i]) for i, name in enumerate(scene.names)}
    turn = Rotation.random(random_state=2).as_matrix()
    model = {}
    for i, name in enumerate(scene.names):  # the same cameras in another world: X' = 0.3 turn X
        rotation = scene.rotations[i] @ turn.T
        model[name] = (rotation, 0.3 * scene.translations[i])
    flip = Rotation.from_euler("y", 100, degrees=True).as_matrix()
    for name in scene.names[:3]:
        model[name] = (model[name][0] @ flip, model[name][1] + [0.5, 0, 1.0])
    errors = pose_errors(model, truth)
    assert errors.correct() == scene.names[3:]
    assert errors.rotation[3:].max() < 1e-6
    assert errors.position[3:].max() < 1e-6


def test_cameras_in_a_row_are_aligned_by_their_own_rotations():
    generator = np.random.default_rng(0)
    truth, model = {}, {}
    turn = Rotation.random(random_state=3).as_matrix()
    for i in range(6):  # centres on a line: they say nothing about the turn around it
        rotation = Rotation.from_euler("y", generator.uniform(-20, 20), degrees=True).as_matrix()
        centre = np.array([float(i), 0.0, 0.0]) + generator.normal(0, 1e-4, 3)
        noisy = centre + generator.normal(0, 1e-3, 3)
        truth[str(i)] = (rotation, -rotation @ centre)
        model[str(i)] = (rotation @ turn.T, -rotation @ noisy)
    assert pose_errors(model, truth).rotation.max() < 0.2


def test_ahead_is_told_from_behind(tmp_path):
    """Walking ahead, a camera put a step back instead of ahead has the same epipolar lines."""
    street = Street(count=2, seed=4)
    street.rotations[1], street.translations[1] = street.rotations[0], street.translations[0] - [0.1, 0, 1]
    found = OracleMatcher(street, noise=0.1, outliers=0.0, keep=0.5).match(*street.names)
    matches = record_to_matches(matches_to_record(found, ""))
    camera = camera_from_spec("SIMPLE_PINHOLE 400 304 300 200 152")
    start = (street.rotations[0], street.translations[0])
    ahead = (street.rotations[1], street.translations[1])
    behind = (street.rotations[0], street.translations[0] + [0.1, 0, 1])
    right = verify_with_poses(matches, camera, camera, start, ahead, VerifyOptions())
    wrong = verify_with_poses(matches, camera, camera, start, behind, VerifyOptions(min_inliers=1))
    assert len(matches) > 250
    assert len(right.inliers) > 0.95 * len(matches)
    assert len(wrong.inliers) < 0.1 * len(matches)  # what moved by less than a pixel may be anywhere


def photo(name, size=(800, 600), focal35=None, camera=None):
    return Photo(name, None, size, name, focal35, camera)


def test_exif_focal_length_in_pixels_of_a_portrait_photo():
    cameras, of = make_cameras([photo("a.jpg", (600, 800), 27.0, "Acme X")], CameraChoice())
    assert cameras[0].mean_focal_length() == pytest.approx(27 / 36 * 800)
    assert cameras[0].has_prior_focal_length
    assert (cameras[0].width, cameras[0].height) == (600, 800)
    assert of == [0]


def test_who_shares_a_camera():
    shoot = [photo(f"IMG_{i:04d}.jpg") for i in range(4)]
    assert make_cameras(shoot, CameraChoice())[1] == [0, 0, 0, 0]
    assert make_cameras(shoot, CameraChoice(sharing="none"))[1] == [0, 1, 2, 3]
    internet = [photo("23423_1.jpg"), photo("98234242.jpg"), photo("abc.jpg")]
    assert make_cameras(internet, CameraChoice())[1] == [0, 1, 2]
    assert make_cameras(internet, CameraChoice(sharing="all"))[1] == [0, 0, 0]
    mixed = [
        photo("1.jpg", focal35=24.0, camera="A"),
        photo("2.jpg", focal35=24.0, camera="A"),
        photo("3.jpg", focal35=50.0, camera="A"),
    ]
    assert make_cameras(mixed, CameraChoice())[1] == [0, 0, 1]
    assert looks_like_one_shoot(["a1.jpg", "a2.jpg", "a9.jpg"])
    assert not looks_like_one_shoot(["a1.jpg", "b2.jpg"])


def test_given_intrinsics(tmp_path):
    listing = tmp_path / "cameras.txt"
    listing.write_text(
        "# comment\nq/1.jpg PINHOLE 800 600 700 710 400 300\n* SIMPLE_RADIAL 800 600 500 400 300 0.1\n"
    )
    given = read_intrinsics_list(listing)
    cameras, of = make_cameras([photo("q/1.jpg"), photo("x.jpg"), photo("y.jpg")], CameraChoice(given=given))
    assert of == [0, 1, 1]
    np.testing.assert_allclose(cameras[0].params, [700, 710, 400, 300])
    np.testing.assert_allclose(cameras[1].params, [500, 400, 300, 0.1])
    with pytest.raises(ConfigError, match="is 640 x 480 pixels but its given camera is 800 x 600"):
        make_cameras([photo("x.jpg", (640, 480))], CameraChoice(given=given))
    listing.write_text("a.jpg PINHOLE 800 600 700\n")
    with pytest.raises(ConfigError, match="PINHOLE has 4 parameters"):
        make_cameras([photo("a.jpg")], CameraChoice(given=read_intrinsics_list(listing)))
    listing.write_text("a.jpg PINOLE 800 600 700\n")
    with pytest.raises(ConfigError, match="line 1: 'PINOLE 800 600 700' is no camera"):
        read_intrinsics_list(listing)
    with pytest.raises(DataError, match="no such file"):
        read_intrinsics_list(tmp_path / "none.txt")


def test_focal_length_nobody_told(built, photos, tmp_path):
    """The guess is 480, the truth 380; with the estimate, rotations of pairs are right to a degree."""
    scene = Scene(count=7, size=(400, 304), focal=380.0)
    folder = read_photo_folder(photos)
    cameras, camera_of = make_cameras(folder.photos, CameraChoice())
    assert cameras[0].mean_focal_length() == pytest.approx(480)
    matched = PairJournal(built[0] / "matches.h5")
    verified = verify_pairs(matched, dict.fromkeys(folder.names, cameras[0]), tmp_path / "v.h5")
    assert estimate_focals(folder.names, matched, verified, cameras, camera_of) == [True]
    assert cameras[0].mean_focal_length() == pytest.approx(380, rel=0.03)
    for (first, second), geometry in verified.items():
        matches = record_to_matches(matched.read((first, second)))
        better = with_calibrated_rotation(geometry, matches, cameras[0], cameras[0])
        a, b = scene.names.index(first), scene.names.index(second)
        assert rotation_angle((scene.rotations[b] @ scene.rotations[a].T).T @ better.rotation) < 1.5


def test_scattered_focal_lengths_are_not_believed():
    camera = camera_from_spec("SIMPLE_PINHOLE 800 600 960 400 300")
    ones = np.ones(9)
    assert agreed_focal(np.linspace(690, 710, 9), ones, camera) == pytest.approx(700)
    assert agreed_focal(np.linspace(690, 710, 4), ones[:4], camera) is None  # too few
    assert agreed_focal(np.geomspace(250, 3000, 9), ones, camera) is None  # too far apart
    assert agreed_focal(np.full(9, 90.0), ones, camera) is None  # no camera has that

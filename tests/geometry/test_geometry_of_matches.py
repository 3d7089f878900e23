"""Homography, F, E and pose of `Matches`: on bundled pairs whose truth is known, and on toys."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from PIL import Image

import coam
from coam import samples
from coam.errors import ConfigError, MissingExtraError
from coam.geometry.correspondences import camera_matrix, centred_camera, correspondences
from coam.geometry.epipolar import symmetric_epipolar_distance
from coam.geometry.homography import apply_homography, corner_error
from coam.geometry.pose import relative_pose_matrix, rotation_error, translation_error
from coam.geometry.two_view_models import FundamentalMatrix, Homography, RelativePose
from coam.types import Matches

BOTH = pytest.mark.parametrize("estimator", ["opencv", "poselib"])
TILTED = np.array([[0.9, 0.12, 20], [-0.06, 1.02, 14], [1.5e-4, -0.8e-4, 1]])


def matched(image0, image1) -> Matches:
    return coam.match(image0, image1, device="cpu", resolution=512, looks="once")


@pytest.fixture(scope="module")
def stereo() -> Matches:
    pair = samples.motorcycle()
    return matched(pair.left, pair.right)


@pytest.fixture(scope="module")
def yard() -> Matches:
    views = samples.courtyard()
    return matched(views.image("day_04"), views.image("day_05"))


def yard_camera(name: str) -> np.ndarray:
    camera = samples.courtyard().camera(name)
    (fx, fy), (cx, cy) = camera.focal, camera.principal
    return np.array([[fx, 0, cx], [0, fy, cy], [0, 0, 1]])


def made(points0, points1, scores=None) -> Matches:
    count = len(points0)
    values = np.linspace(1, 0.1, count) if scores is None else scores
    ids = np.full(count, -1)
    points = (np.asarray(p, np.float32).reshape(-1, 2) for p in (points0, points1))
    return Matches(*points, np.asarray(values, np.float32), ids, ids, (1000, 800), (1000, 800))


# ---- bundled pairs


@BOTH
def test_fundamental_matrix_of_the_rectified_pair(stereo, estimator):
    """Epipolar lines of rectified photos are the rows; true matches lie on them to a part of a pixel."""
    found = stereo.fundamental(estimator=estimator)
    pair = samples.motorcycle()
    x, y = np.meshgrid(np.arange(20, 720, 20), np.arange(20, 480, 20))
    points0 = np.stack([x.ravel(), y.ravel()], axis=1)
    points1, valid = pair.true_points1(points0)
    missed = symmetric_epipolar_distance(points0[valid], points1[valid], found.matrix)
    assert valid.sum() > 500
    assert np.median(missed) < 0.3
    assert np.percentile(missed, 95) < 0.8
    lines = found.lines1(points0)
    assert np.abs(lines[:, 0]).max() < 0.02  # a row has the normal (0, 1)
    np.testing.assert_allclose(np.linalg.norm(lines[:, :2], axis=1), 1)
    back = found.lines0(points1[valid])
    away = np.abs((back[:, :2] * points0[valid]).sum(axis=1) + back[:, 2])
    assert np.median(away) < 0.3
    assert found.inliers.mean() > 0.95
    assert found.degeneracy == ""


@BOTH
def test_pose_and_essential_matrix_of_the_courtyard(yard, estimator):
    views = samples.courtyard()
    cameras = yard_camera("day_04"), yard_camera("day_05")
    matrices = (
        np.column_stack([views.pose(name).rotation, views.pose(name).translation])
        for name in ("day_04", "day_05")
    )
    true = relative_pose_matrix(*matrices)
    found = yard.pose(*cameras, estimator=estimator)
    assert rotation_error(found.rotation, true[:3, :3]) < 0.1
    assert translation_error(found.translation, true[:3, 3], signed=True) < 0.5
    assert found.inliers.mean() > 0.95
    assert (found.degeneracy, found.alternative, found.estimator) == ("", None, estimator)
    essential = yard.essential(*cameras, estimator=estimator)
    aligned = essential.matrix / np.linalg.norm(essential.matrix)
    expected = found.essential / np.linalg.norm(found.essential)
    assert min(np.abs(aligned - s * expected).max() for s in (1, -1)) < 0.02
    assert essential.inliers.mean() > 0.95


@BOTH
def test_homography_of_a_photo_seen_at_a_slant(estimator):
    photo = np.asarray(Image.open(samples.courtyard().image("day_04")).convert("RGB"))
    height, width = photo.shape[:2]
    found = matched(photo, cv2.warpPerspective(photo, TILTED, (width, height))).homography(
        estimator=estimator
    )
    assert corner_error(found.matrix, TILTED, (width, height)) < 1.0
    points = np.array([[100.0, 80], [500, 300]])
    np.testing.assert_allclose(found.apply(points), apply_homography(TILTED, points), atol=0.5)
    assert found.inliers.mean() > 0.9


def test_inliers_are_what_the_model_explains(yard):
    found = yard.homography(threshold=2.0)
    inner = yard.inliers(found)
    assert isinstance(inner, Matches)
    assert 200 < len(inner) == found.inliers.sum() < len(yard)
    np.testing.assert_array_equal(inner.points1, yard.points1[found.residuals <= 2.0])
    assert np.linalg.norm(found.apply(inner.points0) - inner.points1, axis=1).max() <= 2.0
    drawn = np.asarray(yard.draw(inliers=found))
    np.testing.assert_array_equal(drawn, np.asarray(yard.draw(inliers=found.inliers)))
    assert (drawn != np.asarray(yard.draw())).any()
    with pytest.raises(ConfigError, match="one value for each"):
        yard.draw(inliers=found.inliers[:5])
    with pytest.raises(ConfigError, match="not both"):
        yard.draw(inliers=found, correct=found.inliers)


def test_what_is_saved_is_plain_json(yard, tmp_path: Path):
    found = yard.pose(yard_camera("day_04"), yard_camera("day_05"))
    content = json.loads(json.dumps(found.to_json()))
    assert content["kind"] == "pose"
    np.testing.assert_array_equal(content["rotation"], found.rotation)
    assert content["inliers"] == np.flatnonzero(found.inliers).tolist()
    assert content["inlier_count"] == found.inliers.sum()
    replace(yard, meta=yard.meta | {"geometry": content}).save(tmp_path / "m.npz")
    assert Matches.load(tmp_path / "m.npz").meta["geometry"] == content


# ---- toys


def plane_matches(true: int = 200, wrong: int = 100, seed: int = 0) -> Matches:
    """`true` matches of TILTED with half a pixel of noise, best scores first, then wrong ones."""
    rng = np.random.default_rng(seed)
    points0 = rng.uniform([0, 0], [1000, 800], (true + wrong, 2))
    points1 = apply_homography(TILTED, points0) + rng.normal(0, 0.5, points0.shape)
    points1[true:] = rng.uniform([0, 0], [1000, 800], (wrong, 2))
    return made(points0, points1)


@BOTH
@pytest.mark.parametrize("count", [0, 1, 3])
def test_too_few_matches_determine_nothing(estimator, count):
    few = plane_matches(count, 0)
    camera = centred_camera(800.0, (1000, 800))
    assert few.homography(estimator=estimator) is None
    assert few.fundamental(estimator=estimator) is None
    assert few.essential(camera, camera, estimator=estimator) is None
    assert few.pose(camera, camera, estimator=estimator) is None


@BOTH
def test_four_matches_make_a_homography_unless_they_lie_on_a_line(estimator):
    square = np.array([[0.0, 0], [900, 0], [900, 700], [0, 700]])
    found = made(square, apply_homography(TILTED, square)).homography(estimator=estimator)
    assert corner_error(found.matrix, TILTED, (1000, 800)) < 0.1
    line = np.array([[0.0, 0], [100, 100], [300, 300], [700, 700]])
    assert made(line, apply_homography(TILTED, line)).homography(estimator=estimator) is None
    many = np.linspace(0, 700, 50)[:, None] * [1.0, 1.0]
    assert made(many, apply_homography(TILTED, many)).homography(estimator=estimator) is None


@BOTH
def test_matches_that_are_no_numbers_are_outliers(estimator):
    broken = plane_matches()
    broken.points1[7] = np.nan
    broken.points0[9, 0] = np.inf
    found = broken.homography(estimator=estimator)
    assert corner_error(found.matrix, TILTED, (1000, 800)) < 1.0
    assert not found.inliers[[7, 9]].any()
    assert np.isinf(found.residuals[[7, 9]]).all()
    nothing = replace(broken, points0=np.full_like(broken.points0, np.nan))
    assert nothing.homography(estimator=estimator) is None


@BOTH
def test_the_same_seed_gives_the_same_model_and_another_seed_nearly(estimator):
    matches = plane_matches(100, 300)
    first, again, other = (matches.homography(estimator=estimator, seed=seed) for seed in (5, 5, 6))
    np.testing.assert_array_equal(first.matrix, again.matrix)
    np.testing.assert_array_equal(first.inliers, again.inliers)
    np.testing.assert_array_equal(first.residuals, again.residuals)
    assert corner_error(other.matrix, first.matrix / first.matrix[2, 2], (1000, 800)) < 1.0


@BOTH
def test_scores_order_the_draws(estimator):
    """30 right matches with the best scores among 1000: in 200 draws chance hits four of them never."""
    hard = plane_matches(30, 970)
    few = {"estimator": estimator, "max_iterations": 200}
    by_score = hard.homography(prosac=True, **few)
    assert corner_error(by_score.matrix, TILTED, (1000, 800)) < 3.0
    assert by_score.inliers[:30].sum() >= 28
    by_chance = hard.homography(prosac=False, **few)
    assert by_chance is None or corner_error(by_chance.matrix, TILTED, (1000, 800)) > 50
    misled = replace(hard, scores=hard.scores[::-1].copy())  # wrong ones first: order, not place, decides
    found = misled.homography(prosac=True, **few)
    assert found is None or corner_error(found.matrix, TILTED, (1000, 800)) > 50


def test_poselib_is_the_default_and_opencv_its_stand_in(monkeypatch):
    matches = plane_matches()
    assert matches.homography().estimator == "poselib"
    monkeypatch.setattr("coam.geometry.robust.find_spec", lambda name: None)
    found = matches.homography()
    assert found.estimator == "opencv"
    assert corner_error(found.matrix, TILTED, (1000, 800)) < 1.0


def test_a_missing_estimator_names_its_extra(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "pysuperansac", None)
    with pytest.raises(MissingExtraError, match=r"\[superansac\]"):
        plane_matches().homography(estimator="superansac")


def test_superansac_finds_the_same():
    pytest.importorskip("pysuperansac")
    found = plane_matches().homography(estimator="superansac")
    assert corner_error(found.matrix, TILTED, (1000, 800)) < 1.0
    assert found.estimator == "superansac"


@pytest.mark.parametrize(
    ("options", "what"),
    [
        ({"threshold": 0}, "threshold 0"),
        ({"threshold": float("nan")}, "threshold nan"),
        ({"confidence": 1.0}, "confidence 1"),
        ({"max_iterations": 0}, "max_iterations 0"),
        ({"estimator": "magic"}, "poselib"),
    ],
)
def test_bad_options_are_one_clear_line(options, what):
    with pytest.raises(ConfigError, match=what):
        plane_matches().homography(**options)


@pytest.mark.parametrize(
    "camera",
    [np.eye(4), np.diag([0.0, 1, 1]), np.full((3, 3), np.nan), np.diag([500.0, 500, 2])],
    ids=["4x4", "no focal length", "nan", "last row"],
)
def test_what_is_no_camera_is_refused(camera):
    with pytest.raises(ConfigError, match="camera matrix"):
        plane_matches().pose(camera, np.eye(3))


def test_a_centred_camera_looks_through_the_middle_of_the_pixels():
    np.testing.assert_array_equal(
        centred_camera(500.0, (641, 481)), [[500, 0, 320], [0, 500, 240], [0, 0, 1]]
    )
    assert camera_matrix(np.eye(3)).dtype == np.float64


# ---- residuals by hand


def test_residuals_by_hand():
    shift = Homography(matrix=np.array([[1.0, 0, 10], [0, 1, 0], [0, 0, 1]]), threshold=5.0, estimator="hand")
    judged = shift.judged([[0, 0], [0, 0]], [[13, 4], [14, 4]])
    np.testing.assert_allclose(judged.residuals, [5, np.sqrt(32)])
    assert judged.inliers.tolist() == [True, False]
    rows = np.array([[0.0, 0, 0], [0, 0, -1], [0, 1, 0]])
    stereo = FundamentalMatrix(matrix=rows, threshold=2.0, estimator="hand")
    np.testing.assert_allclose(stereo.residuals_of([[10, 20]], [[300, 23]]), [3 / np.sqrt(2)])
    assert repr(judged) == "Homography(1 of 2 matches within 5 px, hand)"


@pytest.mark.parametrize(("depth", "shift", "seen"), [(3, -1, True), (3, -5, False), (-2, 5, False)])
def test_a_match_behind_a_camera_is_no_inlier_of_a_pose(depth, shift, seen):
    camera = centred_camera(500.0, (641, 481))
    pose = RelativePose(
        rotation=np.eye(3), translation=np.array([0.0, 0, np.sign(shift)]), intrinsics0=camera,
        intrinsics1=camera, threshold=1.0, estimator="hand",
    )  # fmt: skip
    point = np.array([0.5, -0.2, depth])
    points0, points1 = ((camera @ p)[:2] / p[2] for p in (point, point + np.array([0, 0, shift])))
    assert np.isfinite(pose.residuals_of(points0, points1)).tolist() == [seen]


def test_correspondences_are_finite_and_best_first():
    points = np.array([[0.0, 0], [1, 1], [np.nan, 2], [3, 3]])
    data = correspondences(points, points + 10, scores=[0.2, 0.9, 1.0, np.nan])
    np.testing.assert_array_equal(data.points0, [[1, 1], [0, 0], [3, 3]])
    np.testing.assert_array_equal(data.points1, data.points0 + 10)
    assert data.scores is not None
    assert data.scores[:2].tolist() == [0.9, 0.2]
    lowest = correspondences(points, points, scores=[-np.inf, 0.9, 1.0, 0.2])
    np.testing.assert_array_equal(lowest.points0, [[1, 1], [3, 3], [0, 0]])
    repeated = correspondences([[1, 1], [1, 1], [2, 2]], [[3, 3], [3, 3], [4, 4]])
    assert (len(repeated), repeated.distinct, repeated.scores) == (3, 2, None)
    with pytest.raises(ConfigError, match="2 for 3"):
        correspondences(np.zeros((3, 2)), np.zeros((3, 2)), scores=[1, 2])

"""Aligning photos of one spot: motions made by hand come back, what cannot be trusted is left out."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from coam.cli.data import register
from coam.data.align import REPORT, align_group, align_groups, fit_motion
from coam.errors import DataError
from coam.geometry.homography import apply_homography
from coam.images import load_image
from coam.matcher import Matcher, load_matcher
from coam.samples import motorcycle

TURN = np.array([[0.9998, -0.02, 3.0], [0.02, 0.9998, -2.0], [0, 0, 1]])
SHEAR = np.array([[1.01, 0.02, 1.0], [-0.004, 0.99, 2.0], [0, 0, 1]])
TILT = np.array([[1.0, 0.01, 1.0], [0.0, 1.02, 0.0], [6e-5, -4e-5, 1]])


def noisy_matches(matrix: np.ndarray, outliers: float = 0.2) -> tuple[np.ndarray, np.ndarray]:
    """800 matches under `matrix` with 0.5 px of noise, some of them anywhere."""
    rng = np.random.default_rng(0)
    points = rng.uniform([0, 0], [500, 400], (800, 2))
    moved = apply_homography(matrix, points) + rng.normal(0, 0.5, points.shape)
    wild = rng.random(800) < outliers
    moved[wild] = rng.uniform([0, 0], [500, 400], (wild.sum(), 2))
    return points, moved


@pytest.mark.parametrize(
    ("kind", "matrix"),
    [
        ("shift", np.array([[1, 0, 4.0], [0, 1, -2.5], [0, 0, 1]])),
        ("similarity", TURN),
        ("affine", SHEAR),
        ("homography", TILT),
    ],
)
def test_the_simplest_motion_that_explains_the_matches_is_found(kind: str, matrix: np.ndarray) -> None:
    motion = fit_motion(*noisy_matches(matrix))
    assert motion is not None
    assert motion.kind == kind
    marks = np.array([[0, 0], [500, 0], [0, 400], [500, 400], [250, 200.0]])
    missed = np.linalg.norm(apply_homography(motion.matrix, marks) - apply_homography(matrix, marks), axis=1)
    assert missed.max() < 0.35
    assert motion.residual == pytest.approx(0.5 * np.sqrt(2 * np.log(2)), rel=0.1)  # median of a 2-D normal
    assert motion.share == pytest.approx(0.8, abs=0.04)


def test_matches_that_agree_on_nothing_give_no_motion() -> None:
    rng = np.random.default_rng(1)
    assert fit_motion(rng.uniform(0, 400, (300, 2)), rng.uniform(0, 400, (300, 2))) is None
    assert fit_motion(np.zeros((0, 2)), np.zeros((0, 2))) is None


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    return load_matcher(device="cpu", looks="once", resolution=320)


@pytest.fixture
def groups(tmp_path: Path) -> Path:
    """A spot seen three times: as it is, darker and turned by a degree, and quite another photo."""
    first = cv2.resize(load_image(motorcycle().left).rgb, (320, 240), interpolation=cv2.INTER_AREA)
    folder = tmp_path / "groups" / "spot"
    folder.mkdir(parents=True)
    dark = 255 * (cv2.warpPerspective(first, TURN, (320, 240), borderMode=cv2.BORDER_REFLECT) / 255) ** 1.8
    other = np.random.default_rng(0).integers(0, 256, (240, 320, 3))
    for name, rgb in (("a", first), ("b", dark), ("c", other)):
        cv2.imwrite(str(folder / f"{name}.png"), rgb[..., ::-1].astype(np.uint8))
    return folder.parent


def test_a_photo_is_moved_back_onto_the_first(groups: Path, matcher: Matcher) -> None:
    photos = sorted((groups / "spot").iterdir())
    aligned, report = align_group(photos, matcher.match)
    assert list(aligned) == ["a.png", "b.png"]
    assert [line.kept for line in report] == [True, True, False]
    marks = np.array([[0, 0], [319, 0], [0, 239], [319, 239], [159.5, 119.5]])
    moved = np.linalg.norm(apply_homography(TURN, marks) - marks, axis=1)
    assert report[1].shift == pytest.approx(moved.mean(), abs=0.3)
    assert aligned["a.png"].shape == aligned["b.png"].shape
    assert 0.85 * 240 * 320 * 3 < aligned["a.png"].size < 240 * 320 * 3  # the rim that b does not show is cut
    again = matcher.match(aligned["a.png"], aligned["b.png"])
    before = matcher.match(*(load_image(p).rgb for p in photos[:2]))
    assert np.median(np.linalg.norm(before.points1 - before.points0, axis=1)) > 1.3
    assert np.median(np.linalg.norm(again.points1 - again.points0, axis=1)) < 0.5


def test_finished_groups_are_not_done_again(groups: Path, matcher: Matcher, tmp_path: Path) -> None:
    out = tmp_path / "out"
    reports = align_groups(groups, out, matcher.match)
    assert sorted(p.name for p in (out / "spot").iterdir()) == ["a.jpg", REPORT, "b.jpg"]

    def never(*_: object) -> None:
        raise AssertionError("matched again")

    assert align_groups(groups, out, never) == reports  # type: ignore[arg-type]
    (out / "spot" / REPORT).write_text("[{")
    with pytest.raises(DataError, match="damaged"):
        align_groups(groups, out, matcher.match)
    with pytest.raises(DataError, match="the folder of the groups itself"):
        align_groups(groups, groups, matcher.match)


def test_command(groups: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.callback()(lambda: None)
    register(app)
    line = [
        "data",
        "align",
        str(groups),
        "-o",
        str(tmp_path / "out"),
        "--device",
        "cpu",
        "--resolution",
        "320",
    ]
    result = CliRunner().invoke(app, [*line, "--json"])
    assert result.exit_code == 0
    said = json.loads(result.stdout)
    assert said["left_out"] == ["spot/c.png"]
    assert (said["groups"], said["photos"]) == (1, 3)
    assert said["residual"] < 0.7
    words = CliRunner().invoke(app, line).stdout
    assert "left out: spot/c.png" in words
    assert "1 photos moved" in words

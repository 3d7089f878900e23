"""Aligning photos of one spot: motions made by hand come back, what cannot be trusted is left out."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import cv2
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from coam.cli.data import register
from coam.data.align import REPORT, align_group, align_groups
from coam.errors import DataError
from coam.geometry.homography import apply_homography
from coam.geometry.motions import fit_motion
from coam.images import load_image
from coam.matcher import Matcher, load_matcher
from coam.samples import motorcycle

SETTINGS = {"model": "some", "resolution": 320}
MARKS = np.array([[0, 0], [500, 0], [0, 400], [500, 400], [250, 200.0]])
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
        ("translation", np.array([[1, 0, 4.0], [0, 1, -2.5], [0, 0, 1]])),
        ("similarity", TURN),
        ("affine", SHEAR),
        ("homography", TILT),
    ],
)
def test_the_simplest_motion_that_explains_the_matches_is_found(kind: str, matrix: np.ndarray) -> None:
    motion = fit_motion(*noisy_matches(matrix))
    assert motion is not None
    assert motion.kind == kind
    missed = np.linalg.norm(apply_homography(motion.matrix, MARKS) - apply_homography(matrix, MARKS), axis=1)
    assert missed.max() < 0.35
    assert motion.residual == pytest.approx(0.5 * np.sqrt(2 * np.log(2)), rel=0.1)  # median of a 2-D normal
    assert motion.share == pytest.approx(0.8, abs=0.04)


@pytest.mark.parametrize("count", [80, 300, 800])
def test_a_pure_shift_is_not_taken_for_more(count: int) -> None:
    shift = np.array([4.0, -2.5])
    kinds, errors = [], []
    for seed in range(60):
        rng = np.random.default_rng(seed)
        points = rng.uniform([0, 0], [500, 400], (count, 2))
        motion = fit_motion(points, points + shift + rng.normal(0, 0.7, points.shape))
        assert motion is not None
        kinds.append(motion.kind)
        errors.append(np.abs(apply_homography(motion.matrix, MARKS) - MARKS - shift).max())
    assert kinds.count("translation") >= 57  # 95 %
    assert np.median(errors) < 2 * 0.7 / np.sqrt(count)  # of a mean of so many


@pytest.mark.parametrize("length", [0.5, 1.0, 2.0, 3.0, 6.0])
def test_a_caption_that_stands_still_does_not_bend_the_motion(length: float) -> None:
    """A twentieth of the matches lie on letters in the lower left corner."""
    shift = np.array([0.8, 0.6]) * length
    errors = []
    for seed in range(20):
        rng = np.random.default_rng(seed)
        points = rng.uniform([0, 0], [500, 400], (2000, 2))
        moved = points + shift + rng.normal(0, 0.7, points.shape)
        points[::20] = moved[::20] = rng.uniform([0, 380], [200, 400], (100, 2))
        motion = fit_motion(points, moved)
        assert motion is not None
        errors.append(np.linalg.norm(apply_homography(motion.matrix, MARKS) - MARKS - shift, axis=1).max())
    assert np.quantile(errors, 0.9) < 0.25


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
    moved_photos, report = align_group(photos, matcher.match)
    aligned = dict(moved_photos)
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
    reports = align_groups(groups, out, matcher.match, SETTINGS)
    assert sorted(p.name for p in (out / "spot").iterdir()) == ["a.jpg", REPORT, "b.jpg"]

    assert align_groups(groups, out, never, SETTINGS) == reports
    for damage in ("[{", "5", '{"photos": [{"photo": "a.png"}]}'):
        (out / "spot" / REPORT).write_text(damage)
        with pytest.raises(DataError, match="damaged"):
            align_groups(groups, out, never, SETTINGS)


def never(*_: object) -> None:
    raise AssertionError("matched again")


def shifted_by(x: float, y: float) -> Callable[..., SimpleNamespace]:
    """A matcher that finds this shift in all photos, on a grid over the first one."""

    def match(first: np.ndarray, _: np.ndarray) -> SimpleNamespace:
        height, width = first.shape[:2]
        columns, rows = np.meshgrid(np.linspace(0, width - 1, 20), np.linspace(0, height - 1, 10))
        points = np.column_stack([columns.ravel(), rows.ravel()])
        return SimpleNamespace(points0=points, points1=points + np.array([x, y]))

    return match


def write_photos(folder: Path, names: str, size: tuple[int, int] = (60, 40)) -> Path:
    """Grey photos NAME.png of (width, height), one for each letter."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        cv2.imwrite(str(folder / f"{name}.png"), np.full((size[1], size[0], 3), 99, np.uint8))
    return folder


def content(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


DONE = [f"spot/{name}" for name in ("a.jpg", REPORT, "b.jpg")]


def test_photos_beside_the_groups_are_refused_and_nothing_is_lost(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_photos(folder / "spot", "ab")
    align_groups(folder, out, shifted_by(0, 0), SETTINGS)
    (out / "notes.txt").write_text("mine")
    write_photos(folder, "cd")
    with pytest.raises(DataError, match=r"in: has photos itself; put .* into a sub-folder"):
        align_groups(folder, out, never, SETTINGS)
    with pytest.raises(DataError, match="has photos itself"):
        align_groups(write_photos(tmp_path / "flat", "ab"), out, never, SETTINGS)
    assert content(out) == ["notes.txt", *DONE]
    write_photos(folder / "spot" / "inner", "ab")
    for photo in folder.glob("*.png"):
        photo.unlink()
    with pytest.raises(DataError, match=r"inner: lies inside another group"):
        align_groups(folder, out, never, SETTINGS)


def test_files_of_others_are_never_replaced(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_photos(folder / "early", "ab")
    write_photos(folder / "spot", "ab")
    write_photos(out / "spot", "x")
    with pytest.raises(DataError, match=r"spot: has files that coam data align did not write"):
        align_groups(folder, out, never, SETTINGS)  # before any work
    assert content(out) == ["spot/x.png"]
    (out / "spot" / "x.png").unlink()  # an empty folder is no harm
    align_groups(folder, out, shifted_by(0, 0), SETTINGS)
    write_photos(out / "spot", "x")
    align_groups(folder, out, never, SETTINGS)
    with pytest.raises(DataError, match="did not write"):
        align_groups(folder, out, never, SETTINGS | {"resolution": 640})
    assert (out / "spot" / "x.png").is_file()
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/early: cannot be written \(Not a directory\)"):
        align_groups(folder, tmp_path / "file", never, SETTINGS)


def test_a_killed_or_failed_run_leaves_no_group(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_photos(folder / "spot", "ab")
    leftover = write_photos(out / ".coam-999999999-0123456789ab", "ab")  # no process has this number
    with pytest.raises(AssertionError, match="matched again"):  # as it is, not as an error of the disk
        align_groups(folder, out, never, SETTINGS)
    assert content(out) == []
    write_photos(leftover, "ab")
    align_groups(folder, out, shifted_by(0, 0), SETTINGS)
    assert content(out) == DONE
    with pytest.raises(AssertionError, match="matched again"):
        align_groups(folder, out, never, SETTINGS | {"resolution": 640})
    assert content(out) == DONE  # the old ones stay until the new ones are there
    write_photos(leftover, "ab")
    assert list(align_groups(out, tmp_path / "again", shifted_by(0, 0), SETTINGS)) == ["spot"]


@pytest.mark.parametrize("output", ["in", "in/out", "in/spot", "."])
def test_input_and_output_lie_apart(tmp_path: Path, output: str) -> None:
    write_photos(tmp_path / "in" / "spot", "ab")
    with pytest.raises(DataError, match="must lie neither inside"):
        align_groups(tmp_path / "in", tmp_path / output, never, SETTINGS)


def test_other_photos_or_settings_are_done_again(tmp_path: Path) -> None:
    folder, out = tmp_path / "in", tmp_path / "out"
    write_photos(folder / "spot", "abc")
    lines = align_groups(folder, out, shifted_by(0, 0), SETTINGS)["spot"]
    write_photos(folder / "spot", "d")
    assert len(align_groups(folder, out, shifted_by(0, 0), SETTINGS)["spot"]) == 4
    for name in "cd":
        (folder / "spot" / f"{name}.png").unlink()
    align_groups(folder, out, shifted_by(0, 0), SETTINGS)
    assert content(out) == DONE  # c and d are gone
    again = align_groups(folder, out, shifted_by(1, 0), SETTINGS | {"resolution": 640})["spot"]
    assert [line.shift for line in again] == pytest.approx([0, 1])
    assert align_groups(folder, out, never, SETTINGS | {"resolution": 640})["spot"] == again

    (out / "spot" / REPORT).write_text(json.dumps([vars(line) for line in lines[:2]]))  # the first format
    assert align_groups(folder, out, shifted_by(1, 0), SETTINGS)["spot"] == again


def test_a_shift_is_measured_by_the_shorter_side(tmp_path: Path) -> None:
    """800 x 20: 5 % are 1 px, up and down as well as to the side."""
    photos = sorted(write_photos(tmp_path, "ab", (800, 20)).iterdir())
    for shift, kept in (
        ((0, 0.9), True),
        ((0.9, 0), True),
        ((0, 1.1), False),
        ((0, 30), False),
        ((30, 0), False),
    ):
        aligned, report = align_group(photos, shifted_by(*shift))
        assert report[1].kept == kept
        assert report[1].shift == pytest.approx(max(shift))
        assert all(rgb.min() > 90 for _, rgb in aligned)  # nothing black in it


def test_a_photo_that_leaves_nothing_in_common_is_not_kept(tmp_path: Path) -> None:
    """Two rows: b shows the lower one only, c only the upper."""
    photos = sorted(write_photos(tmp_path, "abc", (60, 2)).iterdir())
    shifts = iter([(0, -0.08), (0, 0.08)])
    aligned, report = align_group(photos, lambda *pair: shifted_by(*next(shifts))(*pair))
    assert [line.kept for line in report] == [True, True, False]
    assert [(name, rgb.shape) for name, rgb in aligned] == [("a.png", (1, 60, 3)), ("b.png", (1, 60, 3))]


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
    report = json.loads((tmp_path / "out" / "spot" / REPORT).read_text())
    assert report["settings"]["model"] == "cdunet-lite1"
    assert len(report["settings"]["weights"]) == 64
    assert report["settings"]["resolution"] == 320
    words = CliRunner().invoke(app, line).stdout
    assert "left out: spot/c.png" in words
    assert "1 photos moved" in words

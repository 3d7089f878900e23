"""`coam match --geometry`: what is printed, saved and drawn, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from coam import samples
from coam.geometry.pose import relative_pose_matrix, rotation_error, translation_error
from coam.types import Matches

Run = Any
Pair = tuple[Path, Path]
SMALL = ("--resolution", "128", "--device", "cpu", "--looks", "once")
YARD = ("--resolution", "320", "--device", "cpu", "--looks", "once")


@pytest.fixture(scope="module")
def yard() -> Pair:
    views = samples.courtyard()
    return views.image("day_04"), views.image("day_05")


def true_pose() -> np.ndarray:
    poses = (samples.courtyard().pose(name) for name in ("day_04", "day_05"))
    return relative_pose_matrix(*(np.column_stack([pose.rotation, pose.translation]) for pose in poses))


def camera_option() -> str:
    camera = samples.courtyard().camera("day_04")
    return ",".join(str(value) for value in (*camera.focal, *camera.principal))


def refused(result: Any) -> str:
    assert result.exit_code == 2, result.output
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    return str(result.stderr)


def test_a_homography_is_printed_saved_and_drawn(run: Run, pair: Pair, tmp_path: Path) -> None:
    """The second photo shows the first one moved by (16, 8)."""
    files = [tmp_path / name for name in ("m.json", "m.npz", "m.png")]
    outputs = [word for path in files for word in ("-o", path)]
    shots = tmp_path / "overlay.png", tmp_path / "overlay.gif"
    result = run("match", *pair, *SMALL, "--geometry", "homography", *outputs, "--overlay", shots[0])
    assert result.exit_code == 0, result.output
    saved = json.loads(files[0].read_text())["meta"]["geometry"]
    assert saved == Matches.load(files[1]).meta["geometry"]
    matrix = np.asarray(saved["matrix"]) / saved["matrix"][2][2]
    moved = matrix @ [64.0, 48, 1]
    np.testing.assert_allclose(moved[:2] / moved[2], [48, 40], atol=1.0)
    assert saved["kind"] == "homography"
    assert saved["threshold"] == 3.0
    assert saved["inlier_count"] == len(saved["inliers"]) > 20
    count = f"homography: {saved['inlier_count']:,} of {saved['matches']:,} matches within 3 px, by poselib"
    assert count in result.stdout
    assert f"wrote {shots[0]}" in result.stdout
    loaded = Matches.load(files[1])
    mask = np.zeros(len(loaded), bool)
    mask[saved["inliers"]] = True
    np.testing.assert_array_equal(np.asarray(loaded.draw(inliers=mask)), np.asarray(Image.open(files[2])))

    run("match", *pair, *SMALL, "--geometry", "homography", "--overlay", shots[1])
    with Image.open(shots[0]) as picture, Image.open(shots[1]) as film:
        assert picture.size == film.size == (1000, 750)
        assert film.n_frames == 2
        laid = np.asarray(picture.convert("RGB").resize((128, 96)), dtype=int)
    with Image.open(pair[0]) as photo:
        first = np.asarray(photo.convert("RGB"), dtype=int)
    assert np.abs(laid - first)[16:, 24:].mean() < 8  # warped onto A, B looks like A


def test_a_pose_is_that_of_the_courtyard(run: Run, yard: Pair, tmp_path: Path) -> None:
    options = ("--geometry", "pose", "--camera0", camera_option(), "--camera1", camera_option())
    result = run("match", *yard, *YARD, *options, "--json", "-o", tmp_path / "m.h5")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["geometry"]
    assert "inliers" not in found
    assert found["inlier_count"] > 0.8 * found["matches"]
    true = true_pose()
    assert rotation_error(found["rotation"], true[:3, :3]) < 0.3
    assert translation_error(found["translation"], true[:3, 3], signed=True) < 1.5
    assert (found["degeneracy"], found["alternative"], found["remark"]) == ("", None, "")
    assert Matches.load(tmp_path / "m.h5").meta["geometry"]["rotation"] == found["rotation"]


def test_a_focal_length_comes_from_the_option_or_from_exif(run: Run, yard: Pair, tmp_path: Path) -> None:
    focal = samples.courtyard().camera("day_04").focal[0]
    told = run("match", *yard, *YARD, "--geometry", "pose", "--focal", focal, "--estimator", "opencv")
    assert "turned by 9." in told.stdout
    assert "by opencv" in told.stdout
    paths = []
    for path in yard:
        with Image.open(path) as photo:
            exif = photo.getexif()
            exif.get_ifd(0x8769)[0xA405] = round(focal * 36 / 640)
            paths.append(tmp_path / path.name)
            photo.save(paths[-1], exif=exif, quality=95)
    by_exif = run("match", *paths, *YARD, "--geometry", "pose", "--json")
    found = json.loads(by_exif.stdout)["geometry"]
    assert found["intrinsics0"][0][0] == pytest.approx(round(focal * 36 / 640) / 36 * 640)
    assert found["intrinsics0"][0][2] == 319.5
    assert rotation_error(found["rotation"], true_pose()[:3, :3]) < 1.0
    line = refused(run("match", *yard, *YARD, "--geometry", "pose"))
    assert "tells no focal length" in line
    assert "--focal PIXELS" in line


def test_a_fundamental_matrix_has_three_rows(run: Run, yard: Pair) -> None:
    result = run("match", *yard, *YARD, "--geometry", "fundamental", "--threshold", "2")
    rows = [line.split() for line in result.stdout.splitlines() if line.startswith("  ")]
    assert [len(row) for row in rows] == [3, 3, 3]
    assert abs(np.linalg.det(np.asarray(rows, float))) < 1e-6
    assert "matches within 2 px" in result.stdout


def test_no_geometry_is_told_and_an_overlay_of_it_refused(run: Run, pair: Pair, tmp_path: Path) -> None:
    nothing = (*pair, *SMALL, "--max-matches", "3", "--geometry", "homography")
    result = run("match", *nothing)
    assert result.exit_code == 0
    assert "no geometry: the matches determine none" in result.stdout
    assert json.loads(run("match", *nothing, "--json").stdout)["geometry"] is None
    line = refused(run("match", *nothing, "--overlay", tmp_path / "o.png", "-o", tmp_path / "m.npz"))
    assert "determine no homography" in line
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.png", "b.png"]


def test_without_geometry_nothing_changes(run: Run, pair: Pair, tmp_path: Path) -> None:
    result = run("match", *pair, *SMALL, "--json", "-o", tmp_path / "m.npz")
    assert "geometry" not in json.loads(result.stdout)
    assert "geometry" not in Matches.load(tmp_path / "m.npz").meta


@pytest.mark.parametrize(
    ("options", "what"),
    [
        (("--geometry", "affine"), "homography, fundamental, pose"),
        (("--focal", "500"), "--focal is about --geometry"),
        (("--overlay", "o.png"), "--overlay is about --geometry"),
        (("--geometry", "pose", "--focal", "500", "--overlay", "o.png"), "give --geometry homography"),
        (("--geometry", "homography", "--overlay", "o.txt"), ".png"),
        (("--geometry", "homography", "--estimator", "magic"), "poselib"),
        (("--geometry", "pose", "--camera0", "1,2"), "--camera0 1,2: wanted FX,FY,CX,CY"),
        (("--geometry", "pose", "--camera1", "0,0,0"), "--camera1"),
        (("--geometry", "pose", "--camera1", "500,x,3"), "--camera1"),
        (("--geometry", "pose", "--camera0", "500", "--camera1", "500,-1,3,4"), "fx, fy > 0"),
    ],
)
def test_bad_options_are_refused_in_one_line(
    run: Run, pair: Pair, options: tuple[str, ...], what: str
) -> None:
    assert what in refused(run("match", *pair, *options))

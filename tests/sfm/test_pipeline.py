"""Photos to a model, against exact truth; and every awkward folder."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from coam.errors import DataError
from coam.geometry.alignment import pose_errors
from coam.sfm.cameras import CameraChoice
from coam.sfm.colmap_model import model_poses, read_model
from coam.sfm.mapping.options import MapperOptions
from coam.sfm.pipeline import (
    build_tracks,
    line_about_pairs,
    lines_about_missing,
    map_photos,
    match_photos,
    model_key,
    propose_pairs,
    run_sfm,
    verify_matches,
    write_summary,
)
from coam.sfm.verification.path_consistency import PathConsistencyOptions
from coam.sfm.verification.two_view import read_verified
from coam.sfm.workspace import SfmOptions, Tracks, load_model, open_workspace
from coam.store.documents import read_json
from coam.store.journal import PairJournal
from support import REPOSITORY, TESTS
from support.toy_scene import LookAlikes, OracleMatcher, Scene


def test_all_photos_registered_where_they_are(built, truth):
    folder, summary, _ = built
    assert summary["registered_images"] == 5
    assert summary["sparse_points"] > 700
    assert summary["mean_track_length"] > 3
    assert summary["mean_reprojection_error"] < 0.4
    assert summary["dense_points"] == "not computed"
    model, _ = load_model(folder)
    errors = pose_errors(model_poses(model), truth)
    assert np.median(errors.position) < 0.002 * errors.scene_size
    assert np.median(errors.rotation) < 0.05
    focal = model.cameras[1].mean_focal_length()
    assert focal == pytest.approx(380, rel=0.01)  # it was unknown


def test_the_folder_has_everything(built):
    folder, summary, _ = built
    for name in (
        "sparse/0/images.bin",
        "sparse/0/text/images.txt",
        "sparse/0/points.ply",
        "model.html",
        "database.db",
    ):
        assert (folder / name).stat().st_size > 100
    assert read_json(folder / "summary.json") == summary
    assert not [
        path
        for path in folder.rglob("*")
        if "tmp" in path.name or "mapped" in path.name or "parts" in path.name
    ]
    header = (folder / "sparse/0/points.ply").read_bytes()[:300].decode(errors="ignore")
    assert f"element vertex {summary['sparse_points']}" in header


def test_merging_is_worth_it(photos, matcher, truth, tmp_path, built):
    """The paper's open problem in numbers: grid positions, merged offsets, aligned in the photos."""
    shutil.copy(built[0] / "matches.h5", tmp_path / "matches.h5")  # the same matches for all
    summary, errors = {}, {}
    for tracks in get_args(Tracks):
        summary[tracks] = run_sfm(photos, tmp_path, matcher, SfmOptions(tracks=tracks))
        errors[tracks] = pose_errors(model_poses(load_model(tmp_path)[0]), truth)
    quantised, merged, refined = (summary[tracks] for tracks in get_args(Tracks))
    assert quantised["mean_reprojection_error"] > 0.9
    assert merged["mean_reprojection_error"] < 0.4 * quantised["mean_reprojection_error"]
    for kind in ("rotation", "position"):
        median = {tracks: np.median(getattr(errors[tracks], kind)) for tracks in errors}
        assert median["merged"] < 0.3 * median["quantised"]
    assert merged["mean_track_length"] > quantised["mean_track_length"]
    assert refined["mean_reprojection_error"] < 0.9 * merged["mean_reprojection_error"]


def test_second_run_computes_nothing(built, photos, matcher):
    folder, summary, _ = built
    before = len(matcher.calls)
    stamp = (folder / "sparse/0/images.bin").stat().st_mtime_ns
    again = run_sfm(photos, folder, matcher, SfmOptions(tracks="refined"))
    # Other tests of this folder may have opened its database, and SQLite counts that.
    assert again | {"files": None} == summary | {"files": None}
    assert len(matcher.calls) == before
    assert (folder / "sparse/0/images.bin").stat().st_mtime_ns == stamp


def test_every_stage_is_a_function_of_its_own(built, photos, matcher, tmp_path):
    """As the first lines of `pipeline` have it; the result is that of `run_sfm`."""
    shutil.copy(built[0] / "matches.h5", tmp_path / "matches.h5")
    work = open_workspace(photos, tmp_path, matcher)
    pairs = propose_pairs(work)
    assert len(work.files.pairs.read_text().splitlines()) == len(pairs) == 10
    matched = match_photos(work, pairs)
    verified, cycles = verify_matches(work, matched)
    assert work.files.verified.is_file()
    assert verified.accepted == pairs
    graph = build_tracks(work, verified)
    assert work.files.refined.is_file()
    assert work.files.database.is_file()
    key = model_key(work.options, pairs, verified)
    models = map_photos(work, verified, graph, key)
    assert (work.files.model / "images.bin").is_file()
    summary = write_summary(work, models, verified, cycles, graph, key)
    matched.close()
    different = {"seconds", "photos_folder"}
    assert {k: v for k, v in built[1].items() if k not in different} == {
        k: v for k, v in summary.items() if k not in different
    }


def test_no_photos_and_one_photo(tmp_path, scene, matcher):
    with pytest.raises(DataError, match="no such folder"):
        run_sfm(tmp_path / "nowhere", tmp_path / "out", matcher)
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="holds no photos"):
        run_sfm(tmp_path / "empty", tmp_path / "out", matcher)
    folder = scene.write_photos(tmp_path / "one")
    for name in scene.names[1:]:
        (folder / name).unlink()
    with pytest.raises(DataError, match="has 1 usable photo; a model needs at least 2 different photos"):
        run_sfm(folder, tmp_path / "out", matcher)


def test_identical_photos_are_one(tmp_path, scene, matcher):
    folder = scene.write_photos(tmp_path / "p")
    for name in scene.names[1:]:
        shutil.copy(folder / scene.names[0], folder / name)
    with pytest.raises(
        DataError, match=r"1 usable photo \(left out: view01\.png: is the same file as view00\.png"
    ):
        run_sfm(folder, tmp_path / "out", matcher)


def test_corrupt_photo_is_named_and_the_rest_goes_on(tmp_path, scene, matcher):
    folder = scene.write_photos(tmp_path / "p")
    whole = (folder / "view03.png").read_bytes()
    (folder / "view03.png").write_bytes(whole[: len(whole) // 2])
    for name in ("view00.png", "view01.png"):
        (folder / name).unlink()
    lines: list[str] = []
    summary = run_sfm(folder, tmp_path / "out", matcher, SfmOptions(), lines.append)
    assert summary["registered_images"] == 4
    assert len(summary["left_out"]) == 1
    assert "view03.png" in summary["left_out"][0]
    assert lines[0] == f"left out: {summary['left_out'][0]}"


class NothingMatches(OracleMatcher):
    """Photos of different places: random matches only."""

    def match(self, image0, image1, keypoints0=None):
        found = super().match(image0, image1, keypoints0)
        shuffled = np.random.default_rng(0).permutation(len(found))
        return type(found)(
            found.points0, found.points1[shuffled], found.scores, found.ids0, found.ids1[shuffled],
            found.size0, found.size1, found.grid0, found.grid1,
        )  # fmt: skip


def test_photos_of_different_places_are_refused(tmp_path, scene, photos):
    matcher = NothingMatches(scene, keep=0.4)
    with pytest.raises(DataError, match="no two of the 5 photos show the same place"):
        run_sfm(photos, tmp_path / "out", matcher)


class TwoPlaces(OracleMatcher):
    """Views 0 to 3 and views 4 to 7 show different places: nothing but noise between them."""

    def match(self, image0, image1, keypoints0=None):
        found = super().match(image0, image1, keypoints0)
        if (self.index(image0) < 4) == (self.index(image1) < 4):
            return found
        return replace(found.top(0), overlap=0.01)


def test_two_places_in_one_folder_give_two_models(tmp_path):
    import pycolmap

    scene = Scene(count=8, size=(400, 304), focal=380.0)
    folder = scene.write_photos(tmp_path / "p")
    summary = run_sfm(folder, tmp_path / "out", TwoPlaces(scene, keep=0.4))
    assert [model["registered_images"] for model in summary["models"]] == [4, 4]
    assert (
        "the photos fall into 2 models of 4, 4 photos; they may show different places" in summary["warnings"]
    )
    assert (tmp_path / "out/sparse/1/images.bin").is_file()
    assert len(summary["registered"]) == 4  # of the first model
    assert summary["not_registered"] == []  # none is in no model
    work = open_workspace(folder, tmp_path / "out", TwoPlaces(scene, keep=0.4))
    with closing(match_photos(work, propose_pairs(work))) as matched:
        verified, cycles = verify_matches(work, matched)
        models = [read_model(tmp_path / "out/sparse" / name) for name in ("0", "1")]
        turned = models[1].image(models[1].reg_image_ids()[0])
        off = pycolmap.Rigid3d(pycolmap.Rotation3d(np.array([0.0, np.radians(20), 0.0])), np.zeros(3))
        turned.frame.set_cam_from_world(turned.camera_id, off * turned.cam_from_world())
        warnings = write_summary(work, models, verified, cycles, build_tracks(work, verified))["warnings"]
    reason = "3 of its 3 verified pairs disagree with its place in the model; likely wrong"
    assert f"model 1: {turned.name}: {reason}" in warnings


def test_places_that_look_alike_are_not_mixed(tmp_path):
    """Twelve pairs between them pass verification, each with hundreds of matches for one geometry."""
    scene = Scene(count=8, size=(400, 304), focal=380.0)
    folder = scene.write_photos(tmp_path / "p")
    options = SfmOptions(tracks="merged")
    summary = run_sfm(folder, tmp_path / "out", LookAlikes(scene, keep=0.4), options)
    verified = read_verified(PairJournal(tmp_path / "out/matches.h5"), tmp_path / "out/verified.h5")
    between = [pair for pair in verified.accepted if (pair[0] < "view04") != (pair[1] < "view04")]
    assert len(between) == 12
    assert min(len(verified.geometries[pair].inliers) for pair in between) > 100
    assert summary["contradicted_pairs"] == 12
    models = [read_model(tmp_path / "out/sparse" / name) for name in ("0", "1")]
    assert sorted(sorted(model_poses(model)) for model in models) == [scene.names[:4], scene.names[4:]]
    believing = PathConsistencyOptions(min_evidence=0.0, alone_evidence=0.0)
    fooled = run_sfm(
        folder, tmp_path / "out", LookAlikes(scene, keep=0.4), replace(options, path_consistency=believing)
    )
    assert fooled["models"][0]["registered_images"] > 4


def test_global_mapper(tmp_path, photos, matcher, truth, built):
    shutil.copy(built[0] / "matches.h5", tmp_path / "matches.h5")
    run_sfm(photos, tmp_path, matcher, SfmOptions(mapper=MapperOptions(mapper="global")))
    errors = pose_errors(model_poses(load_model(tmp_path)[0]), truth)
    assert len(errors.names) == 5
    assert np.median(errors.rotation) < 0.3
    assert np.median(errors.position) < 0.01 * errors.scene_size


def test_turning_on_the_spot_gives_one_line(tmp_path):
    scene = Scene(count=4, size=(400, 304), focal=380.0)
    centre = scene.centres[1]
    for i in range(4):  # the same place, other directions
        turn = Rotation.from_euler("y", 4.0 * i, degrees=True).as_matrix()
        scene.rotations[i] = turn @ scene.rotations[1] if i != 1 else scene.rotations[1]
        scene.translations[i] = -scene.rotations[i] @ centre
    folder = scene.write_photos(tmp_path / "p")
    matcher = OracleMatcher(scene, keep=0.4)
    known = SfmOptions(cameras=CameraChoice(given={"*": "SIMPLE_PINHOLE 400 304 380 200 152"}))
    for _ in range(2):  # also when nothing has to be computed again
        with pytest.raises(DataError, match="take photos from different places"):
            run_sfm(folder, tmp_path / "out", matcher, known)
    # with an unknown focal length a turning camera looks like a far plane: COLMAP believes it, we warn
    summary = run_sfm(folder, tmp_path / "out", matcher)
    assert any("the camera only turned on the spot" in line for line in summary["warnings"])


def test_two_photos_are_enough(tmp_path, scene, matcher):
    folder = scene.write_photos(tmp_path / "p")
    for name in scene.names:
        if name not in ("view01.png", "view03.png"):
            (folder / name).unlink()
    summary = run_sfm(folder, tmp_path / "out", matcher)
    assert summary["registered_images"] == 2
    assert summary["sparse_points"] > 100


@pytest.mark.parametrize("mapper", ["incremental", "global"])
def test_only_the_given_cameras_stay_as_they_are(tmp_path, photos, matcher, built, mapper):
    """The true focal length is 380; 382 is given for two of five photos, the others start from 480."""
    given = dict.fromkeys(["view00.png", "view01.png"], "SIMPLE_PINHOLE 400 304 382 200 152")
    shutil.copy(built[0] / "matches.h5", tmp_path / "matches.h5")
    options = SfmOptions(
        tracks="merged",
        cameras=CameraChoice("SIMPLE_PINHOLE", "all", given),
        mapper=MapperOptions(mapper=mapper),
    )
    run_sfm(photos, tmp_path, matcher, options)
    model, _ = load_model(tmp_path)
    focal = {model.image(i).name: model.image(i).camera.focal_length for i in model.reg_image_ids()}
    assert len(focal) == 5
    assert focal["view00.png"] == focal["view01.png"] == 382.0
    others = {focal[name] for name in ("view03.png", "view04.png", "view06.png")}
    assert len(others) == 1
    assert others.pop() == pytest.approx(380, abs=8)


def test_masked_pixels_are_not_used(tmp_path, photos, matcher, scene, built):
    from PIL import Image

    for name in scene.names:
        mask = np.full((304, 400), 255, np.uint8)
        mask[:, :200] = 0
        (tmp_path / "masks").mkdir(exist_ok=True)
        Image.fromarray(mask).save(tmp_path / "masks" / f"{name}.png")
    shutil.copy(built[0] / "matches.h5", tmp_path / "matches.h5")
    run_sfm(photos, tmp_path, matcher, SfmOptions(masks=str(tmp_path / "masks")))
    model, _ = load_model(tmp_path)
    x = [p.xy[0] for i in model.reg_image_ids() for p in model.image(i).get_observation_points2D()]
    assert len(x) > 500
    assert min(x) > 199 - 4  # a cell of 8 pixels may reach over the edge by half


RUN = """
import sys
sys.path.insert(0, sys.argv[3])
from support.toy_scene import OracleMatcher, Scene
import time
import coam.sfm.matching.match_pairs as mp
from coam.sfm.pipeline import run_sfm
mp.SAVE_EVERY_PAIRS = 1
class Slow(OracleMatcher):
    def match(self, *args, **kwargs):
        time.sleep(0.05)
        print(args[0].name, args[1].name, file=open(sys.argv[4], "a"))
        return super().match(*args, **kwargs)
run_sfm(sys.argv[1], sys.argv[2], Slow(Scene(count=7, size=(400, 304), focal=380.0), keep=0.4))
"""


@pytest.mark.slow
def test_killed_at_any_stage_and_started_again(tmp_path, photos, built):
    """SIGKILL at random times; no pair is matched twice, save the one in flight, and the end is a good
    model.
    """
    log = tmp_path / "log.txt"
    generator = np.random.default_rng()
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY / "src")}

    def start(output, log):
        command = [sys.executable, "-c", RUN, str(photos), str(output), str(TESTS), str(log)]
        with open(tmp_path / "stderr.txt", "w") as errors:
            return subprocess.Popen(command, env=environment, stderr=errors)

    began = time.monotonic()
    start(tmp_path / "undisturbed", tmp_path / "undisturbed.txt").wait(timeout=200)
    whole = time.monotonic() - began
    kills = 0
    for share in [0.5, *generator.uniform(0.3, 1.0, 7), 100.0]:
        process = start(tmp_path / "out", log)
        try:
            process.wait(timeout=share * whole)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
    assert process.returncode == 0, (tmp_path / "stderr.txt").read_text()
    assert kills > 0
    matched = log.read_text().splitlines()
    assert len(set(matched)) == 10
    assert len(matched) <= 10 + kills
    summary = json.loads((tmp_path / "out/summary.json").read_text())
    undisturbed = json.loads((tmp_path / "undisturbed/summary.json").read_text())
    for figure in ("registered_images", "sparse_points", "mean_track_length", "mean_reprojection_error"):
        assert summary[figure] == pytest.approx(undisturbed[figure], rel=0.02)
    assert not list((tmp_path / "out").rglob("*.damaged"))
    assert not list((tmp_path / "out").glob(".*.tmp"))


def test_numbers_of_pairs_add_up():
    rest = "contradicted or not confirmed by stronger ones"
    assert line_about_pairs(29, 4, 12) == f"45 pairs: 29 verified, 4 not, 12 {rest}"
    assert line_about_pairs(1, 0, 0) == f"1 pair: 1 verified, 0 not, 0 {rest}"


def test_photos_that_are_not_in_the_model_are_named_with_the_reason():
    accepted = [("a", "b"), ("b", "d")]
    lines = lines_about_missing(["c", "d"], accepted)
    assert len(lines) == 2
    assert lines[0].startswith("in no model, because no pair with them was verified: c;")
    assert lines[1] == (
        "in no model, though some pairs were verified: d; more photos between them and the others may help"
    )
    assert lines_about_missing([], accepted) == []
    many = lines_about_missing([f"p{k}" for k in range(11)], [])
    assert "p7 and 3 more" in many[0]

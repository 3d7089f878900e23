"""The two commands as a user types them: one clear line each for what is wrong."""

from __future__ import annotations

import errno
import json
import os
from types import SimpleNamespace

import numpy as np
import pytest
from typer.testing import CliRunner

from coam.cli.localize import hint
from coam.errors import DataError
from coam.images.folder import list_photos
from coam.matching.settings import MatcherConfig
from coam.sfm.colmap_model import model_poses
from coam.sfm.localization.absolute_pose import Location
from coam.sfm.settings import read_settings, warning_about_weights
from coam.sfm.workspace import load_model
from coam.store.journal import PairJournal
from support.toy_scene import OracleMatcher
from support.videos import write_pan


@pytest.fixture
def run(monkeypatch, matcher):
    """Runs a command with the toy matcher in place of the network."""
    from coam.cli import build_app

    monkeypatch.setattr("coam.cli.sfm.load_for_sfm", lambda *_: matcher)

    def call(*arguments):
        return CliRunner().invoke(build_app(), [str(argument) for argument in arguments])

    return call


def no_folders_can_be_made(monkeypatch):
    def mkdir(path, *_, **__):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr("pathlib.Path.mkdir", mkdir)


def last_line(result):
    return (result.stderr or result.output).strip().splitlines()[-1]


def test_sfm_then_localize(run, built, photos, queries, tmp_path):
    result = run("sfm", photos, "-o", tmp_path / "model", "--hloc", tmp_path / "hloc")
    assert result.exit_code == 0, result.output
    assert "5 of 5 photos registered" in result.output
    assert "10 pairs: 10 verified, 0 not, 0 contradicted or not confirmed by stronger ones" in result.output
    assert len((tmp_path / "hloc" / "pairs.txt").read_text().splitlines()) == 10
    outputs = ("-o", tmp_path / "p.txt", "-o", tmp_path / "p.json", "--hloc", tmp_path / "q")
    result = run("localize", tmp_path / "model", queries, *outputs)
    assert result.exit_code == 0, result.output
    assert "2 of 3 photos located" in result.output
    assert "broken.jpg: not located" in result.output
    assert [line for line in result.output.splitlines() if line.startswith("wrote ")] == [
        f"wrote {tmp_path / name}" for name in ("p.txt", "p.json", "q")
    ]
    assert len(list((tmp_path / "q").glob("quer*"))) == 4
    assert len((tmp_path / "p.txt").read_text().splitlines()) == 2
    assert len(json.loads((tmp_path / "p.json").read_text())) == 3


def test_no_photo_located_is_exit_code_1_with_one_line(run, built, tmp_path):
    (tmp_path / "queries").mkdir()
    (tmp_path / "queries" / "broken.jpg").write_bytes(b"this is no picture")
    result = run("localize", built[0], tmp_path / "queries", "-o", tmp_path / "poses.txt")
    assert result.exit_code == 1
    assert "broken.jpg: not located: " in result.stdout
    assert "0 of 1 photos located" in result.stdout
    assert last_line(result).endswith(
        "no photo was located; none can be read as a picture; the reasons are above"
    )
    assert (tmp_path / "poses.txt").read_text() == ""
    result = run("localize", built[0], tmp_path / "queries", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)[0]["located"] is False


def answer(lifted, inliers, camera="SIMPLE_PINHOLE 4 3 5 2 1"):
    return Location("q.jpg", None, inliers, lifted, 0.0, camera, (), "a reason")


def test_the_hint_fits_what_was_seen():
    unreadable = answer(0, 0, camera="")
    elsewhere, nearer = (
        "to show another place than the model",
        "photos nearer to those of the model are easier",
    )
    assert hint([unreadable, answer(0, 0)]) == f"it seems {elsewhere}"
    assert hint([answer(0, 0), answer(45, 5)]) == f"they seem {elsewhere}; if not, {nearer}"
    assert hint([answer(45, 5), answer(300, 60)]) == f"the reasons are above; {nearer}"


def test_what_cannot_be_located_or_written_is_named_before_any_work(
    run, built, queries, tmp_path, monkeypatch
):
    monkeypatch.setattr("coam.cli.localize.loads_as_made", lambda *_: pytest.fail("the matcher was loaded"))
    result = run("localize", built[0], queries / "nothere.jpg")
    assert result.exit_code == 2
    assert "nothere.jpg: no such file or folder; give a photo or a folder of photos" in last_line(result)
    (tmp_path / "file").write_text("")
    result = run("localize", built[0], queries, "-o", tmp_path / "file" / "p.txt")
    assert result.exit_code == 2
    assert last_line(result) == f"error: {tmp_path}/file: is a file; give a folder"
    no_folders_can_be_made(monkeypatch)
    result = run("localize", built[0], queries, "-o", tmp_path / "p.txt")
    assert result.exit_code == 2
    assert f"{tmp_path}: cannot be written (Permission denied); check the folder" in last_line(result)
    result = run("localize", built[0], queries / "view02.png", "-o", tmp_path)
    assert result.exit_code == 2


def test_no_poses_are_written_where_locating_fails(run, built, queries, tmp_path):
    result = run("localize", built[0], queries, "-o", tmp_path / "p.txt", "--photos", tmp_path)
    assert result.exit_code == 2
    assert list(tmp_path.iterdir()) == []


def test_points_for_known_poses(run, built, photos, queries, tmp_path):
    """One command for who has a COLMAP model: its poses stay, `coam localize` works in the result."""
    reference = built[0] / "sparse" / "0"
    result = run("sfm", photos, "-o", tmp_path / "m", "--reference", reference, "--neighbours", "2")
    assert result.exit_code == 0, result.output
    assert "5 photos with known poses" in result.output
    assert "(2 with most common points each)" in result.output
    assert "5 of 5 photos registered" in result.output
    before, after = model_poses(load_model(built[0])[0]), model_poses(load_model(tmp_path / "m")[0])
    for name in before:
        np.testing.assert_allclose(before[name][1], after[name][1], atol=1e-9)
    assert (tmp_path / "m" / "model.html").is_file()
    assert (tmp_path / "m" / "sparse" / "0" / "points.ply").is_file()
    result = run("localize", tmp_path / "m", queries / "view02.png")
    assert "1 of 1 photos located" in result.output
    listed = tmp_path / "pairs.txt"
    listed.write_text("view00.png view01.png\nview01.png view03.png\n")
    result = run("sfm", photos, "-o", tmp_path / "m", "--reference", reference, "--pairs", listed)
    assert "2 pairs (from " in result.output
    assert "held by fewer than 30 points" in result.output  # the photos that no pair reaches


def test_other_options_are_named_before_the_model_is_built_again(run, photos, tmp_path):
    first = run("sfm", photos, "-o", tmp_path / "model")
    assert "built again" not in first.output
    same = run("sfm", photos, "-o", tmp_path / "model", "--workers", "1")
    assert "the model is up to date" in same.output
    other = run("sfm", photos, "-o", tmp_path / "model", "--tracks", "quantised")
    assert other.exit_code == 0
    assert "was made with tracks refined (now quantised): it is built again" in other.output


@pytest.mark.parametrize("reference", [False, True])
def test_settings_are_those_of_the_model_that_lies_there(run, built, photos, tmp_path, reference):
    model = tmp_path / "model"
    command = ["sfm", photos, "-o", model, *(["--reference", built[0] / "sparse" / "0"] if reference else [])]
    assert run(*command).exit_code == 0
    before = (model / "settings.json").read_bytes()
    assert set(json.loads(before)) == {"matcher", "options", "sha256"}
    (tmp_path / "unknown.txt").write_text("view00.png nothere.png\n")
    (tmp_path / "no masks").mkdir()
    for wrong in (
        ["--camera-model", "bogus"],
        ["--pairs", tmp_path / "nothere.txt"],
        ["--pairs", tmp_path / "unknown.txt"],
        ["--masks", tmp_path / "nothere"],
        ["--masks", tmp_path / "no masks"],
        [] if reference else ["--cameras", cameras_of_another_size(tmp_path)],
    ):
        if wrong:
            assert run(*command, *wrong).exit_code == 2
            assert (model / "settings.json").read_bytes() == before, wrong
    other = run(*command, "--tracks", "merged")
    assert "was made with tracks refined (now merged): it is built again" in other.output
    assert json.loads((model / "settings.json").read_text())["options"]["tracks"] == "merged"


def cameras_of_another_size(folder):
    (folder / "cameras.txt").write_text("* SIMPLE_PINHOLE 40 30 38 20 15\n")
    return folder / "cameras.txt"


def interrupted(matcher):
    """Ctrl-C comes while the fourth pair is matched."""

    def match(*args, whole=matcher.match):
        if len(matcher.calls) == 3:
            raise KeyboardInterrupt
        return whole(*args)

    matcher.match = match
    return matcher


def test_ctrl_c_keeps_what_is_matched_and_says_how_to_go_on(run, scene, photos, tmp_path, monkeypatch):
    model = tmp_path / "model"
    monkeypatch.setattr(
        "coam.progress.FIRST_LINE", 0.0
    )  # a line for every pair, as stderr is no terminal here
    monkeypatch.setattr("coam.progress.EVERY_SHARE", 0.0)
    monkeypatch.setattr("coam.cli.sfm.load_for_sfm", lambda *_: interrupted(OracleMatcher(scene, keep=0.4)))
    stopped = run("sfm", photos, "-o", model)
    assert stopped.exit_code == 130
    assert last_line(stopped) == "error: stopped; run the same line again to go on"
    told = [line.split(",")[0] for line in stopped.stderr.splitlines() if line.startswith("matching")]
    assert told == [f"matching pairs: {done} of 10 pairs" for done in (1, 2, 3)]  # before a portion is saved
    assert len(PairJournal(model / "matches.h5")) == 3
    again = OracleMatcher(scene, keep=0.4)
    monkeypatch.setattr("coam.cli.sfm.load_for_sfm", lambda *_: again)
    assert run("sfm", photos, "-o", model).exit_code == 0
    assert len(again.calls) == 7


def test_matches_of_a_stopped_run_are_refused_and_its_old_model_is_still_described(
    run, scene, photos, tmp_path, monkeypatch
):
    def use(resolution):
        matcher = OracleMatcher(scene, keep=resolution / 1600)
        matcher.config = MatcherConfig(resolution=resolution)
        monkeypatch.setattr("coam.cli.sfm.load_for_sfm", lambda *_: matcher)
        return matcher

    def resolution_of_model():
        return read_settings(tmp_path / "model")["matcher"]["settings"]["resolution"]

    use(640)
    assert run("sfm", photos, "-o", tmp_path / "model").exit_code == 0
    interrupted(use(480))
    assert run("sfm", photos, "-o", tmp_path / "model", "--overwrite").exit_code == 130
    assert resolution_of_model() == 640  # `coam localize` works in it as before
    use(640)
    refused = run("sfm", photos, "-o", tmp_path / "model")
    assert "holds matches made with resolution 480 (now 640)" in last_line(refused)
    use(480)
    assert run("sfm", photos, "-o", tmp_path / "model").exit_code == 0
    assert resolution_of_model() == 480


def test_a_folder_that_cannot_be_written_is_named_first(run, photos, tmp_path, monkeypatch):
    no_folders_can_be_made(monkeypatch)
    result = run("sfm", photos, "-o", tmp_path / "new" / "model")
    assert result.exit_code == 2
    line = last_line(result)
    assert f"{tmp_path}/new/model: cannot be written (Permission denied); check the folder" in line
    assert list(tmp_path.iterdir()) == []


def test_matches_of_another_matcher_are_not_thrown_away(run, scene, photos, tmp_path, monkeypatch):
    def use(keep, resolution):
        matcher = OracleMatcher(scene, keep=keep)
        matcher.config = MatcherConfig(resolution=resolution)
        monkeypatch.setattr("coam.cli.sfm.load_for_sfm", lambda *_: matcher)
        return matcher

    use(0.4, 640)
    assert run("sfm", photos, "-o", tmp_path / "model").exit_code == 0
    settings = json.loads((tmp_path / "model" / "settings.json").read_text())
    assert settings["matcher"]["settings"]["resolution"] == 640
    assert settings["matcher"]["settings"]["looks"] == "once"
    before = (tmp_path / "model" / "matches.h5").read_bytes()
    other = use(0.3, 480)
    refused = run("sfm", photos, "-o", tmp_path / "model")
    assert refused.exit_code == 2
    assert "holds matches made with resolution 640 (now 480); choose another folder" in last_line(refused)
    assert (tmp_path / "model" / "matches.h5").read_bytes() == before
    assert other.calls == []
    again = run("sfm", photos, "-o", tmp_path / "model", "--overwrite")
    assert "was made with resolution 640 (now 480): all pairs are matched again" in again.output
    assert len(other.calls) == 10


def test_localize_takes_the_settings_of_the_model(built, tmp_path, monkeypatch, matcher):
    from coam.cli.localize import loads_as_made

    asked = []
    monkeypatch.setattr("coam.cli.sfm.load_for_sfm", lambda *given: asked.append(given) or matcher)
    made = {"model": "cdunet-lite1", "weights": "0123456789abcdef", "settings": {"resolution": 640}}
    (tmp_path / "settings.json").write_text(json.dumps({"matcher": made}))
    loads_as_made(tmp_path, None, "cpu", None)()
    loads_as_made(tmp_path, "mine.safetensors", "cpu", 99)()
    assert asked == [
        ("cdunet-lite1", "cpu", {"resolution": 640}),
        ("mine.safetensors", "cpu", {"resolution": 640, "max_matches": 99}),
    ]


def test_other_weights_are_a_warning(tmp_path, matcher):
    class Weighted:
        file = SimpleNamespace(sha256="fedcba9876543210" * 4, name="x")

    (tmp_path / "settings.json").write_text(json.dumps({"matcher": {"weights": "0123456789abcdef"}}))
    assert "other weights (0123456789abcdef, now fedcba9876543210)" in warning_about_weights(
        tmp_path, Weighted()
    )
    (tmp_path / "settings.json").write_text(json.dumps({"matcher": {"weights": "fedcba9876543210"}}))
    assert warning_about_weights(tmp_path, Weighted()) == ""


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["sfm", "{tmp}/none", "-o", "{tmp}/m"], "no such folder; give a folder of photos"),
        (["sfm", "{tmp}", "-o", "{tmp}/m"], "holds no photos"),
        (
            ["sfm", "{tmp}", "-o", "{tmp}/m", "--tracks", "x"],
            "--tracks x: choose one of quantised, merged, refined",
        ),
        (["sfm", "{tmp}", "-o", "{tmp}/m", "--pairing", "poses"], "give one with --reference"),
        (
            ["sfm", "{tmp}", "-o", "{tmp}/m", "--reference", "{tmp}", "--cameras", "x.txt"],
            "--reference has the cameras too; leave --cameras out",
        ),
        (["sfm", "{tmp}", "-o", __file__], "test_cli.py: is a file; give a folder"),
        (["sfm", "{tmp}", "-o", "{tmp}/m", "--hloc", __file__], "test_cli.py: is a file; give a folder"),
        (["localize", "{tmp}", "{tmp}"], "holds no finished model"),
        (["localize", "{tmp}", "{tmp}", "-o", "{tmp}/x.csv"], "ending '.csv'; use one of .txt, .json"),
    ],
)
def test_mistakes_are_one_line_and_exit_code_2(run, tmp_path, arguments, line):
    result = run(*[argument.format(tmp=tmp_path) for argument in arguments])
    assert result.exit_code == 2
    assert line in last_line(result)
    assert "Traceback" not in result.output


def test_a_video_is_reconstructed_from_its_frames(run, tmp_path, monkeypatch):
    """The matcher sees frames below the model folder; a second run finds them there."""
    video = write_pan(tmp_path / "walk.avi", range(0, 320, 8))
    seen = []

    def open_workspace(photos, *_):
        seen.append(sorted(path.relative_to(photos).as_posix() for path in list_photos(photos)))
        raise DataError("far enough")

    monkeypatch.setattr("coam.sfm.workspace.open_workspace", open_workspace)
    for _ in range(2):
        assert last_line(run("sfm", video, "-o", tmp_path / "model", "--frames", 6)) == "error: far enough"
    assert seen == [[f"walk.avi/{number:04d}.jpg" for number in range(1, 7)]] * 2
    assert (tmp_path / "model" / "frames" / "walk.avi" / "frames.json").is_file()

"""The tabs' jobs as programs call them: answers with numbers, refusals in one line, time limits."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from coam import Registration, Warp
from coam.app import Limits, create_app
from coam.app.engine import model_names
from coam.app.jobs import Answer, for_programs, for_tab, with_deadline
from coam.errors import DataError
from coam.types import Matches

gradio = pytest.importorskip("gradio")
LOOK = "one look"


@pytest.fixture(scope="module")
def asked(tmp_path_factory, photos):
    """Endpoint name -> function, and the pair's first inputs: two uploads, model, resolution."""
    uploads = tmp_path_factory.mktemp("uploads")
    before = os.environ.get("GRADIO_TEMP_DIR")
    os.environ["GRADIO_TEMP_DIR"] = str(uploads)
    app = create_app(api=True)
    os.environ.pop("GRADIO_TEMP_DIR") if before is None else os.environ.update(GRADIO_TEMP_DIR=before)
    functions = {each.api_name: each.fn for each in app.fns.values() if each.api_visibility == "public"}
    paths = [str(shutil.copy(photo, uploads)) for photo in photos]
    return functions, [*paths, model_names()[0], 320]


def test_match_gives_matches_and_figures(asked):
    functions, pair = asked
    facts, files = functions["match"](*pair, 128, LOOK, "lines")
    matches = Matches.load(files[0])
    assert len(matches) == facts["matches"] <= 128
    moved = np.median(matches.points1 - matches.points0, axis=0)
    np.testing.assert_allclose(moved, (24, 10), atol=1)
    assert facts["inliers"]["homography"] > 0.8 * len(matches)
    assert [Path(file).name for file in files] == ["matches.npz", "matches.html", "matches.png"]


def test_geometry_fits_what_is_asked_for_and_saves_it(asked):
    functions, pair = asked
    facts, files = functions["geometry"](*pair, 128, LOOK, "homography", 3.0, 0)
    matrix = np.asarray(facts["matrix"])
    np.testing.assert_allclose(matrix / matrix[2, 2], [[1, 0, 24], [0, 1, 10], [0, 0, 1]], atol=1.5)
    assert json.loads(Path(files[0]).read_text()) == facts
    assert Matches.load(files[1]).meta["geometry"]["inlier_count"] == facts["inlier_count"]
    strict, _ = functions["geometry"](*pair, 128, LOOK, "homography", 0.25, 0)
    assert (facts["threshold"], strict["threshold"]) == (3.0, 0.25)
    assert strict["inlier_count"] >= 0.95 * facts["inlier_count"]  # aligned in the pixels of the photos
    pose, _ = functions["geometry"](*pair, 128, LOOK, "relative pose", 1.0, 400)
    assert np.linalg.norm(pose["translation"]) == pytest.approx(1)
    assert pose["intrinsics0"][0][0] == 400


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "relative pose"}, "focal length"),
        ({"kind": "cubic"}, "no geometry"),
        ({"threshold": 1e9}, "threshold"),
        ({"threshold": float("nan")}, "threshold"),
        ({"focal": -3}, "focal length"),
        ({"focal": 1e12}, "focal length"),
    ],
)
def test_geometry_refuses_what_the_page_would_not_send(asked, change, words):
    functions, pair = asked
    last = {"kind": "homography", "threshold": 3.0, "focal": 0} | change
    with pytest.raises(gradio.Error, match=words):
        functions["geometry"](*pair, 128, LOOK, *last.values())


def test_warp_says_where_pixels_lie(asked):
    functions, pair = asked
    facts, files = functions["warp"](*pair)
    warp = Warp.load(files[0])
    assert facts["mean_certainty"] == pytest.approx(float(warp.certainty.mean()))
    places, certainty = warp.forward.at([[200, 150], [120, 90]])
    np.testing.assert_allclose(
        places[certainty > 0.9], np.array([[224, 160], [144, 100]])[certainty > 0.9], atol=2
    )
    assert (certainty > 0.9).any()
    assert [Path(file).name for file in files] == ["ab.warp.npz", "ab.flo", "ab.flow.png", "ab.warped.png"]


def test_register_lays_photo_2_on_photo_1_and_says_how_sure(asked):
    functions, pair = asked
    facts, files = functions["register"](*pair, 512, LOOK, "auto")
    # Photo 2 moves: what it shows at (24, 10) lies at (0, 0) of photo 1.
    np.testing.assert_allclose(facts["matrix"], [[1, 0, -24], [0, 1, -10], [0, 0, 1]], atol=0.5)
    assert facts["kind"] == "translation"
    assert (facts["refusal"], facts["confidence"] > 0.9) == ("", True)
    names = [
        "photo-2-on-photo-1.png",
        "registration.json",
        "registration.points",
        "registration.html",
    ]
    assert [Path(file).name for file in files] == names
    found = Registration.load(files[1])
    np.testing.assert_allclose(found.points([[124, 110]]), [[100, 100]], atol=0.5)
    moved, fixed = (np.asarray(Image.open(path), np.float64) for path in (files[0], pair[0]))
    assert np.abs(moved - fixed)[20:-20, 20:-40].mean() < 8  # JPEG's, and half a pixel at most
    with pytest.raises(gradio.Error, match="no transform 'cubic'"):
        functions["register"](*pair, 512, LOOK, "cubic")


def test_register_hands_out_no_photo_that_it_does_not_trust(asked, monkeypatch):
    functions, pair = asked
    monkeypatch.setattr("coam.registration.quality.HOLDS", (0.0, 0.0, -60.0))
    facts, files = functions["register"](*pair, 256, LOOK, "auto")
    assert "right with a probability of 0.00 only" in facts["refusal"]
    assert [Path(file).suffix for file in files] == [".json", ".points", ".html"]


def test_explain_finds_the_point_and_wants_one(asked):
    functions, pair = asked
    facts, _ = functions["explain"](*pair, 200, 150, False)
    np.testing.assert_allclose(facts["best"], (224, 160), atol=4)
    outside, _ = functions["explain"](*pair, 1e7, -5, False)
    assert outside["point"] == [399, 0]
    for point in ((None, 3), (float("nan"), 3), ("x", 3)):
        with pytest.raises(gradio.Error, match="click a point"):
            functions["explain"](*pair, *point, False)


def test_compare_shows_both_on_the_same_pair(asked):
    functions, pair = asked
    facts, files = functions["compare"](*pair, 128, LOOK, model_names()[0], "sift")
    assert set(facts) == {model_names()[0], "sift"}
    for file in files:
        matches = Matches.load(file)
        np.testing.assert_allclose(np.median(matches.points1 - matches.points0, axis=0), (24, 10), atol=1)
        assert matches.meta.get("image0") is None
    with pytest.raises(gradio.Error, match="no matcher"):
        functions["compare"](*pair, 128, LOOK, "os:system", "sift")


@pytest.mark.parametrize(
    "name", ["match", "warp", "register", "geometry", "explain", "compare", "stylize", "reconstruct"]
)
def test_files_that_were_not_uploaded_get_one_answer(asked, photos, name):
    functions, pair = asked
    if name not in functions:
        pytest.skip("not part of this installation")
    rest = {
        "match": (128, LOOK, "lines"), "geometry": (128, LOOK, "homography", 3.0, 0),
        "explain": (1, 1, False),
        "compare": (128, LOOK, "sift", "orb"), "stylize": (1.0, True), "warp": (),
        "register": (128, LOOK, "auto"),
    }  # fmt: skip
    answers = set()
    for path in (str(photos[0]), "/etc/hostname", "/dev/zero", "/nowhere", str(Path(pair[0]).parent)):
        given = [[path, path], *pair[2:]] if name == "reconstruct" else [path, path, *pair[2:], *rest[name]]
        with pytest.raises(gradio.Error) as caught:
            functions[name](*given)
        answers.add(str(caught.value))
    assert answers == {"'photo 1 is no longer there; upload it again'"}


def slow_job(photo1, photo2):
    for step in range(100):
        yield f"step {step}"
    return Answer("done", ("a",), ["file"], {"n": 1})


def test_a_job_as_an_event_and_as_an_endpoint():
    shown = list(for_tab(gradio, slow_job, 1)("x", "y"))
    assert shown[0] == ("step 0", None, None)
    assert shown[-1] == ("done", "a", ["file"])
    assert for_programs(gradio, slow_job, 60)("x", "y") == ({"n": 1}, ["file"])
    with pytest.raises(gradio.Error, match="took more than 0 s"):
        for_programs(gradio, slow_job, 0)("x", "y")


def test_an_event_that_takes_too_long_says_so_once(monkeypatch):
    told = []
    monkeypatch.setattr("coam.app.jobs.refusal", lambda gradio, error: told.append(str(error)) or "refused")
    steps = list(with_deadline(for_tab(gradio, slow_job, 2), 0)("x", "y"))
    assert steps[-1] == ("refused", None, None, None)
    assert len(steps) == 2
    assert told == ["this took more than 0 s, so it was ended"]


def test_a_refusal_empties_what_was_shown(monkeypatch):
    monkeypatch.setattr("coam.app.jobs.refusal", lambda gradio, error: str(error))

    def job():
        yield "working"
        raise DataError("no good")

    assert list(for_tab(gradio, job, 2)()) == [("working", None, None, None), ("no good", None, None, None)]


def test_without_being_asked_for_there_is_no_endpoint():
    app = create_app(limits=Limits())
    assert {each.api_visibility for each in app.fns.values()} == {"private"}


@pytest.mark.parametrize(
    ("place", "value", "name"),
    [(3, None, "resolution"), (3, float("nan"), "resolution"), (4, "many", "most"), (4, float("inf"), "most"),
     (2, 5, "model"), (0, [1], "photo1"), (6, {}, "picture")],
)  # fmt: skip
def test_arguments_of_the_wrong_kind_are_refused_in_one_line(asked, place, value, name):
    functions, pair = asked
    arguments = [*pair, 128, LOOK, "lines"]
    arguments[place] = value
    with pytest.raises(Exception, match=f"{name} must be a (number|text)") as refused:
        functions["match"](*arguments)
    assert (
        type(refused.value).__name__ == "Error"
    )  # gradio's: a line for the program, no traceback in the log

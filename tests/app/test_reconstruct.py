"""The tab Reconstruct: uploads, commands, stages, states, what outlives a reload."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

pytest.importorskip("pycolmap")

from coam.app.commands import Command
from coam.app.engine import Engine, Limits, model_names
from coam.app.reconstruct import begin, locate_photo
from coam.app.reconstruction import (
    STAGES,
    Reconstruction,
    Reconstructions,
    archive_of,
    collect_photos,
    photo_states,
    stage_of,
    stages_html,
    states_html,
    summary_of,
    words_about,
)
from coam.errors import ConfigError, DataError, ImageError
from coam.images import load_image


@pytest.fixture
def engine(tmp_path_factory) -> Engine:
    return Engine(limits=Limits(max_photos=3), uploads=tmp_path_factory.getbasetemp())


def test_uploads_are_checked_and_written_anew(engine, photos, tmp_path):
    exif = Image.Exif()
    exif.get_ifd(0x8769)[0xA405] = 28
    exif[0x010E] = "where I live"
    private = tmp_path / "private.jpg"
    Image.open(photos[0]).save(private, exif=exif)
    names = collect_photos(engine, [str(private), str(photos[1])], tmp_path / "in")
    assert names == {"photo_001.jpg": "private.jpg", "photo_002.jpg": photos[1].name}
    written = sorted((tmp_path / "in").iterdir())
    assert [path.name for path in written] == list(names)
    assert load_image(written[0]).focal35 == 28  # the camera model starts from it
    assert 0x010E not in Image.open(written[0]).getexif()


def test_too_few_too_many_and_broken_photos_are_refused(engine, photos, tmp_path):
    for paths in (None, [], [str(photos[0])]):
        with pytest.raises(ConfigError, match="at least two"):
            collect_photos(engine, paths, tmp_path / "a")
    with pytest.raises(ConfigError, match="at most 3"):
        collect_photos(engine, [str(photos[0])] * 4, tmp_path / "b")
    broken = tmp_path / "broken.jpg"
    broken.write_bytes(b"no picture")
    with pytest.raises(ImageError, match="photo 2"):
        collect_photos(engine, [str(photos[0]), str(broken)], tmp_path / "c")


def test_what_a_request_asks_for_is_checked_before_anything_starts(engine, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    works = Reconstructions()
    for model, resolution, words in (("--help", 320, "no model"), (model_names()[0], 99_999, "resolution")):
        with pytest.raises(ConfigError, match=words):
            begin(engine, works, [str(photo) for photo in photos], model, resolution)
    with pytest.raises(ConfigError, match="at least two"):
        begin(engine, works, [str(photos[0])], model_names()[0], 320)
    assert list(tmp_path.iterdir()) == []


def test_a_command_that_fails_says_why_and_a_stopped_or_late_one_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    arguments = ["sfm", str(tmp_path / "empty"), "--output", str(tmp_path / "model")]
    with pytest.raises(DataError, match="photo"):
        list(Command(arguments, 100).wait())
    stopped = Command(arguments, 100)
    stopped.stop()
    assert not stopped.running
    with pytest.raises(DataError, match="cancelled"):
        list(stopped.wait())
    began = time.monotonic()
    with pytest.raises(DataError, match="more than 0 s"):
        list(Command(arguments, 0.2).wait())
    assert time.monotonic() - began < 60


def test_stages_and_time_left_are_read_from_what_the_command_says():
    lines = ["6 photos, 15 pairs (all)"]
    assert stage_of([]).number == 0
    assert (stage_of(lines).number, stage_of(lines).share) == (1, None)
    lines.append("matching: 3 of 15 pairs, about 12 s left")
    assert stage_of(lines).share == pytest.approx(0.2)
    assert stage_of(lines).left == "about 12 s left"
    page = stages_html(stage_of(lines), 7.4)
    assert 'value="0.200"' in page
    assert "20% · about 12 s left" in page
    assert "7 s so far" in page
    lines += ["matched; verifying pairs", "15 pairs: 14 verified, 1 not, 0 contradicted"]
    assert (stage_of(lines).number, stage_of(lines).left) == (2, "")
    lines += ["aligning matches in the photos", "3120 tracks; building the model"]
    assert stage_of(lines).number == len(STAGES) - 1
    assert page.count("<li") == len(STAGES)


def made(folder: Path, registered: int = 2) -> Reconstruction:
    """A finished reconstruction of four photos."""
    for path, content in (("model/sparse/0/points3D.bin", "points"), ("photos/photo_001.jpg", "jpeg")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)
    summary = {
        "registered_images": registered, "photos": 4, "sparse_points": 1234, "mean_track_length": 3.456,
        "mean_reprojection_error": 0.789, "seconds": 12.3, "left_out": ["photo_004.jpg: is broken"],
        "registered": ["photo_001.jpg"],
        "warnings": ["not in the model, because no pair with them was verified: photo_002.jpg; turn them"],
    }  # fmt: skip
    (folder / "model" / "summary.json").write_text(json.dumps(summary))
    names = {f"photo_00{k}.jpg": f"{name}.jpg" for k, name in enumerate(("a", "<b>", "c", "d"), start=1)}
    command = SimpleNamespace(
        running=False, lines=["photo_003.jpg: taken out, what it shares"], stop=lambda: None
    )
    return Reconstruction(folder, names, command)


def test_every_photo_has_a_state_and_a_reason(tmp_path):
    work = made(tmp_path)
    states = {each.name: each for each in photo_states(work, summary_of(work), {"photo_001.jpg": 77})}
    assert states["a.jpg"].state == "in the model"
    assert "77 points" in states["a.jpg"].why
    assert states["<b>.jpg"].state == "left out"
    assert "no other photo shows the same place" in states["<b>.jpg"].why
    assert states["c.jpg"].state == "doubted"
    assert states["d.jpg"].why == "is broken"
    work.located["located 1"] = {
        "located": False,
        "reason": "too few inliers",
        "inliers": 3,
        "confidence": 0.0,
    }
    table = states_html(photo_states(work, summary_of(work), {}), {})
    assert "&lt;b&gt;.jpg" in table
    assert "<b>.jpg" not in table
    assert "not located" in table


def test_a_finished_model_is_told_and_packed(tmp_path):
    work = made(tmp_path / "good")
    for part in ("2 of 4 photos", "1,234 points", "3.46", "0.79 px", "12 s"):
        assert part in words_about(summary_of(work))
    names = zipfile.ZipFile(archive_of(work, "<p>")).namelist()
    assert {"model/sparse/0/points3D.bin", "photos/photo_001.jpg", "scene.html"} <= set(names)
    with pytest.raises(DataError, match="no pair with them"):
        summary_of(made(tmp_path / "bad", 0))


def test_a_key_finds_its_own_reconstruction_and_nothing_else(tmp_path):
    works = Reconstructions()
    one = made(tmp_path / "one")
    works._all[one.key] = one
    assert works.find(one.key) is one
    for key in (None, "", "x", 3, ["x"], {}, one.key[:-1], str(one.folder)):
        with pytest.raises(DataError, match="no longer there"):
            works.find(key)
    works.close()
    assert not one.folder.exists()
    with pytest.raises(DataError, match="no longer there"):
        works.find(one.key)


def test_localization_needs_a_finished_model_and_an_upload(engine, photos, tmp_path):
    work = made(tmp_path / "one")
    for path in (None, "/etc/hostname", "/dev/zero"):
        with pytest.raises((ImageError, ConfigError), match="the photo to locate"):
            list(locate_photo(engine, work, path))
    assert work.busy.acquire(blocking=False)  # a refusal gives it back
    with pytest.raises(DataError, match="another photo"):
        list(locate_photo(engine, work, str(photos[0])))
    work.busy.release()
    (work.model / "summary.json").unlink()
    with pytest.raises(DataError, match="no finished model"):
        list(locate_photo(engine, work, str(photos[0])))
    work.located.update({str(k): {} for k in range(3)})
    (work.model / "summary.json").write_text("{}")
    with pytest.raises(DataError, match="were located"):
        list(locate_photo(engine, work, str(photos[0])))

"""The tab Reconstruct: uploads, the process of a job, its result."""

from __future__ import annotations

import json
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("pycolmap")

from coam.app.engine import Engine, Limits, model_names
from coam.app.reconstruct import Job, collect_photos, finished, follow
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
    assert collect_photos(engine, [str(private), str(photos[1])], tmp_path / "in") == 2
    written = sorted((tmp_path / "in").iterdir())
    assert [path.name for path in written] == ["photo_001.jpg", "photo_002.jpg"]
    assert load_image(written[0]).focal35 == 28  # the camera model starts from it
    assert 0x010E not in Image.open(written[0]).getexif()
    difference = load_image(written[0]).rgb.astype(int) - load_image(private).rgb
    assert np.abs(difference).mean() < 4


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


def test_a_job_that_fails_says_why_and_a_stopped_one_says_so(tmp_path):
    (tmp_path / "empty").mkdir()
    job = Job(tmp_path / "empty", tmp_path / "model", model_names()[0], 320)
    with pytest.raises(DataError, match="photo"):
        list(follow(job))
    job = Job(tmp_path / "empty", tmp_path / "model", model_names()[0], 320)
    began = time.monotonic()
    job.stop()
    assert time.monotonic() - began < 5
    assert not job.running
    with pytest.raises(DataError, match="cancelled"):
        list(follow(job))


def make_model(folder: Path, registered: int) -> Path:
    (folder / "sparse" / "0").mkdir(parents=True)
    (folder / "sparse" / "0" / "points3D.bin").write_bytes(b"points")
    (folder / "model.html").write_text('<p title="x">cloud</p>')
    summary = {
        "registered_images": registered, "photos": 5, "sparse_points": 1234, "mean_track_length": 3.456,
        "mean_reprojection_error": 0.789, "seconds": 12.3, "warnings": ["take more photos"],
    }  # fmt: skip
    (folder / "summary.json").write_text(json.dumps(summary))
    return folder


def test_a_finished_model_is_told_shown_and_packed(tmp_path):
    words, page, archive = finished(make_model(tmp_path / "good" / "model", 4))
    for part in ("4 of 5 photos", "1,234 points", "3.46", "0.79 px", "12 s", "take more photos"):
        assert part in words
    assert 'sandbox="allow-scripts"' in page
    assert "&lt;p title=&quot;x&quot;&gt;" in page
    assert zipfile.ZipFile(archive).namelist()[-1] == "0/points3D.bin"
    with pytest.raises(DataError, match="take more photos"):
        finished(make_model(tmp_path / "bad" / "model", 0))

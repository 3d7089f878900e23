"""Which files the app reads: regular ones in its upload folder, and what a job that takes too long gets."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from coam.app.jobs import with_deadline
from coam.app.uploads import read_upload
from coam.errors import CoamError, ImageError


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    uploads = tmp_path / "uploads"
    (uploads / "ab" / "cd").mkdir(parents=True)
    (uploads / "ab" / "cd" / "photo.png").write_bytes(b"content")
    (tmp_path / "secret.png").write_bytes(b"secret")
    (tmp_path / "uploads-too").mkdir()
    (tmp_path / "uploads-too" / "a.png").write_bytes(b"secret")
    return uploads


def test_an_upload_is_read_also_where_the_folder_lies_behind_a_link(folder, tmp_path):
    assert read_upload(folder / "ab" / "cd" / "photo.png", folder, 7, "photo 1") == b"content"
    (tmp_path / "link").symlink_to(folder)
    for written, root in ((tmp_path / "link", tmp_path / "link"), (folder, tmp_path / "link")):
        assert read_upload(written / "ab" / "cd" / "photo.png", root, 7, "photo 1") == b"content"


def test_everything_else_gets_one_answer_at_once(folder, tmp_path):
    os.mkfifo(folder / "pipe")
    (folder / "link").symlink_to(tmp_path / "secret.png")
    (folder / "way").symlink_to(tmp_path)
    (folder / "inner").symlink_to(folder / "ab" / "cd" / "photo.png")
    names = [
        tmp_path / "secret.png",
        tmp_path / "gone.png",
        folder / "gone.png",
        folder / "pipe",
        folder / "link",
    ]
    names += [
        folder / "way" / "secret.png",
        folder / "inner",
        folder,
        folder / "ab",
        "/dev/zero",
        "",
        "\0",
        "x.png",
    ]
    names += [f"{folder}/../secret.png", f"{folder}/ab/../../secret.png", tmp_path / "uploads-too" / "a.png"]
    began, answers = time.monotonic(), set()
    for name in names:
        with pytest.raises(ImageError) as caught:
            read_upload(name, folder, 100, "photo 1")
        answers.add(str(caught.value))
    assert answers == {"photo 1 is no longer there; upload it again"}
    assert time.monotonic() - began < 1
    with pytest.raises(ImageError, match="no longer there"):
        read_upload(folder / "ab" / "cd" / "photo.png", None, 100, "photo 1")


def test_the_size_is_that_of_the_open_file(folder):
    with pytest.raises(ImageError, match="at most 0 MB"):
        read_upload(folder / "ab" / "cd" / "photo.png", folder, 6, "photo 1")


def test_a_job_ends_at_its_first_step_after_its_time():
    done, closed = [], []

    def job(name: str):
        try:
            for step in range(100):
                done.append(step)
                time.sleep(0.02)
                yield f"{name} {step}"
        except CoamError as error:
            yield f"refused: {error}"
        finally:
            closed.append(True)

    steps = list(with_deadline(job, 0.05)("match"))
    assert steps[-1] == "refused: this took more than 0 s, so it was ended"
    assert 1 <= len(done) < 100
    assert closed == [True]
    assert list(with_deadline(job, 60)("match")) == [f"match {step}" for step in range(100)]


def test_a_cancelled_job_is_closed():
    closed = []

    def job():
        try:
            yield 1
            yield 2
        finally:
            closed.append(True)

    steps = with_deadline(job, 60)()
    assert next(steps) == 1
    steps.close()
    assert closed == [True]

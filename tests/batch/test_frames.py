"""Frames as photos: written once, found again, made anew when the video changes; videos beside photos."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from PIL import Image

from coam.batch import extract_frames, photos_of, with_frames
from coam.batch.pair_lists import pairs_between
from coam.errors import DataError
from coam.images.video import FrameOptions
from coam.sfm.cameras import CameraChoice, make_cameras
from coam.sfm.photos import read_photo_folder
from support.simple_matchers import save, textured
from support.videos import write_pan

pytest.importorskip("pycolmap")
PAN = list(range(0, 320, 8))  # one width of motion: eleven places a tenth apart


def test_frames_are_extracted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    video = write_pan(tmp_path / "walk.avi", PAN)
    frames = extract_frames(video, tmp_path / "frames")
    assert [frame.name for frame in frames] == [f"{number:04d}.jpg" for number in range(1, len(frames) + 1)]
    assert 9 <= len(frames) <= 11
    assert all(Image.open(frame).size == (320, 240) for frame in frames)
    with monkeypatch.context() as closed:
        closed.setattr("coam.batch.frames.walk_video", lambda *_: pytest.fail("read again"))
        assert extract_frames(video, tmp_path / "frames") == frames
    assert len(extract_frames(video, tmp_path / "frames", FrameOptions(most=4))) == 4  # other options
    write_pan(video, PAN[:20])
    assert len(extract_frames(video, tmp_path / "frames")) < len(frames)  # another video of that name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["frames", "walk.avi"]  # nothing temporary


def test_a_folder_with_videos_and_photos_becomes_one_folder(tmp_path: Path) -> None:
    source, cache = tmp_path / "phone", tmp_path / "model" / "frames"
    write_pan(source / "a" / "one.avi", PAN)
    write_pan(source / "two.avi", PAN[:20])
    save(source / "still.png", textured(1))
    folder = read_photo_folder(with_frames(source, cache))
    names = folder.names
    assert "still.png" in names
    assert sum(name.startswith("a/one.avi/") for name in names) >= 9
    assert sum(name.startswith("two.avi/") for name in names) >= 4
    assert folder.left_out == ()
    cameras = make_cameras(folder.photos, CameraChoice())
    assert len(cameras.cameras) == 3  # one for each video, one for the photo
    # A photo or video that is taken away is no longer reconstructed from.
    (source / "two.avi").unlink()
    (source / "still.png").unlink()
    assert {name.split("/")[0] for name in read_photo_folder(with_frames(source, cache)).names} == {"a"}


def test_sources_without_videos_stay_where_they_are(tmp_path: Path) -> None:
    save(tmp_path / "photos" / "a.png", textured(1))
    assert with_frames(tmp_path / "photos", tmp_path / "cache") == tmp_path / "photos"
    assert not (tmp_path / "cache").exists()
    with pytest.raises(DataError, match="no such folder"):
        with_frames(tmp_path / "none", tmp_path / "cache")


def test_photos_of_a_file_a_folder_and_a_video(tmp_path: Path) -> None:
    save(tmp_path / "a" / "deep" / "1.png", textured(1))
    save(tmp_path / "a" / "2.png", textured(2))
    video = write_pan(tmp_path / "a" / "v.avi", PAN)
    assert [photo.name for photo in photos_of(tmp_path / "a")] == ["2.png", "deep/1.png"]
    both = photos_of(tmp_path / "a", tmp_path / "cache")
    assert [photo.name for photo in both][:3] == ["2.png", "deep/1.png", "v.avi/0001.jpg"]
    frames = photos_of(video, tmp_path / "cache2")
    assert len(frames) == len(both) - 2
    single = photos_of(tmp_path / "a" / "2.png")
    assert len(pairs_between(single, both)) == len(both) - 1  # not with itself
    assert len(pairs_between(both, both)) == len(both) * (len(both) - 1) // 2
    (tmp_path / "none").mkdir()
    with pytest.raises(DataError, match="holds no photos"):
        photos_of(tmp_path / "none")


def test_results_inside_the_photo_folder_are_no_photos(tmp_path: Path) -> None:
    """`coam sfm . -o model`: frames of the first run lie below the folder of photos."""
    write_pan(tmp_path / "v.avi", PAN)
    save(tmp_path / "1.png", textured(1))
    cache = tmp_path / "model" / "frames"
    first = read_photo_folder(with_frames(tmp_path, cache)).names
    os.utime(tmp_path / "v.avi")  # extracted again
    assert read_photo_folder(with_frames(tmp_path, cache)).names == first

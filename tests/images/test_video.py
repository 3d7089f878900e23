"""Frames of a video: the measured path is the true one, standing still adds none, sharp ones are taken."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from coam.errors import DataError
from coam.images.video import FrameOptions, FramePath, choose_frames, read_frames, walk_video
from support.simple_matchers import textured
from support.videos import write_pan

EVERY_FRAME = FrameOptions(per_second=30)
STILL, MOVING = [0] * 30, list(range(0, 640, 4))


def test_the_path_is_as_long_as_the_camera_has_moved(tmp_path: Path) -> None:
    path = walk_video(write_pan(tmp_path / "pan.avi", [*STILL, *MOVING, *[MOVING[-1]] * 60]), EVERY_FRAME)
    assert len(path.index) == 30 + 160 + 60
    assert path.position[:30].max() < 0.005  # of the width
    assert abs(path.position[-1] - MOVING[-1] / 320) < 0.04  # 636 of 320 pixels: 1.99 widths, two percent off
    assert np.ptp(path.position[-60:]) < 0.005


def test_a_trembling_hand_goes_nowhere(tmp_path: Path) -> None:
    tremble = np.random.default_rng(0).integers(0, 7, 120).tolist()
    path = walk_video(write_pan(tmp_path / "tremble.avi", tremble), EVERY_FRAME)
    assert path.position.max() < 0.03
    assert len(choose_frames(path)) == 1


def test_frames_are_a_step_apart_and_the_sharp_ones(tmp_path: Path) -> None:
    offsets = [*STILL, *MOVING]
    video = write_pan(tmp_path / "pan.avi", offsets, sharp_every=3)
    chosen = choose_frames(walk_video(video, EVERY_FRAME), EVERY_FRAME)
    assert (chosen % 3 == 0).all()  # one frame in three is sharp
    steps = np.diff([offsets[number] for number in chosen]) / 320
    assert steps.min() > 0.05
    assert steps.max() < 0.15
    assert 18 <= len(chosen) <= 22  # 1.99 widths in steps of a tenth


def test_no_more_frames_than_asked_for(tmp_path: Path) -> None:
    path = walk_video(write_pan(tmp_path / "pan.avi", MOVING))
    chosen = choose_frames(path, FrameOptions(most=5))
    assert len(chosen) == 5
    assert np.diff(chosen).min() > 25  # spread over all 160, not the first five steps


def test_choice_by_hand() -> None:
    position = np.array([0.0, 0.02, 0.04, 0.08, 0.1, 0.12, 0.16, 0.34])
    sharpness = np.array([1.0, 3.0, 9.0, 2.0, 1.0, 5.0, 9.0, 1.0])
    path = FramePath(np.arange(8) * 10, position, sharpness)
    # Places 0, .1, .2 (nothing near: the nearest) and .3; .04 and .16 are further than a quarter step off.
    assert choose_frames(path).tolist() == [10, 50, 60, 70]


def test_frames_are_read_as_they_were_written(tmp_path: Path) -> None:
    video = write_pan(tmp_path / "pan.avi", MOVING[:40])
    frames = dict(read_frames(video, np.array([0, 7, 33])))
    assert sorted(frames) == [0, 7, 33]
    whole = textured(3, (MOVING[39] + 320, 240)).astype(float)
    for number, frame in frames.items():
        expected = whole[:, MOVING[number] : MOVING[number] + 320]
        assert np.abs(frame - expected).mean() < 4  # JPEG
    colour = np.zeros((64, 64, 3), np.uint8)
    colour[..., 0] = 200  # red first
    import cv2

    writer = cv2.VideoWriter(str(tmp_path / "red.avi"), cv2.VideoWriter_fourcc(*"MJPG"), 30.0, (64, 64))
    writer.write(colour[:, :, ::-1])
    writer.release()
    (_, red), *_ = read_frames(tmp_path / "red.avi", np.array([0]))
    assert red[..., 0].mean() > 180
    assert red[..., 2].mean() < 30


def test_what_is_no_video_is_named_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    (tmp_path / "empty.avi").touch()
    write_pan(tmp_path / "tiny.avi", [0, 1], size=(12, 12))
    for name, what in (
        ("text.mp4", "cannot be read as a video"),
        ("empty.avi", "cannot be read as a video"),
        ("missing.mp4", "no such file"),
        ("tiny.avi", "only 12 x 12 pixels"),
    ):
        with pytest.raises(DataError, match=what) as error:
            walk_video(tmp_path / name)
        assert name in str(error.value)
        assert "\n" not in str(error.value)

"""Frames of a video, chosen by motion and sharpness.

How far the picture has moved is measured by dense optical flow against an anchor frame, which is replaced
once the flow to it has become large. So a hand that trembles, or a camera that stands still, adds nothing,
however long it lasts. Along this path one frame is taken every `FrameOptions.step`, the sharpest near it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.images.load import RGB

SMALLEST = 16  # pixels of a side from which optical flow is measured
Gray = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FrameOptions:
    """Which frames of a video are taken."""

    step: float = 0.1  # motion between two frames, of the long side: nine tenths of a panned view are common
    near: float = 0.25  # of a step: the sharpest frame within so much of its place is taken
    most: int = 150  # frames of one video; a longer path is walked in larger steps
    per_second: float = 10.0  # frames looked at
    anchor: float = 0.05  # motion, of the long side, from which flow is measured against a later frame
    flow_side: int = 256  # pixels of the long side at which motion is measured
    sharpness_side: int = 640  # pixels of the long side at which sharpness is: blur of a pixel matters little


@dataclass(frozen=True)
class FramePath:
    """What a video's frames that were looked at say about themselves."""

    index: npt.NDArray[np.int64]  # (N,) number of the frame in the video
    position: npt.NDArray[np.float64]  # (N,) motion since the first frame, in long sides
    sharpness: npt.NDArray[np.float64]  # (N,) variance of the Laplacian


def walk_video(
    video: str | Path, options: FrameOptions | None = None, looked_at: Callable[[int], None] = lambda n: None
) -> FramePath:
    """Motion and sharpness along a video. looked_at: told the number of every frame that is."""
    import cv2

    options = options or FrameOptions()
    index, position, sharpness = [], [], []
    create: Any = cv2.DISOpticalFlow.create
    flow = create(cv2.DISOPTICAL_FLOW_PRESET_FAST)
    anchor: Gray | None = None
    base = 0.0
    with _Opened(video) as opened:
        every = max(1, round(opened.rate / options.per_second))
        for number, frame in opened.frames(lambda number: number % every == 0):
            gray = cv2.cvtColor(frame, cv2.COLOR_BGR2GRAY)
            sharpness.append(float(cv2.Laplacian(_shrunk(gray, options.sharpness_side), cv2.CV_32F).var()))
            small = _shrunk(gray, options.flow_side)
            if min(small.shape) < SMALLEST:
                raise DataError(
                    f"{video}: only {gray.shape[1]} x {gray.shape[0]} pixels; give a larger video"
                )
            if anchor is None or anchor.shape != small.shape:
                anchor = small
            moved = np.linalg.norm(flow.calc(anchor, small, None), axis=2)
            away = float(np.median(moved)) / max(small.shape)
            index.append(number)
            position.append(base + away)
            if away > options.anchor:
                base, anchor = base + away, small
            looked_at(number)
    if not index:
        raise DataError(f"{video}: holds no frame that can be read; convert it, for example to .mp4")
    return FramePath(np.array(index), np.array(position), np.array(sharpness))


def choose_frames(path: FramePath, options: FrameOptions | None = None) -> npt.NDArray[np.int64]:
    """Numbers (K,) of the frames to take, ascending: one for each step of the path, the sharpest near it."""
    options = options or FrameOptions()
    length = float(path.position.max())
    step = max(options.step, length / max(1, options.most - 1))
    place = np.rint(path.position / step)
    off = np.abs(path.position / step - place)
    chosen = []
    for number in np.unique(place):
        here = np.flatnonzero(place == number)
        near = here[off[here] <= options.near]
        best = near[np.argmax(path.sharpness[near])] if len(near) else here[np.argmin(off[here])]
        chosen.append(int(path.index[best]))
    return np.sort(np.array(chosen, np.int64))


def read_frames(video: str | Path, numbers: npt.NDArray[np.int64]) -> Iterator[tuple[int, RGB]]:
    """The frames `numbers` (ascending) of a video: number and RGB (H, W, 3), upright."""
    wanted = {int(number) for number in numbers}
    with _Opened(video) as opened:
        for number, frame in opened.frames(wanted.__contains__):
            yield number, np.ascontiguousarray(frame[:, :, ::-1])
            if number == max(wanted):
                return


class _Opened:
    """OpenCV's reader of a video, one frame after the other: seeking is not exact in most formats."""

    def __init__(self, video: str | Path) -> None:
        self.video = Path(video)
        if not self.video.is_file():
            raise DataError(f"{video}: no such file; give a video")

    def __enter__(self) -> _Opened:
        import cv2

        self.capture: Any = cv2.VideoCapture(str(self.video))
        if not self.capture.isOpened():
            raise DataError(f"{self.video}: cannot be read as a video; convert it, for example to .mp4")
        self.rate = float(self.capture.get(cv2.CAP_PROP_FPS)) or 30.0
        return self

    def __exit__(self, *_: object) -> None:
        self.capture.release()

    def frames(self, wanted: Callable[[int], bool]) -> Iterator[tuple[int, Any]]:
        """Number and BGR (H, W, 3) of the wanted frames; the others are not converted."""
        number = 0
        while self.capture.grab():
            if wanted(number):
                there, frame = self.capture.retrieve()
                if there:  # a damaged frame is passed over
                    yield number, frame
            number += 1


def _shrunk(gray: Gray, side: int) -> Gray:
    import cv2

    factor = side / max(gray.shape)
    if factor >= 1:
        return gray
    size = tuple(max(16, round(length * factor)) for length in gray.shape[::-1])
    return np.asarray(cv2.resize(gray, size, interpolation=cv2.INTER_AREA), np.uint8)

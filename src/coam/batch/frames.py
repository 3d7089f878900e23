"""Frames of videos as photos: extracted once into a folder, and found there by the next run."""

from __future__ import annotations

import os
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from PIL import Image

from coam.errors import DataError
from coam.images.folder import is_video, list_photos, list_videos
from coam.images.video import FrameOptions, choose_frames, read_frames, walk_video
from coam.progress import progress
from coam.store.atomic import atomic_folder, remove_leftovers, write_json
from coam.store.documents import read_json

LIST = "frames.json"  # what the frames were made from, and which they are
_MAKE, _MODEL, _DESCRIPTION = 0x010F, 0x0110, 0x010E  # EXIF


def extract_frames(
    video: str | Path, folder: str | Path, options: FrameOptions | None = None, shown: bool = False
) -> list[Path]:
    """Write the chosen frames of a video as 0001.jpg, 0002.jpg, ... into `folder`; gives their paths.

    Where `folder` holds them already, nothing is read. `frames.json` there says which frames they are.
    """
    video, folder, options = Path(video), Path(folder), options or FrameOptions()
    stamp = _stamp(video, options)
    remove_leftovers(folder.parent)
    if _read_list(folder).get("stamp") != stamp:
        with progress(f"{video.name}: looking at frames", shown=shown, unit="frames") as bar:
            chosen = choose_frames(walk_video(video, options, bar.update), options)
            bar.begin(f"{video.name}: writing frames", len(chosen))
            with atomic_folder(folder) as temporary:
                for count, (number, rgb) in enumerate(read_frames(video, chosen), 1):
                    _save(rgb, temporary / f"{count:04d}.jpg", video.name, number)
                    bar.update(count)
                write_json(temporary / LIST, {"stamp": stamp, "frames": chosen.tolist()})
    return list_photos(folder)


def with_frames(
    source: str | Path, cache: str | Path, options: FrameOptions | None = None, shown: bool = False
) -> Path:
    """A folder of photos for a source that may be a video, or hold some; without videos, the source itself.

    Frames of each video go to cache/NAME_OF_VIDEO; photos beside videos are linked there (or copied), because
    one reconstruction has one folder.
    """
    source, cache = Path(source), Path(cache)
    alone = source.is_file() and is_video(source)
    videos = [source] if alone else list_videos(source)
    if not videos:
        return source
    expected: set[Path] = set()
    for video in videos:
        place = cache / (video.name if alone else video.relative_to(source))
        expected.update(extract_frames(video, place, options, shown))
    for photo in [] if alone else list_photos(source):
        if photo.resolve().is_relative_to(cache.resolve()):  # frames of an earlier run, where it lies inside
            continue
        expected.add(_linked(photo, cache / photo.relative_to(source)))
    for photo in list_photos(cache):
        if photo not in expected:  # of a video or photo that is no longer there
            photo.unlink()
    return cache


def _stamp(video: Path, options: FrameOptions) -> dict[str, Any]:
    """What frames depend on. Videos are large: their time and size stand for their bytes."""
    status = os.stat(video)
    return {"bytes": status.st_size, "modified": status.st_mtime_ns, "options": asdict(options)}


def _read_list(folder: Path) -> dict[str, Any]:
    try:
        content: dict[str, Any] = read_json(folder / LIST)
    except DataError:
        return {}
    return content


def _save(rgb: Any, path: Path, video: str, number: int) -> None:
    """Write a frame; its EXIF camera is the video, so that frames of one video share their intrinsics."""
    exif = Image.Exif()
    exif[_MAKE], exif[_MODEL], exif[_DESCRIPTION] = "video", video, f"frame {number}"
    Image.fromarray(rgb).save(path, quality=95, subsampling=0, exif=exif)


def _linked(photo: Path, place: Path) -> Path:
    place.parent.mkdir(parents=True, exist_ok=True)
    if not (place.exists() and place.stat().st_mtime_ns == photo.stat().st_mtime_ns):
        place.unlink(missing_ok=True)
        try:
            os.link(photo, place)
        except OSError:  # another file system, or one without links
            shutil.copy2(photo, place)
    return place

"""Which pairs of photo files are to be matched: from a list, or a folder or video against another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from coam.batch.frames import extract_frames
from coam.errors import DataError
from coam.images.folder import is_video, list_photos, list_videos
from coam.images.video import FrameOptions
from coam.sfm.pairs import read_pairs


@dataclass(frozen=True)
class NamedPhoto:
    """A photo file and what it is called in results."""

    name: str
    path: Path


PhotoPair = tuple[NamedPhoto, NamedPhoto]


def read_pair_list(path: str | Path) -> list[PhotoPair]:
    """Pairs of a text file with two paths a line; relative ones start from the folder of the file.

    Paths with spaces stand in double quotes, or a tab separates the two. Lines with # are comments.
    """
    root = Path(path).parent
    pairs = [(NamedPhoto(a, root / a), NamedPhoto(b, root / b)) for a, b in read_pairs(path)]
    if not pairs:
        raise DataError(f"{path}: holds no pairs; write two paths a line")
    return pairs


def photos_of(
    source: str | Path,
    cache: str | Path | None = None,
    options: FrameOptions | None = None,
    shown: bool = False,
) -> list[NamedPhoto]:
    """The photos of a photo file, a folder or a video, by name; videos in a folder are taken apart too.

    cache: folder for frames of videos; without one, videos are left out of folders.
    """
    source = Path(source)
    if source.is_dir():
        videos = list_videos(source) if cache is not None else []
        place = None if cache is None else Path(cache).resolve()
        photos = [
            NamedPhoto(photo.relative_to(source).as_posix(), photo)
            for photo in list_photos(source)
            if place is None or not photo.resolve().is_relative_to(place)  # frames of an earlier run
        ]
    elif source.is_file() and is_video(source):
        if cache is None:
            raise DataError(f"{source}: is a video; say where its frames may lie (cache)")
        videos, photos = [source], []
    else:
        return [NamedPhoto(source.name, source)]
    for video in videos:
        name = video.name if video == source else video.relative_to(source).as_posix()
        frames = extract_frames(video, Path(str(cache)) / name, options, shown)
        photos += [NamedPhoto(f"{name}/{frame.name}", frame) for frame in frames]
    if not photos:
        raise DataError(f"{source}: holds no photos; give a folder of photos, a photo or a video")
    return sorted(photos, key=lambda photo: photo.name)


def pairs_between(first: Sequence[NamedPhoto], second: Sequence[NamedPhoto]) -> list[PhotoPair]:
    """Each photo of `first` with each of `second`; of a set with itself, every pair once."""
    if [photo.path.resolve() for photo in first] == [photo.path.resolve() for photo in second]:
        return [(a, b) for index, a in enumerate(first) for b in first[index + 1 :]]
    return [(a, b) for a in first for b in second if a.path.resolve() != b.path.resolve()]

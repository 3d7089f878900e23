"""The photos and videos of a folder."""

from __future__ import annotations

from pathlib import Path

from coam.errors import DataError

PHOTO_ENDINGS = frozenset(
    [".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".ppm", ".jp2", ".avif", ".heic", ".heif"]
)
VIDEO_ENDINGS = frozenset([".mp4", ".mov", ".m4v", ".avi", ".mkv", ".webm", ".mpg", ".mpeg", ".3gp", ".mts"])


def list_photos(root: str | Path) -> list[Path]:
    """Every file below `root` that has the ending of a photo, sorted by name; hidden ones are skipped."""
    return _listed(Path(root), PHOTO_ENDINGS)


def list_videos(root: str | Path) -> list[Path]:
    """Every file below `root` that has the ending of a video, sorted by name; hidden ones are skipped."""
    return _listed(Path(root), VIDEO_ENDINGS)


def is_video(path: str | Path) -> bool:
    """Whether a file has the ending of a video."""
    return Path(path).suffix.lower() in VIDEO_ENDINGS


def _listed(root: Path, endings: frozenset[str]) -> list[Path]:
    if not root.exists():
        raise DataError(f"{root}: no such folder; give a folder of photos")
    if not root.is_dir():
        raise DataError(f"{root}: is a file; give a folder of photos")
    found = [
        path
        for path in root.rglob("*")
        if path.suffix.lower() in endings
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
        and path.is_file()
    ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())

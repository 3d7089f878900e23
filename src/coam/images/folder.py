"""The photos of a folder."""

from __future__ import annotations

from pathlib import Path

from coam.errors import DataError

PHOTO_ENDINGS = frozenset(
    [".jpg", ".jpeg", ".png", ".tif", ".tiff", ".webp", ".bmp", ".ppm", ".jp2", ".avif", ".heic"]
)


def list_photos(root: str | Path) -> list[Path]:
    """Every file below `root` that has the ending of a photo, sorted by name; hidden ones are skipped."""
    root = Path(root)
    if not root.exists():
        raise DataError(f"{root}: no such folder; give a folder of photos")
    if not root.is_dir():
        raise DataError(f"{root}: is a file; give a folder of photos")
    found = [
        path
        for path in root.rglob("*")
        if path.suffix.lower() in PHOTO_ENDINGS
        and not any(part.startswith(".") for part in path.relative_to(root).parts)
        and path.is_file()
    ]
    return sorted(found, key=lambda path: path.relative_to(root).as_posix())

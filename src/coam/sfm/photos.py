"""The photos of a reconstruction: found, read once, the bad ones named and left out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import DataError, ImageError
from coam.images.folder import list_photos
from coam.types import Size


@dataclass(frozen=True)
class Photo:
    """One usable photo. `name` is its path below the photo folder, with forward slashes: its name in every
    file.
    """

    name: str
    path: Path
    size: Size
    digest: str  # of the file's bytes: results are reused only while it stays the same
    focal35: float | None = None
    camera: str | None = None
    gps: tuple[float, float, float] | None = None  # latitude, longitude (degrees), altitude (metres)


@dataclass(frozen=True)
class PhotoFolder:
    """The usable photos of a folder, sorted by name, and one line for each that was left out."""

    root: Path
    photos: tuple[Photo, ...]
    left_out: tuple[str, ...]

    @property
    def names(self) -> list[str]:
        """Names of the photos, sorted."""
        return [photo.name for photo in self.photos]

    def path(self, name: str) -> Path:
        """The file of photo `name`."""
        return self.root / name


def read_photo_folder(root: str | Path) -> PhotoFolder:
    """Read every photo below `root` once. Unreadable files and exact copies are left out, each with one
    line.
    """
    root = Path(root)
    photos: list[Photo] = []
    left_out: list[str] = []
    first_with: dict[str, str] = {}
    for path in list_photos(root):
        name = path.relative_to(root).as_posix()
        try:
            photo = read_photo(path, name)
        except ImageError as error:
            left_out.append(str(error))
            continue
        if photo.digest in first_with:
            left_out.append(f"{name}: is the same file as {first_with[photo.digest]}; left out")
            continue
        first_with[photo.digest] = name
        photos.append(photo)
    return PhotoFolder(root, tuple(photos), tuple(left_out))


def read_photo(path: Path, name: str) -> Photo:
    """Read one photo; an `ImageError` says what is wrong with it."""
    from coam.images import load_image

    image = load_image(path)
    digest = hashlib.sha1(path.read_bytes(), usedforsecurity=False).hexdigest()
    return Photo(name, path, image.size, digest, image.focal35, image.camera, image.gps)


def require_enough_photos(folder: PhotoFolder, minimum: int = 2) -> None:
    """One clear line when there is nothing to reconstruct from."""
    count = len(folder.photos)
    if count >= minimum:
        return
    if count == 0 and not folder.left_out:
        raise DataError(f"{folder.root}: holds no photos; give a folder with at least {minimum} of one place")
    reasons = f" (left out: {'; '.join(folder.left_out[:3])})" if folder.left_out else ""
    noun = "photo" if count == 1 else "photos"
    raise DataError(
        f"{folder.root}: has {count} usable {noun}{reasons}; "
        f"a model needs at least {minimum} different photos of one place"
    )


def read_masks(folder: PhotoFolder, masks: str | None) -> dict[str, npt.NDArray[np.bool_]]:
    """photo name -> (H, W) usable pixels, from NAME.png or the photo's own name in the folder `masks`."""
    from coam.images.mask import load_mask

    if masks is None:
        return {}
    found: dict[str, npt.NDArray[np.bool_]] = {}
    for photo in folder.photos:
        for candidate in (Path(masks) / f"{photo.name}.png", (Path(masks) / photo.name).with_suffix(".png")):
            if candidate.is_file():
                found[photo.name] = load_mask(candidate, photo.size)
                break
    if not found:
        raise DataError(f"{masks}: holds no mask for any photo; name them like the photos, with .png added")
    return found

"""VisualSFM's .nvm models as COLMAP text models: the form in which Aachen Day-Night v1.0 is distributed.

An .nvm file (NVM_V3) lists photos (name, focal length, rotation as a quaternion, camera centre, distortion,
0) and points (position, colour, observations: photo, keypoint, x, y). Its own intrinsics are left alone:
Aachen's come as a list of their own, one "NAME MODEL WIDTH HEIGHT PARAMS" per photo. Where photos observe a
point is kept (which pairs share points says what is worth matching); keypoints of VisualSFM are relative to
the middle of the photo.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from coam.errors import DataError
from coam.store.atomic import atomic_folder


@dataclass(frozen=True)
class NvmPhoto:
    """One photo of an .nvm model."""

    name: str
    quaternion: tuple[float, float, float, float]  # w, x, y, z: camera from world
    centre: tuple[float, float, float]  # of the camera, in the model's units


def read_nvm_photos(path: Path) -> list[NvmPhoto]:
    """The photos of an .nvm file, in its order; its points are not read."""
    with open(path, encoding="utf-8", errors="replace") as file:
        return list(_photos(path, (line.split() for line in file)))


def _photos(path: Path, lines: Iterator[list[str]]) -> Iterator[NvmPhoto]:
    """The photos at the beginning of the lines; what follows them is left in `lines`."""
    if not next(lines, [""])[:1] == ["NVM_V3"]:
        raise DataError(f"{path.name} does not begin with NVM_V3; get it again")
    count = _number(path, next(filter(None, lines), []))
    for _ in range(count):
        words = next(filter(None, lines), [])
        try:
            values = [float(word) for word in words[1:9]]
            quaternion, centre = tuple(values[1:5]), tuple(values[5:8])
            if len(values) < 8 or not np.isfinite(values).all():
                raise ValueError
        except ValueError as error:
            raise DataError(
                f"{path.name}: the line of a photo is damaged ({words[:2]}); get it again"
            ) from error
        yield NvmPhoto(words[0].removeprefix("./"), quaternion, centre)  # type: ignore[arg-type]


def _number(path: Path, words: list[str]) -> int:
    if len(words) != 1 or not words[0].isdigit():
        raise DataError(f"{path.name}: a count was expected, not {' '.join(words)[:40]!r}; get it again")
    return int(words[0])


def nvm_to_colmap(path: Path, cameras: dict[str, str], folder: Path) -> Path:
    """Write a COLMAP text model of an .nvm file into `folder`, whole or not at all.

    cameras: photo name -> "MODEL WIDTH HEIGHT PARAMS". Photos have the ids 1, 2 ... in the file's order, and
    a camera each.
    """
    from scipy.spatial.transform import Rotation

    with open(path, encoding="utf-8", errors="replace") as file, atomic_folder(folder) as temporary:
        lines = (line.split() for line in file)
        photos = list(_photos(path, lines))
        unknown = [photo.name for photo in photos if photo.name not in cameras]
        if unknown:
            raise DataError(f"{path.name}: no camera is given for {unknown[0]} and {len(unknown) - 1} more")
        sizes = [cameras[photo.name].split()[1:3] for photo in photos]
        centres = [(float(width) / 2, float(height) / 2) for width, height in sizes]
        seen: list[list[str]] = [[] for _ in photos]
        with open(temporary / "points3D.txt", "w", encoding="utf-8") as points:
            count = _number(path, next(filter(None, lines), ["0"]))
            for identifier in range(1, count + 1):
                points.write(_point(path, next(filter(None, lines), []), identifier, seen, centres))
        with open(temporary / "cameras.txt", "w", encoding="utf-8") as out:
            out.writelines(f"{i} {cameras[photo.name]}\n" for i, photo in enumerate(photos, start=1))
        with open(temporary / "images.txt", "w", encoding="utf-8") as out:
            for i, photo in enumerate(photos, start=1):
                w, x, y, z = photo.quaternion
                shift = -Rotation.from_quat((x, y, z, w)).apply(photo.centre)
                pose = " ".join(f"{value:.17g}" for value in (*photo.quaternion, *shift))
                out.write(f"{i} {pose} {i} {photo.name}\n{' '.join(seen[i - 1])}\n")
    return folder


def _point(
    path: Path, words: list[str], identifier: int, seen: list[list[str]], centres: list[tuple[float, float]]
) -> str:
    """The line of a point in points3D.txt; its observations are added to `seen`."""
    try:
        track = []
        for k in range(int(words[6])):
            number, _, x, y = words[7 + 4 * k : 11 + 4 * k]
            index = int(number)
            across, down = centres[index]
            track.append(f"{index + 1} {len(seen[index])}")
            seen[index].append(f"{float(x) + across:g} {float(y) + down:g} {identifier}")
        position = " ".join(f"{float(word):.17g}" for word in words[:3])
    except (ValueError, IndexError) as error:
        raise DataError(f"{path.name}: point {identifier} is damaged; get it again") from error
    return f"{identifier} {position} {' '.join(words[3:6])} 0 {' '.join(track)}\n"

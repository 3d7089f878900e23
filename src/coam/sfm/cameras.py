"""Camera intrinsics: from EXIF, given by the user, or guessed; and which photos share a camera."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from coam.errors import ConfigError
from coam.sfm.photos import Photo
from coam.store.documents import read_text

Sharing = Literal["auto", "all", "none"]
FILM_LONG_SIDE = 36.0  # mm: what the EXIF value "focal length on 35 mm film" refers to
MOST_SIDE = 1 << 31  # pixels: what a camera's size fits into
GUESSED_FOCAL = 1.2  # times the long side, where nothing is known: COLMAP's guess, about 45 degrees of view


@dataclass(frozen=True)
class CameraChoice:
    """How cameras are made."""

    model: str = "SIMPLE_RADIAL"  # COLMAP's camera model where none is given
    sharing: Sharing = "auto"  # which photos share one camera
    given: dict[str, str] | None = None  # photo name (or "*" for all) -> "MODEL WIDTH HEIGHT PARAMS..."

    RECORDED: ClassVar[str] = "CameraChoice(model, sharing, given)"


@dataclass(frozen=True)
class PhotoCameras:
    """The cameras of a set of photos, some of which share one."""

    cameras: tuple[Any, ...]  # distinct pycolmap cameras
    index: dict[str, int]  # photo name -> its camera's position in `cameras`
    given: tuple[int, ...] = ()  # positions of those that the user gave; the others are guesses

    @property
    def by_name(self) -> dict[str, Any]:
        """photo name -> its pycolmap camera."""
        return {name: self.cameras[index] for name, index in self.index.items()}

    def names_by_camera(self) -> list[list[str]]:
        """For each camera the names of its photos."""
        groups: list[list[str]] = [[] for _ in self.cameras]
        for name, index in self.index.items():
            groups[index].append(name)
        return groups


def read_intrinsics_list(path: str | Path) -> dict[str, str]:
    """Lines `NAME MODEL WIDTH HEIGHT PARAMS...` (the query lists of the visual localization benchmark).

    A line that starts with a model name, or with `*`, is for all photos.
    """
    text = read_text(path, "give a list with lines NAME MODEL WIDTH HEIGHT PARAMS")
    given: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, spec = ("*", words) if _is_model(words[0]) else (words[0], words[1:])
        _parse_spec(" ".join(spec), f"{path}, line {number}")
        given[name] = " ".join(spec)
    return given


def _is_model(word: str) -> bool:
    import pycolmap

    return word in pycolmap.CameraModelId.__members__ and word != "INVALID"


def _parse_spec(spec: str, where: str) -> tuple[str, int, int, list[float]]:
    words = spec.split()
    try:
        if len(words) < 4 or not _is_model(words[0]):
            raise ValueError(spec)
        width, height, params = int(words[1]), int(words[2]), [float(word) for word in words[3:]]
        # COLMAP takes any numbers, and makes an endless or mirrored model of them.
        if not (0 < width < MOST_SIDE and 0 < height < MOST_SIDE and all(map(math.isfinite, params))):
            raise ValueError(spec)
        return words[0], width, height, params
    except ValueError as error:
        raise ConfigError(
            f"{where}: '{spec[:200]}' is no camera; write MODEL WIDTH HEIGHT PARAMS, as COLMAP does"
        ) from error


def camera_from_spec(spec: str, where: str = "camera") -> Any:
    """A pycolmap camera from "MODEL WIDTH HEIGHT PARAMS..."; its focal length counts as known."""
    import pycolmap

    model, width, height, params = _parse_spec(spec, where)
    camera = pycolmap.Camera.create_from_model_name(0, model, 1.0, width, height)
    if len(params) != len(camera.params):
        raise ConfigError(
            f"{where}: {model} has {len(camera.params)} parameters ({camera.params_info}), not {len(params)}"
        )
    camera.params = params
    if any(params[index] <= 0 for index in camera.focal_length_idxs()):
        raise ConfigError(f"{where}: the focal length must be above 0 pixels, not as in '{spec[:200]}'")
    camera.has_prior_focal_length = True
    return camera


def given_camera(spec: str, photo: Photo) -> Any:
    """The camera that was given for a photo, which must be of its size."""
    camera = camera_from_spec(spec, photo.name)
    if (camera.width, camera.height) != photo.size:
        raise ConfigError(
            f"{photo.name}: is {photo.size[0]} x {photo.size[1]} pixels but its given camera is "
            f"{camera.width} x {camera.height}; correct the camera"
        )
    return camera


def camera_spec(camera: Any) -> str:
    """The text MODEL WIDTH HEIGHT PARAMS of a pycolmap camera."""
    params = " ".join(f"{value:.10g}" for value in camera.params)
    return f"{camera.model_name} {camera.width} {camera.height} {params}"


def camera_for_photo(photo: Photo, model: str = "SIMPLE_RADIAL") -> Any:
    """A pycolmap camera with the EXIF focal length, or a guess; the principal point is the middle."""
    import pycolmap

    if not _is_model(model):
        raise ConfigError(f"there is no camera model {model}; try SIMPLE_RADIAL, PINHOLE or OPENCV")
    factor = GUESSED_FOCAL if photo.focal35 is None else photo.focal35 / FILM_LONG_SIDE
    camera = pycolmap.Camera.create_from_model_name(0, model, factor * max(photo.size), *photo.size)
    camera.has_prior_focal_length = photo.focal35 is not None
    return camera


def make_cameras(photos: Sequence[Photo], choice: CameraChoice) -> PhotoCameras:
    """The cameras of a set of photos: given, from EXIF, or guessed."""
    given = choice.given or {}
    # Without EXIF: numbered photos of equal size came from one camera, most likely; anything else is a
    # collection. (Held upright now and then, or cut by a pixel, it gives a second size and a second camera.)
    sizes = {photo.name: photo.size for photo in photos}
    shoot_of = {
        name: number
        for number, names in enumerate(shoots(list(sizes)))
        if len({sizes[name] for name in names}) <= 3
        for name in names
    }
    cameras: list[Any] = []
    index_of: dict[Any, int] = {}
    index: dict[str, int] = {}
    for photo in photos:
        key = _sharing_key(photo, choice, shoot_of.get(photo.name))
        if key not in index_of:
            spec = given.get(photo.name, given.get("*"))
            index_of[key] = len(cameras)
            cameras.append(
                camera_for_photo(photo, choice.model) if spec is None else given_camera(spec, photo)
            )
        index[photo.name] = index_of[key]
    listed = {camera for name, camera in index.items() if name in given or "*" in given}
    return PhotoCameras(tuple(cameras), index, tuple(sorted(listed)))


def _sharing_key(photo: Photo, choice: CameraChoice, shoot: int | None) -> Any:
    """Photos with equal keys share one camera."""
    if choice.given and photo.name in choice.given:
        return ("given", choice.given[photo.name])
    if choice.given and "*" in choice.given:
        return ("given", choice.given["*"], photo.size)
    if choice.sharing == "all":
        return photo.size
    if choice.sharing == "none":
        return photo.name
    if photo.focal35 is not None or photo.camera is not None:
        return (photo.camera, photo.focal35, photo.size)
    return photo.name if shoot is None else (shoot, photo.size)


def shoots(names: Sequence[str]) -> list[list[str]]:
    """Photos whose names differ in one running number only, as a camera or a video tool writes them.

    Numbers may have gaps, but fill at least a tenth of their range: identifiers of a photo site do not. A
    folder may hold several shoots, and photos that are of none.
    """
    numbered: dict[tuple[str, str], dict[str, int]] = {}
    for name in names:
        found = re.fullmatch(r"(.*?)(\d+)(\.\w+)", name)
        if found is not None:
            numbered.setdefault((found[1], found[3].lower()), {})[name] = int(found[2])
    return [
        list(numbers)
        for numbers in numbered.values()
        if max(numbers.values()) - min(numbers.values()) < 10 * len(numbers)
    ]

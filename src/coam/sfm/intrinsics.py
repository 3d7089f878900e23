"""Cameras: from EXIF, given by the user, or shared by all photos."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from coam.errors import ConfigError, DataError
from coam.sfm.photos import Photo

Sharing = Literal["auto", "all", "none"]
FILM_LONG_SIDE = 36.0  # mm: what the EXIF value "focal length on 35 mm film" refers to
GUESSED_FOCAL = 1.2  # times the long side, where nothing is known: COLMAP's guess, about 45 degrees of view


@dataclass(frozen=True)
class CameraChoice:
    """How cameras are made."""

    model: str = "SIMPLE_RADIAL"  # COLMAP's camera model where none is given
    sharing: Sharing = "auto"  # which photos share one camera
    given: dict[str, str] | None = (
        None  # photo name -> "MODEL WIDTH HEIGHT PARAMS..."; "*" stands for all photos
    )


def read_intrinsics_list(path: str | Path) -> dict[str, str]:
    """Lines `NAME MODEL WIDTH HEIGHT PARAMS...` (the query lists of the visual localization benchmark).

    A line that starts with a model name, or with `*`, is for all photos.
    """
    path = Path(path)
    if not path.is_file():
        raise DataError(f"{path}: no such file; give a list with lines NAME MODEL WIDTH HEIGHT PARAMS")
    given: dict[str, str] = {}
    for number, line in enumerate(path.read_text().splitlines(), 1):
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
        return words[0], int(words[1]), int(words[2]), [float(word) for word in words[3:]]
    except ValueError as error:
        raise ConfigError(
            f"{where}: '{spec}' is no camera; write MODEL WIDTH HEIGHT PARAMS, as COLMAP does"
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
    camera.has_prior_focal_length = True
    return camera


def camera_for_photo(photo: Photo, model: str = "SIMPLE_RADIAL") -> Any:
    """A pycolmap camera with the EXIF focal length, or a guess; the principal point is the middle."""
    import pycolmap

    width, height = photo.size
    known = photo.focal35 is not None
    factor = photo.focal35 / FILM_LONG_SIDE if photo.focal35 is not None else GUESSED_FOCAL
    if not _is_model(model):
        raise ConfigError(f"there is no camera model {model}; try SIMPLE_RADIAL, PINHOLE or OPENCV")
    camera = pycolmap.Camera.create_from_model_name(0, model, factor * max(width, height), width, height)
    camera.has_prior_focal_length = known
    return camera


def make_cameras(photos: Sequence[Photo], choice: CameraChoice) -> tuple[list[Any], list[int]]:
    """Cameras of a set of photos: (distinct pycolmap cameras, for each photo the index of its camera)."""
    given = choice.given or {}
    keys = [_sharing_key(photo, photos, choice) for photo in photos]
    cameras: list[Any] = []
    index_of: dict[Any, int] = {}
    assignment: list[int] = []
    for photo, key in zip(photos, keys, strict=True):
        if key not in index_of:
            spec = given.get(photo.name, given.get("*"))
            camera = (
                camera_for_photo(photo, choice.model) if spec is None else camera_from_spec(spec, photo.name)
            )
            _check_size(camera, photo)
            index_of[key] = len(cameras)
            cameras.append(camera)
        assignment.append(index_of[key])
    return cameras, assignment


def given_cameras(photos: Sequence[Photo], camera_of: Sequence[int], choice: CameraChoice) -> tuple[int, ...]:
    """Which of the cameras of `make_cameras` the user gave, as sorted indices; the others are guesses."""
    given = choice.given or {}
    return tuple(
        sorted(
            {
                camera
                for photo, camera in zip(photos, camera_of, strict=True)
                if photo.name in given or "*" in given
            }
        )
    )


def _check_size(camera: Any, photo: Photo) -> None:
    if (camera.width, camera.height) != photo.size:
        raise ConfigError(
            f"{photo.name}: is {photo.size[0]} x {photo.size[1]} pixels but its given camera is "
            f"{camera.width} x {camera.height}; correct the camera"
        )


def _sharing_key(photo: Photo, photos: Sequence[Photo], choice: CameraChoice) -> Any:
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
    # Without EXIF: numbered photos of equal size came from one camera, most likely; anything else is a
    # collection.
    # (Held upright now and then, or cut by a pixel, it gives a second size and so a second camera.)
    if looks_like_one_shoot([other.name for other in photos]) and len({p.size for p in photos}) <= 3:
        return photo.size
    return photo.name


def looks_like_one_shoot(names: Sequence[str]) -> bool:
    """Whether the names differ in one running number only, as a camera or a video tool writes them.

    Numbers may have gaps, but fill at least a tenth of their range: identifiers of a photo site do not.
    """
    stems = [re.fullmatch(r"(.*?)(\d+)(\.\w+)", name) for name in names]
    matched = [stem for stem in stems if stem is not None]
    if len(matched) < len(names) or len({(m[1], m[3].lower()) for m in matched}) != 1:
        return False
    numbers = [int(m[2]) for m in matched]
    return max(numbers) - min(numbers) < 10 * len(numbers)

"""A model in metres: by the GPS positions in its photos, or by distances that someone measured.

A file of distances has two kinds of lines. `PHOTO X Y LABEL` says where a photo shows a point (pixels); each
point needs two photos. `A B METRES` says how far two of these points, or two photos' cameras, are apart.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.geometry.alignment import similarity
from coam.geometry.coordinates import to_colmap
from coam.geometry.geodesy import east_north_up
from coam.sfm.colmap_model import as_pose, registered_images
from coam.store.documents import read_text

Floats = npt.NDArray[np.float64]
Place = tuple[float, float, float]  # latitude, longitude (degrees), altitude (metres)


@dataclass(frozen=True)
class GpsOptions:
    """When GPS positions are believed. Phones are right to some five metres."""

    max_error: float = 15.0  # metres: photos whose camera ends up farther from its position count as wrong
    least: int = 4  # photos that must agree
    least_share: float = 0.5  # of those with a position
    least_spread: float = 3.0  # times the median error, that positions must spread over in two directions
    trials: int = 500  # triples of photos that are tried


@dataclass(frozen=True)
class WorldScale:
    """How a model became metres."""

    scale: float  # metres per unit of the model before
    rotation: Floats = field(default_factory=lambda: np.eye(3))  # world from model
    translation: Floats = field(default_factory=lambda: np.zeros(3))  # metres
    report: dict[str, Any] = field(default_factory=dict)  # for summary.json

    def apply(self, model: Any) -> None:
        """Move a pycolmap reconstruction."""
        import pycolmap

        turn = pycolmap.Rotation3d(self.rotation)
        model.transform(pycolmap.Sim3d(self.scale, turn, self.translation))


def from_gps(model: Any, places: Mapping[str, Place], options: GpsOptions | None = None) -> WorldScale:
    """East, north and up in metres from the middle of the photos' GPS positions.

    places: photo name -> position. A `DataError` says why they do not do.
    """
    options = options or GpsOptions()
    names = sorted(set(places) & set(registered_images(model)))
    if len(names) < options.least:
        raise DataError(
            f"{len(names)} photos of the model have a GPS position; at least {options.least} are needed"
        )
    origin = np.median([places[name] for name in names], axis=0)
    metres = east_north_up([places[name] for name in names], origin)
    centres = np.array([registered_images(model)[name].projection_center() for name in names])
    scale, rotation, translation, inlier, error = _robust(centres, metres, options)
    if inlier.sum() < max(options.least, options.least_share * len(names)):
        raise DataError(
            f"the GPS positions of {len(names)} photos do not fit the model: {int(inlier.sum())} agree "
            f"within {options.max_error:g} m"
        )
    spread = np.sqrt(np.linalg.eigvalsh(np.cov(metres[inlier].T))[-2:])
    median = float(np.median(error[inlier]))
    if spread[0] < options.least_spread * median:
        raise DataError(
            "the GPS positions lie on a line or too near to each other to say how the model stands; "
            "use photos from all around, or distances (--distances)"
        )
    report = {
        "by": "GPS",
        "origin": {"latitude": origin[0], "longitude": origin[1], "altitude": origin[2]},
        "photos": len(names),
        "agreeing": int(inlier.sum()),
        "median_error_metres": round(median, 3),
        "metres_per_unit": scale,
    }
    return WorldScale(scale, rotation, translation, report)


def _robust(
    source: Floats, target: Floats, options: GpsOptions
) -> tuple[float, Floats, Floats, npt.NDArray[np.bool_], Floats]:
    """The similarity with most inliers, fitted to them: scale, rotation, translation; inliers, errors."""
    generator = np.random.default_rng(0)
    best = np.zeros(len(source), bool)
    found: tuple[float, Floats, Floats] = (1.0, np.eye(3), np.zeros(3))

    def errors(of: tuple[float, Floats, Floats]) -> Floats:
        scale, rotation, translation = of
        return np.asarray(np.linalg.norm(scale * source @ rotation.T + translation - target, axis=1))

    for _ in range(options.trials):
        chosen = generator.choice(len(source), 3, replace=False)
        inlier = errors(similarity(source[chosen], target[chosen])) <= options.max_error
        if inlier.sum() > best.sum():
            best = inlier
    for _ in range(3):
        if best.sum() >= 3:
            found = similarity(source[best], target[best])
            best = errors(found) <= options.max_error
    return (*found, best, errors(found))


@dataclass(frozen=True)
class Distances:
    """What someone measured."""

    shown: Mapping[str, Sequence[tuple[str, float, float]]]  # label -> (photo, x, y), our pixels
    measured: Sequence[tuple[str, str, float]]  # two labels or photos, metres


def read_distances(path: str | Path) -> Distances:
    """Read a file of distances."""
    advice = "give a text file with lines PHOTO X Y LABEL and A B METRES"
    shown: dict[str, list[tuple[str, float, float]]] = defaultdict(list)
    measured = []
    for number, line in enumerate(read_text(path, advice).splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            if len(words) == 4:
                shown[words[3]].append((words[0], float(words[1]), float(words[2])))
            elif len(words) == 3 and 0 < float(words[2]) < np.inf:
                measured.append((words[0], words[1], float(words[2])))
            else:
                raise ValueError(line)
        except ValueError as error:
            raise DataError(f"{path}, line {number}: '{line.strip()}' is no distance; {advice}") from error
    if not measured:
        raise DataError(f"{path}: holds no distance; {advice}")
    return Distances(shown, measured)


def from_distances(model: Any, distances: Distances) -> WorldScale:
    """The scale at which the model has the measured distances (their median); nothing is turned or moved."""
    images = registered_images(model)
    places = {label: _triangulated(label, seen, images) for label, seen in distances.shown.items()}
    factors = []
    for first, second, metres in distances.measured:
        ends = []
        for name in (first, second):
            if name not in places and name not in images:
                raise DataError(f"{name}: is neither a labelled point nor a photo of the model")
            ends.append(places[name] if name in places else images[name].projection_center())
        length = float(np.linalg.norm(ends[0] - ends[1]))
        if length <= 0:
            raise DataError(f"{first} and {second}: are the same place; measure between two places")
        factors.append(metres / length)
    scale = float(np.median(factors))
    off = float(np.max(np.abs(np.array(factors) / scale - 1)))
    report = {
        "by": "distances",
        "distances": len(factors),
        "largest_relative_difference": round(off, 4),
        "metres_per_unit": scale,
    }
    return WorldScale(scale, report=report)


def _triangulated(label: str, seen: Sequence[tuple[str, float, float]], images: Mapping[str, Any]) -> Floats:
    """The point (3,) nearest to the rays of all photos that show it."""
    known = [(images[name], x, y) for name, x, y in seen if name in images]
    if len(known) < 2:
        raise DataError(f"{label}: is shown in {len(known)} photos of the model; show it in at least two")
    normal, right = np.zeros((3, 3)), np.zeros(3)
    for image, x, y in known:
        rotation, _ = as_pose(image.cam_from_world())
        flat = image.camera.cam_from_img(to_colmap(np.array([[x, y]])))
        ray = rotation.T @ np.append(np.asarray(flat).reshape(-1)[:2], 1.0)
        ray /= np.linalg.norm(ray)
        across = np.eye(3) - np.outer(ray, ray)
        normal += across
        right += across @ image.projection_center()
    if np.linalg.cond(normal) > 1e6:
        raise DataError(f"{label}: the photos see it along one ray; show it in photos from other places")
    return np.asarray(np.linalg.solve(normal, right))

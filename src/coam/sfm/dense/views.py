"""The registered photos of a model as pinhole views, and for each the others that see the same places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.geometry.coordinates import from_colmap
from coam.sfm.colmap_model import as_pose, registered_images
from coam.types import Size

Floats = npt.NDArray[np.float64]
_SAMPLED_POINTS = 2000  # common points of two views from which their angle is taken


@dataclass(frozen=True)
class View:
    """A photo without distortion; pixels are ours (the centre of the first one is (0, 0))."""

    name: str
    file: Path
    size: Size  # (width, height)
    focal: tuple[float, float]  # pixels
    principal: tuple[float, float]  # pixels
    rotation: Floats  # (3, 3), camera from world
    translation: Floats  # (3,)

    @cached_property
    def centre(self) -> Floats:
        """(3,): where the camera stands."""
        return np.asarray(-self.rotation.T @ self.translation)

    def rays(self, pixels: npt.NDArray[Any]) -> Floats:
        """Pixels (..., 2) as points (..., 2) at depth 1 in the camera's frame."""
        return np.asarray((pixels - np.asarray(self.principal)) / np.asarray(self.focal))

    def to_world(self, pixels: npt.NDArray[Any], depth: npt.NDArray[Any]) -> Floats:
        """World points (..., 3) of pixels (..., 2) at `depth` (...) along the optical axis."""
        rays = self.rays(pixels)
        local = np.concatenate([rays, np.ones((*rays.shape[:-1], 1))], axis=-1) * depth[..., None]
        return np.asarray((local - self.translation) @ self.rotation)

    def project(self, world: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """Pixels (..., 2) and depths (...) of world points (..., 3); nan behind the camera."""
        local = world @ self.rotation.T + self.translation
        depth = local[..., 2]
        ahead = np.where(depth > 0, depth, np.nan)
        pixels = local[..., :2] / ahead[..., None] * np.asarray(self.focal) + np.asarray(self.principal)
        return pixels, ahead

    def turned(self, quarters: int) -> View:
        """The same camera held otherwise: its picture is turned counter-clockwise, as by `numpy.rot90`."""
        if quarters % 4 == 0:
            return self
        turn = np.array([[0.0, 1.0, 0.0], [-1.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
        once = replace(
            self,
            size=(self.size[1], self.size[0]),
            focal=(self.focal[1], self.focal[0]),
            principal=(self.principal[1], self.size[0] - 1 - self.principal[0]),
            rotation=turn @ self.rotation,
            translation=turn @ self.translation,
        )
        return once.turned(quarters % 4 - 1)


@dataclass(frozen=True)
class NeighbourOptions:
    """Which views see the same from far enough apart."""

    count: int = 4  # views whose warps make the depth of a photo
    angle: float = 8.0  # degrees between the rays of a point: the best compromise of exactness and likeness
    below: float = 4.0  # degrees: spread of the preference for angles below it
    above: float = 16.0  # degrees: above it
    least_points: int = 20  # common 3D points of two neighbours


DEFAULT_NEIGHBOURS = NeighbourOptions()


def undistorted_views(workspace: Path, turns: Mapping[str, int]) -> dict[str, View]:
    """The views of undistorted photos, by name. turns: quarters by which their pictures were turned."""
    import pycolmap

    views = {}
    for name, image in sorted(registered_images(pycolmap.Reconstruction(workspace / "sparse")).items()):
        camera = image.camera
        fx, fy, cx, cy = camera.params
        centre = from_colmap(np.array([cx, cy]))
        view = View(
            name,
            workspace / "images" / name,
            (camera.width, camera.height),
            (float(fx), float(fy)),
            (float(centre[0]), float(centre[1])),
            *as_pose(image.cam_from_world()),
        )
        views[name] = view.turned(turns.get(name, 0))
    return views


def neighbours_of(model: Any, options: NeighbourOptions = DEFAULT_NEIGHBOURS) -> dict[str, list[str]]:
    """For each registered photo the others that share its points at a good angle, best first: at most 3 x
    count.

    The first `options.count` are worth a warp; all may confirm a point.
    """
    registered = registered_images(model)
    names = {image.image_id: name for name, image in registered.items()}
    centres = {image.image_id: np.asarray(image.projection_center()) for image in registered.values()}
    positions = {index: point.xyz for index, point in model.points3D.items()}
    common: dict[tuple[int, int], list[int]] = defaultdict(list)
    for index, point in model.points3D.items():
        images = sorted({element.image_id for element in point.track.elements})
        for i, first in enumerate(images):
            for second in images[i + 1 :]:
                common[first, second].append(index)
    scores: dict[int, list[tuple[float, int]]] = {image: [] for image in names}
    for (first, second), points in common.items():
        if len(points) < options.least_points:
            continue
        chosen = points[:: max(1, len(points) // _SAMPLED_POINTS)]
        angle = _angles(np.array([positions[p] for p in chosen]), centres[first], centres[second])
        width = np.where(angle < options.angle, options.below, options.above)
        likely = np.exp(-(((angle - options.angle) / width) ** 2) / 2).mean() * len(points)
        scores[first].append((-float(likely), second))
        scores[second].append((-float(likely), first))
    return {
        names[image]: [names[other] for _, other in sorted(found)[: 3 * options.count]]
        for image, found in sorted(scores.items())
    }


def _angles(points: Floats, first: Floats, second: Floats) -> Floats:
    """Degrees (N,) between the rays from two centres to points (N, 3)."""
    a, b = points - first, points - second
    cosine = (a * b).sum(axis=1) / np.linalg.norm(a, axis=1) / np.linalg.norm(b, axis=1)
    return np.asarray(np.degrees(np.arccos(np.clip(cosine, -1, 1))))

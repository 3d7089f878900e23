"""Points of the surface that several depth maps agree on: one for each place, with its colour and normal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from coam.sfm.dense.depth_map import DepthMap
from coam.sfm.dense.views import Floats, View
from coam.types import FloatArray
from coam.warp.field import map_positions

Colours = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class FusionOptions:
    """When depth maps agree. Chosen on the courtyard."""

    views: int = 3  # photos that must agree on a point (two where a model has no more)
    pixels: float = 1.5  # of a photo: its depth map's point must come back so near to where it was asked
    depth: float = 0.01  # relative difference of depth up to which it is the same point
    angle: float = 1.5  # degrees between the rays of the photos that agree: below it depth is a guess
    turned: float = 60.0  # degrees between two photos' normals of one surface
    compared: int = 12  # other photos that are asked about a photo's points


@dataclass(frozen=True)
class DensePoints:
    """Points (n, 3) of the surface, their normals (n, 3), colours (n, 3), and how many photos agree (n,)."""

    points: FloatArray
    normals: FloatArray
    colours: Colours
    views: npt.NDArray[np.uint8]

    def __len__(self) -> int:
        return len(self.points)


def fuse(
    views: Mapping[str, View],
    others: Mapping[str, Sequence[str]],
    depth_map: Callable[[str], DepthMap],
    colours: Callable[[str], Colours],
    options: FusionOptions,
) -> Iterator[DensePoints]:
    """The points of every view that no view before it has given, view by view.

    others: of each view the names of those that may see its points, best first. depth_map, colours: of a
    view by name; they are asked for again and again, so they should remember some.
    """
    least = min(options.views, len(views)) - 1
    taken: dict[str, npt.NDArray[np.uint8]] = {}  # packed bits: pixels whose point was given
    for name, view in views.items():
        own = depth_map(name)
        asked = own.known & ~_unpacked(taken, name, own.inverse_depth.shape)
        rows, columns = np.nonzero(asked)
        pixels = map_positions(own.inverse_depth.shape[::-1], view.size)[rows, columns]
        world = view.to_world(pixels, 1.0 / own.inverse_depth[rows, columns])
        normals = own.normals[rows, columns].astype(np.float64)
        found = _Agreement(world, normals, colours(name)[rows, columns], view.centre)
        hits = []
        for other in others.get(name, [])[: options.compared]:
            places, agree = _agreeing(views[other], depth_map(other), pixels, view, world, normals, options)
            found.add(views[other], depth_map(other), colours(other), places, agree)
            hits.append((other, places, agree))
        kept = (found.count > least) & (found.angle >= options.angle)
        for other, places, agree in hits:
            mask = _unpacked(taken, other, depth_map(other).inverse_depth.shape)
            chosen = places[agree & kept]
            mask[chosen[:, 1], chosen[:, 0]] = True
            taken[other] = np.packbits(mask)
        yield found.points(kept)


def _unpacked(
    taken: Mapping[str, npt.NDArray[np.uint8]], name: str, shape: tuple[int, ...]
) -> npt.NDArray[np.bool_]:
    if name not in taken:
        return np.zeros(shape, bool)
    return np.unpackbits(taken[name], count=int(np.prod(shape))).astype(bool).reshape(shape)


def _agreeing(
    other: View,
    depth: DepthMap,
    pixels: FloatArray,
    view: View,
    world: Floats,
    normals: Floats,
    options: FusionOptions,
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
    """Where points (n, 3) of `view` lie on the map of another (n, 2), and which of them it confirms (n,)."""
    height, width = depth.inverse_depth.shape
    seen, far = other.project(world)
    scale = np.array([width, height]) / other.size
    with np.errstate(invalid="ignore"):
        inside = np.asarray(((seen > -0.5) & (seen < np.array(other.size) - 0.5)).all(axis=-1))
    places = np.floor((np.where(inside[:, None], seen, 0) + 0.5) * scale).astype(np.int64)
    places = np.clip(places, 0, (width - 1, height - 1))
    inverse = depth.inverse_depth[places[:, 1], places[:, 0]]
    agree = inside & (inverse > 0)
    agree &= np.abs(np.nan_to_num(far) * inverse - 1) < options.depth
    # its own point of that pixel, seen from here: it must lie near the pixel that asked
    centres = (places + 0.5) / scale - 0.5
    theirs = other.to_world(centres, 1 / np.where(agree, inverse, 1.0))
    back, _ = view.project(theirs)
    reach = options.pixels + 0.5 * float(np.max(1 / scale))
    with np.errstate(invalid="ignore"):
        agree &= np.nan_to_num(np.linalg.norm(back - pixels, axis=1), nan=np.inf) < reach
    there = depth.normals[places[:, 1], places[:, 0]]
    cosine = (normals * there).sum(axis=1)
    both = (normals != 0).any(axis=1) & (there != 0).any(axis=1)
    return places, agree & (~both | (cosine > np.cos(np.radians(options.turned))))


class _Agreement:
    """What views say about the same points: sums, and the widest angle they are seen under."""

    def __init__(self, world: Floats, normals: Floats, colours: Colours, centre: Floats) -> None:
        self.world, self.normals = world.copy(), normals.copy()
        self.colours = [colours.astype(np.float32)]
        self.count = np.ones(len(world), np.int64)
        self.angle = np.zeros(len(world))
        self._rays = _unit(world - centre)
        self._first = world

    def add(
        self,
        view: View,
        depth: DepthMap,
        colours: Colours,
        places: npt.NDArray[np.int64],
        agree: npt.NDArray[np.bool_],
    ) -> None:
        """One more view, which shows the points at `places` (n, 2) of its map; those in `agree` count."""
        index = np.flatnonzero(agree)
        x, y = places[index].T
        height, width = depth.inverse_depth.shape
        centres = (places[index] + 0.5) * (np.array(view.size) / (width, height)) - 0.5
        # The depth of their pixel on the ray to the point: the pixel's own place would pull it sideways.
        theirs = view.to_world(centres, 1 / depth.inverse_depth[y, x])
        ahead = view.rotation[2]
        ray = self._first[index] - view.centre
        reach = ((theirs - view.centre) @ ahead) / (ray @ ahead)
        self.world[index] += view.centre + ray * reach[:, None]
        self.normals[index] += depth.normals[y, x]
        self.count[index] += 1
        cosine = (self._rays[index] * _unit(ray)).sum(axis=1)
        self.angle[index] = np.maximum(self.angle[index], np.degrees(np.arccos(np.clip(cosine, -1, 1))))
        seen = np.full_like(self.colours[0], np.nan)
        seen[index] = colours[y, x]
        self.colours.append(seen)

    def points(self, kept: npt.NDArray[np.bool_]) -> DensePoints:
        """Means of the points that are kept; of colours the median, since light changes."""
        colours = np.stack([colour[kept] for colour in self.colours])
        median = np.nanmedian(colours, axis=0) if kept.any() else np.zeros((0, 3))
        return DensePoints(
            (self.world[kept] / self.count[kept, None]).astype(np.float32),
            _unit(self.normals[kept]).astype(np.float32),
            np.rint(median).astype(np.uint8),
            np.minimum(self.count[kept], 255).astype(np.uint8),
        )


def _unit(vectors: Floats) -> Floats:
    return np.asarray(vectors / np.maximum(np.linalg.norm(vectors, axis=-1, keepdims=True), 1e-30))

"""A made landmark with any number of photos, and a matcher that knows where everything is: no network.

A building stands in a square that houses close off; a monument stands before its front. Tourists take photos
from popular spots, wide and near, upright and on edge, with their own cameras, seven of ten with a focal
length in the EXIF data. What is found again depends on the place itself (some are never found, some always),
on how far two views differ in direction and scale, on people in the way, and on chance. Matches have noise
with a long tail, some are wrong, and the back of the building looks like its front.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from coam.types import Grid, Matches

Floats = npt.NDArray[np.float64]
# Axis-aligned boxes in metres (x right, y down, z ahead), the ground at y = 1.6: low and high corner.
BUILDING = ((-18.0, -18.0, -11.0), (18.0, 1.6, 11.0))
TOWERS = ((-18.0, -30.0, -11.0), (-10.0, -18.0, -3.0)), ((10.0, -30.0, -11.0), (18.0, -18.0, -3.0))
MONUMENT = ((-2.0, -7.0, -31.0), (2.0, 1.6, -27.0))
SQUARE = ((-65.0, -14.0, -65.0), (65.0, 1.6, 65.0))  # seen from inside; above its walls is the sky
STEP = 4.0  # pixels between grid positions, as the shipped model has them at 640 px
FILM = 36.0  # mm


@dataclass(frozen=True)
class MatchRules:
    """What makes the matches of the oracle imperfect."""

    noise: float = 0.5  # pixels, of nine matches in ten; the tenth has three times as much
    wrong: float = 0.2  # share of matches that lead anywhere
    found: float = 0.4  # share of places that are ever found
    repeated: float = 0.7  # chance that a photo has such a place
    angle: float = 35.0  # degrees between two views of a place at which the chance has fallen to 1/e
    zoom: float = 2.5  # ratio of scales at which it has
    look_alike: float = 0.3  # of pairs of front and back: so many take one for the other
    most: int = 1500  # matches of a pair


@dataclass(frozen=True)
class Landmark:
    """The scene with `count` photos of 640 x 480 or 480 x 640 pixels."""

    count: int
    seed: int = 0
    rules: MatchRules = MatchRules()

    @property
    def names(self) -> list[str]:
        return [f"{index:05d}-{(index * 7919) % 10007:05d}.jpg" for index in range(self.count)]

    @cached_property
    def _spots(self) -> tuple[Floats, Floats, npt.NDArray[np.int64], Floats]:
        """Centres (n, 3), rotations (n, 3, 3) from world to camera, sizes (n, 2), focal lengths (n,)."""
        rng = np.random.default_rng(self.seed)
        popular = rng.uniform(-180, 180, 12)
        centres, rotations, sizes, focals = [], [], [], []
        while len(centres) < self.count:
            anywhere = rng.random() < 0.35
            angle = rng.uniform(-180, 180) if anywhere else rng.choice(popular) + rng.normal(0, 7)
            a, distance = np.radians(angle), rng.uniform(26, 60)
            centre = np.array([np.sin(a) * distance * 1.05, rng.normal(0, 0.15), -np.cos(a) * distance])
            if _inside(centre, MONUMENT, 2.0) or _inside(centre, BUILDING, 4.0):
                continue
            target = np.array([rng.uniform(-14, 14), rng.uniform(-14, 0), rng.uniform(-8, 8)])
            if rng.random() < 0.1 and centre[2] < -35:
                target = np.array([0.0, -3.0, -29.0])  # the monument
            forward = (target - centre) / np.linalg.norm(target - centre)
            right = np.cross([0.0, 1.0, 0.0], forward)
            right /= np.linalg.norm(right)
            roll = np.radians(rng.normal(0, 2))
            rotation = np.stack([right, np.cross(forward, right), forward])
            turn = [[np.cos(roll), np.sin(roll), 0], [-np.sin(roll), np.cos(roll), 0], [0, 0, 1]]
            centres.append(centre)
            rotations.append(np.array(turn) @ rotation)
            sizes.append((480, 640) if rng.random() < 0.3 else (640, 480))
            focals.append(640 * rng.choice([24.0, 26.0, 28.0, 35.0, 50.0]) / FILM * rng.uniform(0.99, 1.01))
        return np.array(centres), np.array(rotations), np.array(sizes), np.array(focals)

    def poses(self) -> dict[str, tuple[Floats, Floats]]:
        """photo name -> camera-from-world rotation and translation."""
        centres, rotations, _, _ = self._spots
        return {n: (r, -r @ c) for n, r, c in zip(self.names, rotations, centres, strict=True)}

    @property
    def size(self) -> float:
        """Metres across the square."""
        return float(np.linalg.norm(np.subtract(SQUARE[1], SQUARE[0])[[0, 2]]))

    def grid(self, index: int) -> Grid:
        width, height = self._spots[2][index]
        middle = (STEP - 1) / 2
        return Grid(int(width // STEP), int(height // STEP), (middle, middle), (STEP, STEP))

    def surface(self, index: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """World points (N, 3) at a photo's grid positions, nan for sky and people; which may be found."""
        return _surface(self, index)

    def project(self, index: int, world: Floats) -> tuple[Floats, Floats]:
        """Pixels (N, 2) and depths (N,) of world points."""
        centres, rotations, sizes, focals = self._spots
        local = (world - centres[index]) @ rotations[index].T
        with np.errstate(divide="ignore", invalid="ignore"):
            pixels = local[:, :2] / local[:, 2:] * focals[index] + (sizes[index] - 1) / 2
        return np.where(local[:, 2:] > 0.5, pixels, np.nan), local[:, 2]

    def write_photos(self, folder: Path) -> Path:
        """Pictures of nothing with the right sizes and EXIF data: the oracle does not look at them."""
        folder.mkdir(parents=True, exist_ok=True)
        for index, name in enumerate(self.names):
            width, height = self._spots[2][index]
            picture = Image.new("RGB", (int(width), int(height)), (index % 256, index // 256, 90))
            exif = picture.getexif()
            exif[0x0110] = f"camera {index}"
            if index % 10 < 7:
                film = round(self._spots[3][index] * FILM / 640)
                exif.get_ifd(0x8769)[0xA405] = film
            picture.save(folder / name, exif=exif)
        return folder


@lru_cache(maxsize=256)
def _surface(scene: Landmark, index: int) -> tuple[Floats, npt.NDArray[np.bool_]]:
    centres, rotations, sizes, focals = scene._spots
    grid = scene.grid(index)
    pixels = grid.positions(np.arange(len(grid))).astype(float)
    origin = centres[index]
    local = np.c_[(pixels - (sizes[index] - 1) / 2) / focals[index], np.ones(len(pixels))]
    rays = local @ rotations[index]
    best = np.full(len(rays), np.inf)
    for box in (BUILDING, *TOWERS, MONUMENT):
        near, far = _slabs(origin, rays, box)
        best = np.where((near < far) & (near > 0.1) & (near < best), near, best)
    _, far = _slabs(origin, rays, SQUARE)
    wall = origin + far[:, None] * rays
    best = np.where(np.isfinite(best) | (wall[:, 1] < SQUARE[0][1] + 1e-6), best, far)
    world = np.where(np.isfinite(best)[:, None], origin + best[:, None] * rays, np.nan)
    rng = np.random.default_rng([scene.seed, index, 1])
    crowd = np.zeros(len(pixels), bool)
    for _ in range(rng.integers(0, 6)):
        place, half = (
            rng.uniform(0, 1, 2) * sizes[index] * (1, 0.5) + (0, sizes[index][1] / 2),
            rng.uniform(15, 50),
        )
        crowd |= (np.abs(pixels[:, 0] - place[0]) < half) & (pixels[:, 1] > place[1])
    world[crowd] = np.nan
    cells = np.nan_to_num(np.floor(world / 0.15)).astype(np.int64)
    found = _hash(cells, 0) < scene.rules.found
    found &= _hash(cells, 1 + index) < scene.rules.repeated
    return world, found & np.isfinite(world[:, 0])


def _slabs(origin: Floats, rays: Floats, box: Any) -> tuple[Floats, Floats]:
    """Where rays enter and leave a box."""
    with np.errstate(divide="ignore"):
        t = np.stack([(np.array(corner) - origin) / rays for corner in box])
    return t.min(axis=0).max(axis=1), t.max(axis=0).min(axis=1)


def _inside(point: Floats, box: Any, margin: float) -> bool:
    low, high = (np.array(corner) for corner in box)
    return bool(((point > low - margin) & (point < high + margin))[[0, 2]].all())


def _hash(cells: npt.NDArray[np.int64], salt: int) -> Floats:
    """A number in [0, 1) for each row (N, 3), the same wherever it is asked for."""
    mixed = cells.astype(np.uint64) * np.array([73856093, 19349663, 83492791], np.uint64)
    value = mixed[:, 0] ^ mixed[:, 1] ^ mixed[:, 2] ^ np.uint64((salt * 0x9E3779B97F4A7C15) % 2**64)
    for shift, factor in ((33, 0xFF51AFD7ED558CCD), (29, 0xC4CEB9FE1A85EC53)):
        value = (value ^ (value >> np.uint64(shift))) * np.uint64(factor)
    return np.asarray((value >> np.uint64(11)).astype(float) / 2**53)


class LandmarkMatcher:
    """The oracle: `match_many` and `global_descriptor`, as the pipeline asks for them."""

    def __init__(self, scene: Landmark) -> None:
        self.scene = scene
        self.fingerprint = f"landmark {scene.seed} {scene.rules}"
        self._number = {name: index for index, name in enumerate(scene.names)}

    def global_descriptor(self, photo: Any) -> npt.NDArray[np.float32]:
        """What the photo shows, in blocks of 4 m, with chance added; front and back are half alike."""
        index = self._number[Path(photo).name]
        world, _ = self.scene.surface(index)
        blocks = np.floor(world[np.isfinite(world[:, 0])] / 4.0).astype(np.int64)
        mirrored = np.c_[-blocks[:, 0], blocks[:, 1], np.abs(blocks[:, 2])]
        vector = np.zeros(512, np.float32)
        for rows, salt, share in ((blocks, 90001, 1.0), (mirrored, 90002, 0.5)):
            places = (_hash(rows, salt) * 512).astype(np.int64)
            vector += share * np.sqrt(np.bincount(places, minlength=512)).astype(np.float32)
        rng = np.random.default_rng([self.scene.seed, index, 2])
        return np.asarray(vector + rng.normal(0, 0.3 * vector.std(), 512), np.float32)

    def match_many(self, pairs: Iterable[tuple[Any, Any]]) -> Iterator[Matches]:
        for first, second in pairs:
            yield self.match(self._number[Path(first).name], self._number[Path(second).name])

    def match(self, a: int, b: int) -> Matches:
        """Matches of photos number a and b."""
        scene, rules = self.scene, self.scene.rules
        rng = np.random.default_rng([scene.seed, a, b, 3])
        centres, _, sizes, focals = scene._spots
        world, found = scene.surface(a)
        ids0 = np.flatnonzero(found)
        shown = world[ids0]
        if centres[a, 2] * centres[b, 2] < 0 and rng.random() < rules.look_alike:
            turned = shown * (-1, 1, -1)  # the back taken for the front: turned by half a circle
            shown = np.where((np.abs(np.abs(shown[:, 2:]) - 11.0) < 0.01), turned, shown)
        true1, depth = scene.project(b, shown)
        inside = np.isfinite(true1).all(axis=1) & (true1 > 0).all(axis=1) & (true1 < sizes[b] - 1).all(axis=1)
        ids0, shown, true1, depth = ids0[inside], shown[inside], true1[inside], depth[inside]
        grid = scene.grid(b)
        ids1 = grid.nearest(true1)
        there, found1 = scene.surface(b)
        seen = np.linalg.norm(np.nan_to_num(there[ids1] - shown, nan=99.0), axis=1) < 0.01 * depth + 0.1
        ray0, ray1 = shown - centres[a], shown - centres[b]
        length0, length1 = np.linalg.norm(ray0, axis=1), np.linalg.norm(ray1, axis=1)
        angle = np.degrees(np.arccos(np.clip((ray0 * ray1).sum(axis=1) / length0 / length1, -1, 1)))
        zoom = np.log((focals[a] / length0) / (focals[b] / length1)) / np.log(rules.zoom)
        chance = np.exp(-((angle / rules.angle) ** 2) - zoom**2)
        kept = np.flatnonzero(seen & found1[ids1] & (rng.random(len(seen)) < chance))
        kept = rng.permutation(kept)[: rules.most]
        ids0, true1 = ids0[kept], true1[kept]
        count = len(ids0)
        tail = np.where(rng.random(count) < 0.1, 3 * rules.noise, rules.noise)
        measured = true1 + rng.normal(0, 1, (count, 2)) * tail[:, None]
        scores = rng.uniform(0.4, 1.0, count)
        # Besides them what is wrong: a share of the matches, and some even where the photos share nothing.
        more = int(rules.wrong * count) + int(rng.integers(10, 60))
        ids0 = np.concatenate([ids0, rng.integers(0, len(scene.grid(a)), more)])
        measured = np.concatenate([measured, rng.uniform(0, sizes[b] - 1, (more, 2))])
        scores = np.concatenate([scores, rng.uniform(0.1, 0.7, more)])
        measured = np.clip(measured, 0, sizes[b] - 1)
        ids1 = grid.nearest(measured)
        order = np.argsort(-scores, kind="stable")
        for ids in (ids0, ids1):  # mutual: every grid position is used once
            _, unique = np.unique(ids[order], return_index=True)
            order = order[np.sort(unique)]
        ids0, ids1, measured, scores = ids0[order], ids1[order], measured[order], scores[order]
        size0, size1 = (tuple(int(side) for side in sizes[i]) for i in (a, b))
        points0 = scene.grid(a).positions(ids0).astype(np.float32)
        return Matches(
            points0, measured.astype(np.float32), scores.astype(np.float32), ids0, ids1,
            size0, size1, scene.grid(a), grid, overlap=float(count / (count + 60)),
        )  # fmt: skip

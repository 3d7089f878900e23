"""Tiled matching of large photos: as a whole at low resolution, then tile by tile at full resolution.

The first pass says where in photo 1 each tile of photo 0 lies. Every tile is then matched with that region
alone, so memory is that of one pair at the matcher's resolution, however large the photos are. What a tile
finds is kept where the first pass, or the geometry of its neighbourhood, agrees.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from coam.images import RGB, ImageLike, load_image
from coam.images.mask import Mask, MaskLike, load_mask
from coam.matcher.alignment import align
from coam.matching.dense import CROWDING_CELLS
from coam.matching.selection import choose_spread
from coam.types import FloatArray, Grid, Matches, Size

if TYPE_CHECKING:
    from coam.matcher.matcher import Matcher

Pixels = TypeVar("Pixels", RGB, Mask)
MAX_MATCHES = 8192  # of large photos
STEP = 4  # pixels between grid positions of a tile at full resolution: the stride of the default model


@dataclass(frozen=True)
class TileOptions:
    """How tiles are cut, and which of their matches are kept."""

    overlap: int = 64  # pixels that neighbouring tiles share
    neighbours: int = 6  # guides (matches of the first pass) nearby that a match is compared with
    min_guides: int = 6  # a tile with fewer guides is left as the first pass saw it
    tolerance: float = 12.0  # pixels of the first pass by which a match may deviate from its guides
    margin: float = 0.1  # of its size by which a region is widened
    crowding: float = 0.999  # as `MatcherConfig.crowding`, for the many matches of large photos


DEFAULT_OPTIONS = TileOptions()


@dataclass(frozen=True)
class Window:
    """A piece of a photo: x from `left`, y from `top`, in whole pixels."""

    left: int
    top: int
    width: int
    height: int

    @property
    def corner(self) -> FloatArray:
        """(2,) x and y of its first pixel."""
        return np.asarray([self.left, self.top], dtype=np.float32)

    def cut(self, pixels: Pixels) -> Pixels:
        """Those of pixels (H, W) or (H, W, 3) that lie inside, (height, width) or (height, width, 3)."""
        inside = pixels[self.top : self.top + self.height, self.left : self.left + self.width]
        return np.ascontiguousarray(inside)

    def holds(self, points: FloatArray, margin: float = 0.0) -> npt.NDArray[np.bool_]:
        """Which points (N, 2) lie inside, or within `margin` pixels of it."""
        low = np.asarray([self.left, self.top]) - 0.5 - margin
        high = low + np.asarray([self.width, self.height]) + 2 * margin
        return np.asarray(((points >= low) & (points < high)).all(axis=1))


def match_tiles(
    matcher: Matcher,
    image0: ImageLike,
    image1: ImageLike,
    max_matches: int = MAX_MATCHES,
    options: TileOptions = DEFAULT_OPTIONS,
    *,
    mask0: MaskLike | None = None,
    mask1: MaskLike | None = None,
) -> Matches:
    """Matches of two photos of any size at full resolution, best first, at most `max_matches`.

    Tiles of photo 0 have the matcher's resolution. Photos that fit into one tile, and those of which the
    first pass finds nothing, are matched as `matcher.match` does. Masks as there.
    """
    start = time.perf_counter()
    photo0, photo1 = load_image(image0), load_image(image1)
    usable0, usable1 = (
        None if mask is None else load_mask(mask, photo.size, name)
        for mask, photo, name in ((mask0, photo0, "mask0"), (mask1, photo1, "mask1"))
    )
    side = matcher.config.resolution
    if max(*photo0.size, *photo1.size) <= side:
        return matcher.match(photo0, photo1, mask0=usable0, mask1=usable1)
    unaligned = matcher.variant(alignment="none")
    first = unaligned.match(photo0, photo1, mask0=usable0, mask1=usable1)
    tolerance = options.tolerance * max(1.0, max(first.size1) / side)  # original pixels of photo 1
    guides = consistent(first, tolerance, options.neighbours)
    once = unaligned.variant(looks="once")
    found = [first]
    for tile in tiles_of(photo0.size, side, options.overlap):
        near = guides.select(tile.holds(guides.points0, margin=side / 4))
        if len(near) < options.min_guides:
            continue
        region = region_of(tile, near, options.margin)
        pair = once.match(
            tile.cut(photo0.rgb),
            region.cut(photo1.rgb),
            mask0=None if usable0 is None else tile.cut(usable0),
            mask1=None if usable1 is None else region.cut(usable1),
        )
        moved = replace(pair, points0=pair.points0 + tile.corner, points1=pair.points1 + region.corner)
        found.append(moved.select(agreeing(moved, near, tolerance, options.neighbours)))
    merged = _merged(found, max_matches, options.crowding)
    if matcher.config.alignment != "none":
        pixels, masks, steps = (photo0.rgb, photo1.rgb), (usable0, usable1), (float(STEP), float(STEP))
        merged = align(merged, pixels, steps, matcher.aligning, masks)
        merged = replace(merged, ids1=full_grid(merged.size1).nearest(merged.points1))
    merged.meta["seconds"] = round(time.perf_counter() - start, 4)
    return merged


def tiles_of(size: Size, side: int, overlap: int) -> Iterator[Window]:
    """Windows of at most side x side that cover a photo of `size` (width, height) and overlap.

    All begin at multiples of `STEP`, so that their grids are parts of one grid; those at the far edges are
    shifted inwards, to be as large as the others.
    """
    for top in _starts(size[1], side, overlap):
        for left in _starts(size[0], side, overlap):
            yield Window(left, top, min(side, size[0] - left), min(side, size[1] - top))


def _starts(length: int, side: int, overlap: int) -> list[int]:
    if length <= side:
        return [0]
    count = -(-(length - overlap) // max(side - overlap, 1))
    return [STEP * round((length - side) * k / (count - 1) / STEP) for k in range(count)]


def region_of(tile: Window, guides: Matches, margin: float = TileOptions.margin) -> Window:
    """Where in photo 1 the tile lies: its corners moved by the affine map of its guides, and the guides."""
    design = np.column_stack([guides.points0, np.ones(len(guides))]).astype(np.float64)
    inside = tile.holds(guides.points0)
    weight = np.where(inside, 1.0, 0.3)[:, None]
    affine, *_ = np.linalg.lstsq(design * weight, guides.points1 * weight, rcond=None)
    x, y = tile.left + np.asarray([0, tile.width]), tile.top + np.asarray([0, tile.height])
    corners = np.asarray([[u, v, 1.0] for u in x for v in y]) @ affine
    # Few guides on a line make a wild map: corners may lie no further out than the guides are spread.
    known = guides.points1
    spread = np.maximum(np.ptp(known, axis=0), 32.0)
    corners = corners.clip(known.min(axis=0) - spread, known.max(axis=0) + spread)
    places = np.concatenate([corners, known[inside]])
    low, high = places.min(axis=0), places.max(axis=0)
    wider = margin * (high - low) + 16
    edge = np.asarray(guides.size1)
    low = np.floor((low - wider).clip(0, edge - 33)).astype(int)
    high = np.ceil((high + wider).clip(low + 32, edge)).astype(int)
    return Window(int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1]))


def consistent(matches: Matches, tolerance: float, neighbours: int = TileOptions.neighbours) -> Matches:
    """Those that move as most of their neighbours in photo 0 do, within `tolerance` pixels of photo 1."""
    if len(matches) <= neighbours:
        return matches
    others = _predictions(matches.points0, matches, neighbours, skip=1)
    distance = np.linalg.norm(others - matches.points1[:, None], axis=2)
    return matches.select(np.median(distance, axis=1) <= tolerance)


def agreeing(
    matches: Matches, guides: Matches, tolerance: float, neighbours: int = TileOptions.neighbours
) -> npt.NDArray[np.bool_]:
    """Which matches lie within `tolerance` of where one of the nearest guides, moved alike, puts them.

    One is enough: where the depth jumps, neighbours move in two ways.
    """
    distance = np.linalg.norm(
        _predictions(matches.points0, guides, neighbours) - matches.points1[:, None], axis=2
    )
    return np.asarray(distance.min(axis=1, initial=np.inf) <= tolerance)


def _predictions(
    points0: FloatArray, guides: Matches, neighbours: int, skip: int = 0
) -> npt.NDArray[np.float64]:
    """Places (N, neighbours, 2) in photo 1 of points0 (N, 2): each of the nearest guides plus the distance
    between the points in photo 0, scaled and turned as the guides around it are."""
    distance = np.square(points0[:, None] - guides.points0).sum(axis=2)  # thousands by thousands at most
    index = np.argsort(distance, axis=1)[:, skip : skip + neighbours]
    design = np.column_stack([guides.points0, np.ones(len(guides))]).astype(np.float64)
    turn = np.linalg.lstsq(design, guides.points1.astype(np.float64), rcond=None)[0][:2]
    away = points0[:, None] - guides.points0[index]
    return np.asarray(guides.points1[index] + away @ turn)


def full_grid(size: Size) -> Grid:
    """The grid of a photo at full resolution, of which the grids of all tiles are parts."""
    columns, rows = max(1, size[0] // STEP), max(1, size[1] // STEP)
    return Grid(columns, rows, ((STEP - 1) / 2, (STEP - 1) / 2), (float(STEP), float(STEP)))


def _merged(found: list[Matches], count: int, crowding: float) -> Matches:
    """Tiles' matches, best first, one for each grid position; the first pass, found[0], elsewhere."""
    first = found[0]
    grids = full_grid(first.size0), full_grid(first.size1)
    every = Matches.join(found)
    of_tile = np.arange(len(every)) >= len(first)
    column, row = (every.points0 // 64).astype(np.int64).T
    place = row * (1 << 32) + column
    every = replace(every, ids0=grids[0].nearest(every.points0), ids1=grids[1].nearest(every.points1))
    every = every.select(of_tile | ~np.isin(place, place[of_tile]))
    every = every.select(np.argsort(-every.scores, kind="stable"))
    every = every.select(np.sort(np.unique(every.ids0, return_index=True)[1]))
    meta = first.meta | {"tiles": len(found) - 1}
    return choose_matches(replace(every, grid0=grids[0], grid1=grids[1], meta=meta), count, 0.0, crowding)


def choose_matches(matches: Matches, count: int, min_score: float, crowding: float) -> Matches:
    """At most `count` of the matches with a score of at least `min_score`, without crowding, best first."""
    matches = matches.select(matches.scores >= min_score)
    if len(matches) <= count:
        return matches
    points0, scores = torch.from_numpy(matches.points0), torch.from_numpy(matches.scores)
    cell = max(matches.size0) / CROWDING_CELLS
    return matches.select(choose_spread(points0, scores, count, cell, crowding).numpy())

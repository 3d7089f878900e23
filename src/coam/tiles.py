"""Large photos: matched as a whole at low resolution, then piece by piece at full resolution.

The first pass says where in photo 1 each tile of photo 0 lies. Every tile is then matched with that region
alone, so memory is that of one pair at the matcher's resolution, however large the photos are. What a tile
finds is kept where the first pass, or the geometry of its neighbourhood, agrees.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from coam.images import RGB, ImageLike, load_image
from coam.matcher import Matcher
from coam.types import FloatArray, Grid, Matches, Size

STEP = 4  # pixels between grid positions of a tile at full resolution
NEIGHBOURS = 6  # guides nearby that a match is compared with
GUIDES_WANTED = 6  # a tile with fewer matches of the first pass is left as the first pass saw it
TOLERANCE = 12.0  # pixels of the first pass by which a match may deviate from its guides
MARGIN = 0.1  # of its size by which a region is widened
CROWDING_CELLS = 16  # along the long side: matches are spread over so many cells, as in the first pass


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

    def cut(self, rgb: RGB) -> RGB:
        """The pixels (height, width, 3) inside."""
        return np.ascontiguousarray(
            rgb[self.top : self.top + self.height, self.left : self.left + self.width]
        )

    def holds(self, points: FloatArray, margin: float = 0.0) -> npt.NDArray[np.bool_]:
        """Which points (N, 2) lie inside, or within `margin` pixels of it."""
        low = np.asarray([self.left, self.top]) - 0.5 - margin
        high = low + np.asarray([self.width, self.height]) + 2 * margin
        return np.asarray(((points >= low) & (points < high)).all(axis=1))


def match_large(
    matcher: Matcher,
    image0: ImageLike,
    image1: ImageLike,
    max_matches: int = 8192,
    overlap: int = 64,
) -> Matches:
    """Matches of two photos of any size at full resolution, best first, at most `max_matches`.

    Tiles of photo 0 have the matcher's resolution and overlap by `overlap` pixels. Photos that fit into one
    tile, and those of which the first pass finds nothing, are matched as `matcher.match` does.
    """
    photo0, photo1 = load_image(image0), load_image(image1)
    first = matcher.match(photo0.rgb, photo1.rgb)
    side = matcher.config.resolution
    if max(*photo0.size, *photo1.size) <= side:
        return first
    guides = consistent(first, TOLERANCE * _coarseness(first, side))
    once = matcher.variant(looks="once")
    found = [first]
    for tile in tiles_of(photo0.size, side, overlap):
        near = guides.select(tile.holds(guides.points0, margin=side / 4))
        if len(near) < GUIDES_WANTED:
            continue
        region = region_of(tile, near)
        pair = once.match(tile.cut(photo0.rgb), region.cut(photo1.rgb))
        moved = replace(
            pair,
            points0=pair.points0 + tile.corner,
            points1=pair.points1 + region.corner,
        )
        found.append(moved.select(agreeing(moved, near, TOLERANCE * _coarseness(first, side))))
    return _merged(found, first, max_matches)


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


def region_of(tile: Window, guides: Matches) -> Window:
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
    margin = MARGIN * (high - low) + 16
    edge = np.asarray(guides.size1)
    low = np.floor((low - margin).clip(0, edge - 33)).astype(int)
    high = np.ceil((high + margin).clip(low + 32, edge)).astype(int)
    return Window(int(low[0]), int(low[1]), int(high[0] - low[0]), int(high[1] - low[1]))


def consistent(matches: Matches, tolerance: float) -> Matches:
    """Those that move as most of their neighbours in photo 0 do, within `tolerance` pixels of photo 1."""
    if len(matches) <= NEIGHBOURS:
        return matches
    others = _predictions(matches.points0, matches, skip=1)
    distance = np.linalg.norm(others - matches.points1[:, None], axis=2)
    return matches.select(np.median(distance, axis=1) <= tolerance)


def agreeing(matches: Matches, guides: Matches, tolerance: float) -> npt.NDArray[np.bool_]:
    """Which matches lie within `tolerance` of where one of the nearest guides, moved alike, puts them.

    One is enough: where the depth jumps, neighbours move in two ways.
    """
    distance = np.linalg.norm(_predictions(matches.points0, guides) - matches.points1[:, None], axis=2)
    return np.asarray(distance.min(axis=1, initial=np.inf) <= tolerance)


def _predictions(points0: FloatArray, guides: Matches, skip: int = 0) -> npt.NDArray[np.float64]:
    """Places (N, NEIGHBOURS, 2) in photo 1 of points0 (N, 2): each of the nearest guides plus the distance
    between the points in photo 0, scaled and turned as the guides around it are."""
    distance = np.square(points0[:, None] - guides.points0).sum(axis=2)  # thousands by thousands at most
    index = np.argsort(distance, axis=1)[:, skip : skip + NEIGHBOURS]
    design = np.column_stack([guides.points0, np.ones(len(guides))]).astype(np.float64)
    turn = np.linalg.lstsq(design, guides.points1.astype(np.float64), rcond=None)[0][:2]
    away = points0[:, None] - guides.points0[index]
    return np.asarray(guides.points1[index] + away @ turn)


def _coarseness(first: Matches, side: int) -> float:
    """Original pixels of photo 1 in one pixel of the first pass."""
    return max(1.0, max(first.size1) / side)


def full_grid(size: Size) -> Grid:
    """The grid of a photo at full resolution, of which the grids of all tiles are parts."""
    columns, rows = max(1, size[0] // STEP), max(1, size[1] // STEP)
    return Grid(columns, rows, ((STEP - 1) / 2, (STEP - 1) / 2), (float(STEP), float(STEP)))


def _merged(found: list[Matches], first: Matches, count: int) -> Matches:
    """Tiles' matches, best first, one for each grid position; the first pass where no tile has any."""
    import torch

    from coam.matching.selection import choose_spread

    grids = full_grid(first.size0), full_grid(first.size1)
    of_tile = np.concatenate([np.full(len(m), k > 0) for k, m in enumerate(found)])
    points0 = np.concatenate([m.points0 for m in found])
    points1 = np.concatenate([m.points1 for m in found])
    scores = np.concatenate([m.scores for m in found])
    taken = {(int(x), int(y)) for x, y in points0[of_tile] // 64}
    alone = np.asarray([(int(x), int(y)) not in taken for x, y in points0 // 64], dtype=bool)
    keep = np.flatnonzero(of_tile | alone)
    ids0 = grids[0].nearest(points0)
    keep = keep[np.argsort(-scores[keep], kind="stable")]
    keep = keep[np.sort(np.unique(ids0[keep], return_index=True)[1])]
    cell = max(first.size0) / CROWDING_CELLS
    order = choose_spread(torch.from_numpy(points0[keep]), torch.from_numpy(scores[keep]), count, cell, 0.999)
    keep = keep[order.numpy()]
    return replace(
        first,
        points0=points0[keep],
        points1=points1[keep],
        scores=scores[keep],
        ids0=ids0[keep],
        ids1=grids[1].nearest(points1[keep]),
        grid0=grids[0],
        grid1=grids[1],
        meta=first.meta | {"tiles": len(found) - 1},
    )

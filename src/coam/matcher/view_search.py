"""Which views of two photos show the same place: a search by coarse descriptors alone, before the decoder.

A view of a pair is an affine map and a light for either photo. Views are looked at in the order in which they
usually help; what a look finds is judged by how many of its coarse matches agree on one map, and from the
best ones the search climbs: it looks again from the viewpoint that the map gives. Climbing tells a find from
chance: the matches of one place multiply, those of two places scatter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from coam.geometry.homography import apply_homography, depth_under
from coam.geometry.robust import RansacOptions, estimate_homography
from coam.matcher.lights import Light
from coam.matcher.views import (
    AS_TAKEN,
    Array,
    Change,
    View,
    ViewOptions,
    ViewPair,
    aligned_views,
    changed_view,
)
from coam.matching.coarse import CoarseMatches
from coam.types import Size

ChangePair = tuple[Change, Change]


# What pairs of views show; None where the network has no coarse descriptors
CoarseLook = Callable[[Sequence[ViewPair]], list[CoarseMatches] | None]


@dataclass(frozen=True)
class SearchOptions:
    """Which views are tried, how many, and what counts as a find.

    A debt: chosen on 40 walls seen from far aside, from far away or turned, in other light (made of training
    photos by tools/make_extreme_views.py), and on 36 pairs of different photos.
    """

    resolution: int = 320  # pixels, long side of a photo in most views
    # pixels, in zooms and while climbing: of what is small in one photo, less shows nothing
    fine_resolution: int = 480
    zooms: tuple[float, ...] = (0.5, 0.25)  # of one photo against the other
    turns: tuple[float, ...] = (90.0, 180.0, 270.0)  # degrees
    tilt: float = 3.0  # times: between walls seen from 60 and from 80 degrees
    directions: int = 4  # of the tilt
    lights: tuple[tuple[Light, Light], ...] = (("grey", "grey"), ("inverted", "grey"))
    # With more effort
    more_lights: tuple[tuple[Light, Light], ...] = (
        ("equalised", "equalised"),
        ("brightened", "brightened"),
        ("grey", "inverted"),
    )
    tolerance: float = 20.0  # view pixels: a cell is 16 wide, and a wall is no affine map
    hypotheses: int = 300  # affine maps tried on the matches of a view
    largest_stretch: float = 4.0  # times, of a map between two views: beyond, no network matches them
    # Matches that agree beyond the three it takes: of 36 pairs of different photos two showed more than -1
    promising: float = 0.0  # from there the search climbs at once
    weakest: float = -1.7  # and at the end from what showed most, if not less than this
    found: float = 10.0  # the same after climbing: such views are matched
    plain: float = 25.0  # with so many the search stops
    climbs: int = 3  # looks from a better viewpoint, from each start
    worth_climbing: float = 1.2  # times: with less gain by a look the next one would bring nothing
    starts: int = 3  # views from which the search climbs
    batch: int = 8  # views looked at before the best is considered
    views: ViewOptions = field(default_factory=ViewOptions)


@dataclass(frozen=True)
class Sighting:
    """What a look at a pair of views found."""

    views: ViewPair
    agreement: float  # expected number of right matches that agree on `homography`, beyond those it takes
    homography: Array | None  # (3, 3) photo 0 -> photo 1


def likely_changes(options: SearchOptions) -> Iterator[ChangePair]:
    """How the photos are shown, what helps most often first: one change, then two at once."""
    zooms = [Change(zoom=zoom) for zoom in options.zooms]
    turns = [Change(turn=turn) for turn in options.turns]
    steps = [180.0 * step / options.directions for step in range(options.directions)]
    tilts = [Change(tilt=options.tilt, direction=direction) for direction in steps]
    yield AS_TAKEN, AS_TAKEN
    for change in zooms:
        yield from _either(change, AS_TAKEN)
    for change in turns:
        yield AS_TAKEN, change
    for change in tilts:
        yield from _either(change, AS_TAKEN)
    for light0, light1 in options.lights:
        yield Change(light=light0), Change(light=light1)
    # A wall seen from both sides, or from one side and from below, is narrow in two directions.
    half = len(tilts) // 2
    for index, change in enumerate(tilts):
        yield change, tilts[(index + half) % len(tilts)]
    for change in (zooms[0], *tilts, *zooms[1:]):  # the strongest zoom last: it shows least
        for turned in turns:
            yield from _either(change, turned)
    for light0, light1 in options.more_lights:
        yield Change(light=light0), Change(light=light1)
    for tilted in tilts:
        for change in zooms:
            yield from _either(tilted, change)
    for light0, light1 in (*options.lights, *options.more_lights):
        for change in (*zooms, *turns):
            yield replace(change, light=light0), Change(light=light1)
            yield Change(light=light0), replace(change, light=light1)


def _either(one: Change, other: Change) -> Iterator[ChangePair]:
    yield one, other
    yield other, one


def shown(changes: ChangePair, size0: Size, size1: Size, options: SearchOptions, resolution: int) -> ViewPair:
    """The views of photos of `size0` and `size1` under `changes`, at most at `resolution`."""
    fine = any(change.zoom != 1 for change in changes)
    resolution = min(resolution, options.fine_resolution if fine else options.resolution)
    return ViewPair(changed_view(size0, resolution, changes[0]), changed_view(size1, resolution, changes[1]))


def search_views(
    size0: Size, size1: Size, look: CoarseLook, options: SearchOptions, resolution: int, most: int
) -> list[Sighting] | None:
    """Sightings worth matching, best first, after at most `most` views; None where nothing can be seen.

    Views are looked at in batches. From a promising one the search climbs at once; at the end from what else
    showed most.
    """
    photos = size0, size1
    changes = islice(likely_changes(options), most)
    candidates = (shown(each, *photos, options, resolution) for each in changes)
    starts: list[Sighting] = []  # from which the search has not climbed
    found: list[Sighting] = []
    climbs = 0
    while climbs < options.starts:
        batch = list(islice(candidates, options.batch))
        if batch:
            coarse = look(batch)
            if coarse is None:
                return None
            starts += [judged(pair, each, photos, options) for pair, each in zip(batch, coarse, strict=True)]
        starts.sort(key=lambda sighting: -sighting.agreement)
        if not starts or starts[0].agreement < options.weakest:
            if batch:
                continue
            break
        if batch and starts[0].agreement < options.promising:
            continue
        top = climb(starts.pop(0), *photos, look, options, resolution)
        climbs += 1
        if top.agreement >= options.found:
            found.append(top)
        if top.agreement >= options.plain:
            break
    return sorted(found, key=lambda sighting: -sighting.agreement)


def climb(
    start: Sighting, size0: Size, size1: Size, look: CoarseLook, options: SearchOptions, resolution: int
) -> Sighting:
    """The best sighting on the way from `start`, each look from the viewpoint that the one before gave."""
    best = start
    for _ in range(options.climbs):
        if best.homography is None:
            break
        lights = best.views.view0.light, best.views.view1.light
        side = min(resolution, options.fine_resolution)
        pair = aligned_views(best.homography, size0, size1, side, options.views, lights)
        coarse = None if pair is None else look([pair])
        if pair is None or not coarse:
            break
        closer = judged(pair, coarse[0], (size0, size1), options)
        if closer.agreement <= best.agreement:
            break
        settled = closer.agreement < options.worth_climbing * best.agreement
        best = closer
        if settled:
            break
    return best


def judged(
    pair: ViewPair, coarse: CoarseMatches, sizes: tuple[Size, Size], options: SearchOptions
) -> Sighting:
    """How many coarse matches of a pair of views agree on one map, and that map between the photos."""
    # Where a turned or tilted photo ends, its corners look alike whatever it shows.
    seen = _on_photo(coarse.points0, pair.view0, sizes[0]) & _on_photo(coarse.points1, pair.view1, sizes[1])
    fitted = common_map(coarse.select(seen), options)
    if fitted is None:
        return Sighting(pair, -math.inf, None)
    matrix, agreement = fitted
    photo_map = pair.view1.photo_from_view @ matrix @ np.linalg.inv(pair.view0.photo_from_view)
    return Sighting(pair, agreement, photo_map)


def _on_photo(points: Array, view: View, size: Size) -> npt.NDArray[np.bool_]:
    on_photo = apply_homography(view.photo_from_view, points)
    return np.asarray(((on_photo >= 0) & (on_photo <= np.asarray(size) - 1)).all(axis=1))


def common_map(coarse: CoarseMatches, options: SearchOptions) -> tuple[Array, float] | None:
    """The affine map or homography (3, 3) between views on which most matches agree, and how many do.

    Matches count by their probability; those that any map of its kind explains, three or four, do not.
    """
    affine = _common_affine(coarse, options)
    if affine is None:
        return None
    best = affine, _agreement(affine, coarse, options) - 3
    model = estimate_homography(coarse.points0, coarse.points1, RansacOptions(options.tolerance, 0.999, 1000))
    if model is not None:
        depth = depth_under(model.matrix, coarse.points0[model.inliers])
        matrix = model.matrix * np.sign(depth[0])
        if (depth * depth[0] > 0).all() and np.linalg.det(matrix) > 0:
            agreement = _agreement(matrix, coarse, options) - 4
            if agreement > best[1]:
                best = matrix, agreement
    return best


def _agreement(matrix: Array, coarse: CoarseMatches, options: SearchOptions) -> float:
    error = np.linalg.norm(apply_homography(matrix, coarse.points0) - coarse.points1, axis=1)
    return float(coarse.probability[error <= options.tolerance].sum())


def _common_affine(coarse: CoarseMatches, options: SearchOptions) -> Array | None:
    """RANSAC of an affine map (3, 3) that neither mirrors nor stretches beyond what a network matches."""
    count = len(coarse.probability)
    if count < 4:
        return None
    generator = np.random.default_rng(0)
    weight = coarse.probability
    drawn = generator.choice(count, (options.hypotheses, 3), p=weight / weight.sum())
    start = np.column_stack([coarse.points0, np.ones(count)])
    samples = start[drawn]
    regular = np.abs(np.linalg.det(samples)) > options.tolerance**2
    if not regular.any():
        return None
    maps = np.linalg.solve(samples[regular], coarse.points1[drawn[regular]])  # (M, 3, 2)
    first = _apart(maps, start, coarse.points1)
    stretch = np.linalg.svd(maps[:, :2].transpose(0, 2, 1), compute_uv=False)
    allowed = (stretch.max(axis=1) <= options.largest_stretch) & (
        stretch.min(axis=1) >= 1 / options.largest_stretch
    )
    allowed &= np.linalg.det(maps[:, :2]) > 0
    if not allowed.any():
        return None
    closeness = (1 - np.square(first / options.tolerance)).clip(min=0) @ weight
    best = int(np.where(allowed, closeness, -1.0).argmax())
    inner = first[best] <= options.tolerance
    fitted = maps[best]
    if inner.sum() > 3:  # all that agree give a better map than three of them
        root = np.sqrt(weight[inner])[:, None]
        fitted = np.linalg.lstsq(start[inner] * root, coarse.points1[inner] * root, rcond=None)[0]
    matrix = np.eye(3)
    matrix[:2] = fitted.T
    return matrix if np.linalg.det(matrix) > 0 else None


def _apart(maps: Array, start: Array, ends: Array) -> Array:
    """Distance (M, K) of each of `ends` (K, 2) from where each of maps (M, 3, 2) puts `start` (K, 3)."""
    return np.asarray(np.linalg.norm(np.einsum("kc,mcd->mkd", start, maps) - ends, axis=2))

"""One image onto another: look, match, fit, look closer at large ones, judge, refuse or not."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from coam.caches import LRUCache
from coam.geometry.coordinates import point_grid, resize_points
from coam.geometry.homography import apply_homography
from coam.images import RGB
from coam.images.mask import MaskLike, load_mask
from coam.matcher import Matcher, load_matcher
from coam.matcher.tiles import Window
from coam.registration.fitting import NO_PLACES, Fit, FitOptions, Places, fit_transform
from coam.registration.local_models import spread_points
from coam.registration.quality import SURE, Quality, QualityOptions, cell_grid, doubts, judge
from coam.registration.rasters import (
    Display,
    DisplayOptions,
    Mask,
    Raster,
    RasterLike,
    display_of,
    open_raster,
)
from coam.registration.resampling import ResampleOptions, resample_window
from coam.registration.result import Registration, RegistrationRefused
from coam.registration.transforms import Array, DisplacementMap, LocalTransform, Transform
from coam.types import Matches, Size
from coam.warp.field import WITHIN

if TYPE_CHECKING:
    from coam.warp import WarpField


@dataclass(frozen=True)
class Limits:
    """What a registration must reach; below, it is refused with a reason."""

    confidence: float = SURE  # probability that it is right
    coverage: float = 0.0  # share of the overlap that matches bear out
    error: float = math.inf  # pixels of the fixed image: median miss of left-out matches


STRICT = Limits(confidence=0.95, coverage=0.3, error=3.0)


@dataclass(frozen=True)
class RegisterOptions:
    """How images are registered; lengths are in pixels of the fixed image where nothing else is said."""

    fit: FitOptions = field(default_factory=FitOptions)
    quality: QualityOptions = field(default_factory=QualityOptions)
    limits: Limits = field(default_factory=Limits)
    moving_display: DisplayOptions = field(default_factory=DisplayOptions)
    fixed_display: DisplayOptions = field(default_factory=DisplayOptions)
    overview: int = 2400  # pixels of the long side: larger images are shrunk before the first look
    # Long side of the matcher's view times this: larger fixed images are looked at again in full resolution
    closer_from: float = 2.0
    windows: int = 4  # along each side of the fixed image, that are looked at closer
    closer_share: float = 0.1  # of matches in a window that must agree for it to count
    # A local model is fitted again to so many matches, and to places of the dense warp between them
    local_matches: int = 8192
    places: int = 64  # cells along the long side: one without a match has a place of the warp
    match_error: float = 1.0  # standard deviation of a match, beside that of a place


DEFAULT_REGISTER = RegisterOptions()
_LOADED: LRUCache[str, Matcher] = LRUCache(1)  # the default matcher, for the next call


def register(
    moving: RasterLike,
    fixed: RasterLike,
    *,
    model: str = "auto",
    moving_mask: MaskLike | None = None,
    fixed_mask: MaskLike | None = None,
    matcher: Matcher | None = None,
    options: RegisterOptions = DEFAULT_REGISTER,
    strict: bool = False,
    force: bool = False,
) -> Registration:
    """How `moving` lies on `fixed`; `registration.apply(moving)` draws it in the frame of `fixed`.

    Images: paths (also GeoTIFF and TIFF of any depth), arrays (H, W) or (H, W, bands), or what
    `coam.match` takes. model: "auto" takes the simplest of translation, similarity, affine, homography,
    polynomial and spline that explains matches it was not fitted to; or one of these, or "dense".
    Masks: nonzero where an image may be used. matcher: one of `load_matcher`; by default the default model.
    strict: higher limits. A result below the limits raises `RegistrationRefused`, whose `attempt` is what was
    found; force: it is returned, with its `refusal`.
    """
    start = time.perf_counter()
    fit = replace(options.fit, model=model) if model != "auto" else options.fit
    options = replace(options, fit=fit, limits=STRICT if strict else options.limits)
    rasters = tuple(
        open_raster(source, None if mask is None else _mask_of(source, mask))
        for source, mask in ((moving, moving_mask), (fixed, fixed_mask))
    )
    found = find_registration(rasters[0], rasters[1], matcher or _LOADED.get("", load_matcher), options)
    found.meta["seconds"] = round(time.perf_counter() - start, 3)
    if not force:
        found.require_trust()
    return found


def _mask_of(source: RasterLike, mask: MaskLike) -> Mask:
    return load_mask(mask, open_raster(source).size)


@dataclass(frozen=True)
class _View:
    """A raster and how a network sees it."""

    raster: Raster
    display: Display
    rgb: RGB  # the overview
    usable: Mask
    factor: int  # pixels of the raster to one of the overview

    @staticmethod
    def of(raster: Raster, longest: int, options: DisplayOptions) -> _View:
        factor = max(1, math.ceil(max(raster.size) / longest))
        factor = min(factor, *raster.size)
        values, usable = raster.reduced(raster.whole, factor)
        display = display_of(values, usable, raster.dtype, options, raster.name or "the image")
        return _View(raster, display, display.rgb(values), usable, factor)

    def to_raster(self, points: Any) -> Array:
        """Pixels (N, 2) of the overview as pixels of the raster."""
        return np.asarray(resize_points(np.asarray(points, np.float64), (self.factor, self.factor)))


def find_registration(
    moving: Raster,
    fixed: Raster,
    matcher: Matcher,
    options: RegisterOptions = DEFAULT_REGISTER,
    matches: Matches | None = None,
) -> Registration:
    """The registration of two rasters, with its refusal where it is not to be trusted.

    matches: of both as a whole, in their pixels, where they are at hand. `RegistrationRefused` is raised
    where there is no transform at all.
    """
    views = (
        _View.of(moving, options.overview, options.moving_display),
        _View.of(fixed, options.overview, options.fixed_display),
    )
    masks = [None if view.usable.all() else view.usable for view in views]
    if matches is None:
        matches = matcher.match(views[0].rgb, views[1].rgb, mask0=masks[0], mask1=masks[1])
        points = views[0].to_raster(matches.points0), views[1].to_raster(matches.points1)
    else:
        points = matches.points0.astype(np.float64), matches.points1.astype(np.float64)
    sizes = moving.size, fixed.size
    # What the matcher sees of a large image is coarse, and so is what it can tell.
    first = replace(options.fit, threshold=options.fit.threshold * max(1.0, coarseness(fixed.size, matcher)))
    dense = _dense(views, masks, matcher) if options.fit.model == "dense" else None
    fit = fit_transform(*points, fixed.size, first, dense)
    if fit is None:
        raise RegistrationRefused(_nothing(matches, moving, fixed))
    quality = judge(fit, *points, sizes, matches.overlap, options.quality)
    windows, closer, places = 0, None, NO_PLACES
    if dense is None and max(fixed.size) > options.closer_from * matcher.config.resolution:
        closer, windows = _look_closer(views, fit.transform, matcher, options)
    if dense is None and isinstance(fit.transform, LocalTransform):
        closer = closer or _more_matches(views, masks, matcher, options)
        places = _places_between(views, masks, closer[1], matcher, options)
    if closer is not None:
        better = fit_transform(*closer, fixed.size, options.fit, places=places)
        if better is not None and _confirms(better, fit, fixed.size, first.threshold):
            exact = judge(better, *closer, sizes, matches.overlap, options.quality)
            # Whether it is right was calibrated on first looks; how exact it is, the closer look knows.
            names = ("confidence", "coverage", "covered", "against", "uncertainty")
            quality = replace(exact, **{name: getattr(quality, name) for name in names})
            fit, points = better, closer
    return Registration(
        transform=fit.transform,
        moving_size=moving.size,
        fixed_size=fixed.size,
        quality=quality,
        control_points=np.hstack(points)[fit.inliers],
        residuals=fit.residuals[fit.inliers],
        why=fit.why,
        tried=fit.tried,
        refusal=refusal(quality, options.limits),
        meta={
            "model": matcher.file.name,
            "moving": moving.name,
            "fixed": fixed.name,
            "matches": len(points[0]),
            "windows": windows,
        },
    )


def coarseness(size: Size, matcher: Matcher) -> float:
    """Pixels of an image to one that the matcher sees, halved: its points are better than its pixels."""
    return max(size) / matcher.config.resolution / 2


def refusal(quality: Quality, limits: Limits) -> str:
    """Why a registration is not to be trusted; empty: it is."""
    if quality.confidence < limits.confidence:
        why = "; ".join(doubts(quality)) or f"{quality.inliers:,} matches agree"
        return (
            f"it is right with a probability of {quality.confidence:.2f} only ({why}); "
            f"{limits.confidence:g} is asked for"
        )
    if quality.coverage < limits.coverage:
        return (
            f"matches bear out {quality.coverage:.0%} of the overlap only; {limits.coverage:.0%} is asked for"
        )
    if not quality.held_out_error <= limits.error:
        return f"it misses left-out matches by {quality.held_out_error:.2f} px; {limits.error:g} is asked for"
    return ""


def _nothing(matches: Matches, moving: Raster, fixed: Raster) -> str:
    names = " and ".join(raster.name or "an array" for raster in (moving, fixed))
    return f"{names}: no transform explains their {len(matches):,} matches; do they show the same place?"


def _dense(views: tuple[_View, _View], masks: list[Mask | None], matcher: Matcher) -> LocalTransform | None:
    """The network's own place for every pixel of the fixed image, on top of a homography."""
    warp = matcher.warp(views[0].rgb, views[1].rgb, mask0=masks[0], mask1=masks[1])
    return dense_transform(warp.backward, views[0].factor, views[1].factor)


def dense_transform(field: WarpField, moving_factor: int = 1, fixed_factor: int = 1) -> LocalTransform | None:
    """A map of where the fixed image's pixels lie in the moving one as a transform; None: too little.

    What is certain decides; in between and beyond, displacements from a homography are blurred outwards.
    """
    import cv2

    from coam.geometry.robust import estimate_homography
    from coam.warp.field import CERTAIN

    positions = resize_points(field.positions.astype(np.float64), (fixed_factor, fixed_factor))
    places = resize_points(field.points.astype(np.float64), (moving_factor, moving_factor))
    certain = field.certainty >= CERTAIN
    if certain.sum() < 100:
        return None
    some = np.flatnonzero(certain.ravel())
    some = some[:: max(1, len(some) // 5000)]
    found = estimate_homography(places.reshape(-1, 2)[some], positions.reshape(-1, 2)[some])
    if found is None:
        return None
    planar = apply_homography(np.linalg.inv(found.matrix), positions.reshape(-1, 2)).reshape(places.shape)
    weight = np.where(certain, field.certainty, 0).astype(np.float32)
    moved = np.where(certain[..., None], places - planar, 0).astype(np.float32) * weight[..., None]
    rows, columns = weight.shape
    values, known = np.zeros_like(moved), np.zeros_like(weight)
    for sigma in (1.0, 4.0, 16.0, 64.0):  # map pixels: the nearest that is certain counts most
        near = cv2.GaussianBlur(weight, (0, 0), sigma)
        blurred = cv2.GaussianBlur(moved, (0, 0), sigma)
        open_ = known < 0.05
        mean = blurred / np.maximum(near, 1e-6)[..., None]
        take = open_ & (near >= 0.05)
        values[take], known[take] = mean[take], 1.0
    step = (field.size[0] * fixed_factor / columns, field.size[1] * fixed_factor / rows)
    return LocalTransform("dense", found.matrix, DisplacementMap(values, step))


# ---- local models: more matches, and places between them


def _more_matches(
    views: tuple[_View, _View], masks: list[Mask | None], matcher: Matcher, options: RegisterOptions
) -> tuple[Array, Array]:
    more = matcher.variant(max_matches=options.local_matches)
    found = more.match(views[0].rgb, views[1].rgb, mask0=masks[0], mask1=masks[1])
    return views[0].to_raster(found.points0), views[1].to_raster(found.points1)


def _places_between(
    views: tuple[_View, _View],
    masks: list[Mask | None],
    matched: Array,
    matcher: Matcher,
    options: RegisterOptions,
) -> Places:
    """Where the dense warp puts the centres of those cells of the fixed image that no match (N, 2) is in."""
    warp = matcher.warp(views[0].rgb, views[1].rgb, mask0=masks[0], mask1=masks[1])
    (rows, columns), side = cell_grid(views[1].raster.size, options.places)
    empty = np.ones((rows, columns), np.bool_)
    column, row = (matched // side).astype(np.int64).T
    empty[np.clip(row, 0, rows - 1), np.clip(column, 0, columns - 1)] = False
    centres = np.asarray((np.argwhere(empty)[:, ::-1] + 0.5) * side - 0.5, np.float64)
    zoom = 1 / views[1].factor
    found, certainty = warp.backward.at(resize_points(centres, (zoom, zoom)))
    # Of errors that are normal along x and y a share of `certainty` is within `WITHIN` overview pixels.
    within = WITHIN * views[1].factor
    precision = -2 * np.log1p(-np.clip(certainty.astype(np.float64), 0, 0.999)) / within**2
    return Places(views[0].to_raster(found), centres, precision * options.match_error**2)


# ---- large images: a second look in full resolution


def _look_closer(
    views: tuple[_View, _View], transform: Transform, matcher: Matcher, options: RegisterOptions
) -> tuple[tuple[Array, Array] | None, int]:
    """Matches (N, 2), (N, 2) of windows of the fixed image with the moving one drawn in its frame."""
    moving, fixed = views
    once = matcher.variant(looks="once")
    found: list[tuple[Array, Array]] = []
    linear = ResampleOptions(interpolation="linear")
    for window in spread_windows(fixed.raster.size, matcher.config.resolution, options.windows):
        here = fixed.raster.read(window)
        usable = fixed.raster.valid(here, window)
        drawn, there = resample_window(moving.raster, transform, window, linear)
        if min(usable.mean(), there.mean()) < 0.2:
            continue
        pair = once.match(moving.display.rgb(drawn), fixed.display.rgb(here), mask0=there, mask1=usable)
        corner = window.corner.astype(np.float64)
        at0, at1 = (np.asarray(points, np.float64) + corner for points in (pair.points0, pair.points1))
        near = np.linalg.norm(at0 - at1, axis=1) < 0.1 * max(window.width, window.height)
        if near.mean() >= options.closer_share if len(near) else False:
            found.append((transform.inverse_points(at0[near]), at1[near]))
    if not found:
        return None, 0
    return (np.concatenate([a for a, _ in found]), np.concatenate([b for _, b in found])), len(found)


def spread_windows(size: Size, side: int, count: int) -> Iterator[Window]:
    """At most count x count windows of side x side, spread evenly over an image."""
    across, down = ([*dict.fromkeys(_starts(length, side, count))] for length in size)
    for top in down:
        for left in across:
            yield Window(left, top, min(side, size[0] - left), min(side, size[1] - top))


def _starts(length: int, side: int, count: int) -> list[int]:
    count = max(1, min(count, -(-length // side)))
    room = max(0, length - side)
    return [round(room * (number + 0.5) / count) for number in range(count)] if count > 1 else [room // 2]


def _confirms(better: Fit, first: Fit, size: Size, tolerance: float) -> bool:
    """Whether a closer look agrees with the first, within a few times what that can tell."""
    grid = point_grid(size, 8)
    apart = np.linalg.norm(first.transform.points(better.transform.inverse_points(grid)) - grid, axis=1)
    return bool(np.isfinite(apart).all() and np.median(apart) <= 3 * tolerance)


def control_points(registration: Registration, count: int = 100) -> Array:
    """At most `count` control points (N, 4), moving x y and fixed x y, spread over the fixed image."""
    fixed = registration.control_points[:, 2:]
    chosen = spread_points(fixed, count)
    index = {tuple(point): number for number, point in enumerate(fixed.tolist())}
    return registration.control_points[[index[tuple(point)] for point in chosen.tolist()]]

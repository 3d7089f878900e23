"""Matching a pair again through other views, guided by the geometry that its matches show.

When the first matches show no common geometry, other views are searched (`view_search`); when they show the
rough geometry, both photos are matched once more from one viewpoint, cut to what they have in common, where
matches are easier to find and more exact.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice

import numpy as np
import numpy.typing as npt

from coam.geometry.homography import apply_homography, depth_under
from coam.geometry.parallax import off_plane
from coam.geometry.robust import RansacOptions, estimate_fundamental, estimate_homography
from coam.matcher.lights import Light
from coam.matcher.view_search import CoarseLook, SearchOptions, likely_changes, search_views, shown
from coam.matcher.views import Array, ViewOptions, ViewPair, aligned_views
from coam.matching.settings import MatcherConfig
from coam.types import FloatArray, Matches

MatchViews = Callable[[ViewPair], Matches]  # matches of the photos, found in a pair of views
LightPair = tuple[Light, Light]
AS_TAKEN: LightPair = ("as taken", "as taken")


@dataclass(frozen=True)
class RematchOptions:
    """When a pair is matched again, and which result is believed."""

    views: ViewOptions = field(default_factory=ViewOptions)
    search: SearchOptions = field(default_factory=SearchOptions)
    judged: int = 1000  # the best so many matches decide
    plane_tolerance: float = 0.006  # of the long side: how far an inlier may lie from the homography
    epipolar_tolerance: float = 0.002  # of the long side: how far an inlier may lie from its epipolar line
    ransac_iterations: int = 3000
    ransac_confidence: float = 0.9999
    chance_inliers: float = 0.05  # of wrong matches lie on their epipolar line all the same
    min_inliers: int = 15  # of a homography: chance agreements are at most about six
    found_inlier_ratio: float = 0.12  # with fewer inliers other views are searched
    found_overlap: float = 0.5  # probability: below, what agrees may be a repeated detail
    searched_views: int = 28  # looked at by a search with effort 1: one change, and the usual two at once
    matched_views: int = 2  # of what it finds: so many are matched at most
    # Of networks without coarse descriptors: zooms and turns are matched blindly
    blind_views: int = 8
    # What a search found with fewer inliers is not believed blindly: on 140 pairs of different buildings,
    # webcams and things up to 442 agreed and seemed sure. A debt: no other such pairs were tried
    sure_inliers: int = 500  # of `judged`
    settled_inlier_ratio: float = 0.9  # one more view would bring nothing new
    planar_share: float = 0.93  # near the plane, of the matches that fit two views at all: else it has depth
    near_plane: float = 2.0  # plane tolerances: a rough estimate of a plane still is one
    max_alignments: int = 3  # views from one viewpoint: each starts from a better estimate
    aligned_lead: float = 1.1  # times its inliers: as many agree in both, and its matches are more exact
    large_zoom: float = 1.4  # times: a scene with depth is matched again beyond this zoom
    large_turn: float = 20.0  # degrees: or beyond this rotation
    similarity_tolerance: float = 0.048  # of the long side: inliers of the zoom and turn of such a scene
    plane_gap: float = 0.01  # of the long side: this near to a match of the plane, the plane is what is seen
    parallax_share: float = 0.25  # of the matches may make room for those that lie off the plane


@dataclass(frozen=True)
class DominantPlane:
    """Matches, and the homography that explains most of them."""

    matches: Matches
    homography: Array | None  # (3, 3) photo 0 -> photo 1; None: no more inliers than chance gives
    inliers: int  # of the best `judged` matches
    share: float  # of the judged matches that are inliers
    is_planar: bool  # inliers are nearly all that fit two views of one scene
    lights: LightPair = AS_TAKEN  # in which the photos were shown

    def better_of(self, other: DominantPlane, lead: float = 1.0) -> DominantPlane:
        """The one with more inliers, `other` counting `lead` times (sums of scores mislead on hard pairs)."""
        return other if other.inliers * lead > self.inliers else self


def rematch(
    first: Matches,
    match_views: MatchViews,
    look: CoarseLook,
    config: MatcherConfig,
    options: RematchOptions,
) -> Matches:
    """The matches of a pair after as many views as `config` allows; meta["looks"] counts those matched.

    first: matches of the photos as they are; look: what a cheap look at pairs of views shows.
    """
    best, views = fit_dominant_plane(first, options), 1
    # An unknown overlap (nan) is no objection.
    found = best.share >= options.found_inlier_ratio and not best.matches.overlap < options.found_overlap
    if config.looks == "search" and not found:
        for pair in promising_views(first, look, config, options):
            best = best.better_of(fit_plane_of_views(pair, match_views, options))
            views += 1
            if best.inliers >= options.sure_inliers:
                break
    for _ in range(options.max_alignments):
        aligned = views_of_alignment(best, config.resolution, options)
        if aligned is None:
            break
        closer = best.better_of(fit_plane_of_views(aligned, match_views, options), options.aligned_lead)
        views += 1
        improved, best = closer is not best, closer
        if best.share >= options.settled_inlier_ratio or not improved:
            break
    matches = best.matches
    if matches is not first:
        matches = with_parallax(guarded(best, first, options), first, options)
    matches.meta["looks"] = views
    return matches


def promising_views(
    first: Matches, look: CoarseLook, config: MatcherConfig, options: RematchOptions
) -> Iterator[ViewPair]:
    """The views worth matching, most evidence first."""
    sizes = first.size0, first.size1
    most = round(config.effort * options.searched_views)
    found = search_views(*sizes, look, options.search, config.resolution, most)
    if found is None:
        blind = islice(likely_changes(options.search), 1, min(most, options.blind_views))
        yield from (shown(changes, *sizes, options.search, config.resolution) for changes in blind)
        return
    for sighting in found[: max(1, round(config.effort * options.matched_views))]:
        assert sighting.homography is not None
        lights = sighting.views.view0.light, sighting.views.view1.light
        pair = aligned_views(sighting.homography, *sizes, config.resolution, options.views, lights)
        if pair is not None:
            yield pair


def fit_plane_of_views(pair: ViewPair, match_views: MatchViews, options: RematchOptions) -> DominantPlane:
    """The dominant plane of the matches of a pair of views."""
    lights = pair.view0.light, pair.view1.light
    return replace(fit_dominant_plane(match_views(pair), options), lights=lights)


def fit_dominant_plane(matches: Matches, options: RematchOptions) -> DominantPlane:
    """The homography with most inliers, seen from one side by both cameras (cheirality)."""
    best = matches.top(options.judged)
    ransac = _ransac(options.plane_tolerance, matches, options)
    model = estimate_homography(best.points0, best.points1, ransac)
    nothing = DominantPlane(matches, None, 0, 0.0, is_planar=False)
    if model is None or model.inliers.sum() < options.min_inliers:
        return nothing
    depth = depth_under(model.matrix, best.points0[model.inliers])
    matrix = model.matrix * np.sign(depth[0])
    # A plane that both cameras see from one side is neither mirrored nor partly behind one of them.
    if (depth * depth[0] <= 0).any() or np.linalg.det(matrix) <= 0:
        return nothing
    error = np.linalg.norm(apply_homography(matrix, best.points0) - best.points1, axis=1)
    near = (error <= options.near_plane * ransac.threshold).sum()
    is_planar = bool(near >= options.planar_share * _epipolar_inliers(best, options))
    inliers = int(model.inliers.sum())
    return DominantPlane(matches, matrix, inliers, inliers / max(1, len(best)), is_planar)


def _epipolar_inliers(matches: Matches, options: RematchOptions) -> float:
    """How many matches fit two views of one scene, whatever its depth, beyond those that do by chance."""
    ransac = _ransac(options.epipolar_tolerance, matches, options)
    model = estimate_fundamental(matches.points0, matches.points1, ransac)
    return 0.0 if model is None else float(model.inliers.sum()) - options.chance_inliers * len(matches)


def _ransac(tolerance: float, matches: Matches, options: RematchOptions) -> RansacOptions:
    threshold = tolerance * max(matches.size1)
    return RansacOptions(threshold, options.ransac_confidence, options.ransac_iterations)


def views_of_alignment(plane: DominantPlane, resolution: int, options: RematchOptions) -> ViewPair | None:
    """Both photos from one viewpoint; None where one more view brings nothing."""
    matches, homography = plane.matches, plane.homography
    if homography is None:
        return None
    # To one plane of many its matches would crowd; only zoom and turn hold for all of the scene.
    if not plane.is_planar:
        homography = _similarity(matches, options)
        if homography is None or not _is_large(homography, options):
            return None
    return aligned_views(homography, matches.size0, matches.size1, resolution, options.views, plane.lights)


def guarded(best: DominantPlane, first: Matches, options: RematchOptions) -> DominantPlane:
    """Of many views one may seem right by chance: with few inliers it is no surer than the first matches."""
    if best.inliers >= options.sure_inliers or math.isnan(first.overlap):
        return best
    overlap = min(best.matches.overlap, first.overlap)
    return replace(best, matches=replace(best.matches, overlap=overlap))


def with_parallax(best: DominantPlane, first: Matches, options: RematchOptions) -> Matches:
    """Matches of a plane, and those of the first matches that show what lies before and behind it.

    Two cameras that see one plane only could stand in two ways; views from one viewpoint of the plane leave
    little else.
    """
    if best.homography is None or not best.is_planar:
        return best.matches
    first = first.select(_apart_from_plane(first, best, options))
    long_side = max(first.size1)
    parallax = off_plane(
        first.points0,
        first.points1,
        best.homography,
        options.plane_tolerance * long_side,
        options.epipolar_tolerance * long_side,
        options.min_inliers,
        options.chance_inliers,
    )
    if len(parallax) == 0:
        return best.matches
    beyond = first.select(parallax).top(int(options.parallax_share * len(best.matches)))
    kept = best.matches.top(len(best.matches) - len(beyond))
    if beyond.grid1 is not None:  # else ids are those of given keypoints
        beyond = replace(beyond, ids1=beyond.grid1.nearest(beyond.points1))
    both = Matches.join([kept, beyond])
    return both.select(np.argsort(-both.scores, kind="stable"))


def _apart_from_plane(first: Matches, best: DominantPlane, options: RematchOptions) -> npt.NDArray[np.bool_]:
    """Which matches (N,) may show something before or behind the plane.

    The plane would be seen at their places in both photos, but was not matched there: something hides it.
    Where it was matched, or is out of sight, it is rather a look-alike part of the plane that is wrong.
    """
    assert best.homography is not None
    apart = np.ones(len(first), dtype=np.bool_)
    sides = (
        (first.points0, best.matches.points0, best.homography, first.size0, first.size1),
        (first.points1, best.matches.points1, np.linalg.inv(best.homography), first.size1, first.size0),
    )
    for points, on_plane, homography, own_size, other_size in sides:
        seen = apply_homography(homography, points)
        apart &= ((seen >= 0) & (seen <= np.asarray(other_size) - 1)).all(axis=1)
        apart &= _distance_to_nearest(points, on_plane) > options.plane_gap * max(own_size)
    return apart


def _distance_to_nearest(points: FloatArray, others: FloatArray) -> Array:
    """Distance (N,) of each of points (N, 2) to the nearest of others (M, 2); infinite if there are none."""
    from scipy.spatial import cKDTree

    if len(others) == 0:
        return np.full(len(points), np.inf)
    gap: Array = cKDTree(np.asarray(others, np.float64)).query(np.asarray(points, np.float64))[0]
    return gap


def _similarity(matches: Matches, options: RematchOptions) -> Array | None:
    """Similarity (3, 3), zoom, turn and shift, that most matches share roughly."""
    import cv2

    best = matches.top(options.judged)
    cv2.setRNGSeed(0)
    matrix, _ = cv2.estimateAffinePartial2D(
        best.points0, best.points1, ransacReprojThreshold=options.similarity_tolerance * max(matches.size1)
    )
    return None if matrix is None else np.vstack([matrix, [0.0, 0.0, 1.0]])


def _is_large(similarity: Array, options: RematchOptions) -> bool:
    zoom = math.hypot(similarity[0, 0], similarity[1, 0])
    turn = math.degrees(math.atan2(similarity[1, 0], similarity[0, 0]))
    return max(zoom, 1 / max(zoom, 1e-9)) > options.large_zoom or abs(turn) > options.large_turn

"""From matches to a transform: the simplest that explains the matches which it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt
from scipy.spatial import cKDTree

from coam.errors import ConfigError
from coam.geometry.coordinates import point_grid
from coam.geometry.homography import apply_homography, depth_under, fit_homography, transfer_errors
from coam.geometry.motions import FITS, Indices, held_out_misses, simplest, simplest_motion
from coam.geometry.robust import HOMOGRAPHY_OPTIONS, RansacOptions, estimate_homography
from coam.registration.local_models import DEFAULT_LOCAL, LinearModel, LocalOptions, local_models
from coam.registration.transforms import (
    KINDS,
    LOCAL_KINDS,
    PLANE_KINDS,
    Array,
    Displacement,
    LocalTransform,
    PlaneTransform,
    Transform,
)
from coam.types import Size

Mask = npt.NDArray[np.bool_]
MODELS = ("auto", *KINDS)


@dataclass(frozen=True)
class FitOptions:
    """How a transform is fitted and chosen; what the numbers were chosen on: docs/register.md."""

    model: str = "auto"  # one of `MODELS`
    threshold: float = 3.0  # pixels of the fixed image by which a match may miss a plane motion
    fewest: int = 8  # matches that must agree: four always fit
    bend: float = 0.03  # of the fixed image's long side: what a local model may add to a homography
    # Along the long side: matches of whole blocks are left out, so that their neighbours do not tell
    blocks: int = 10
    folds: int = 5  # parts into which the blocks are dealt
    # A local model must miss left-out matches by this share less than a homography does, and
    local_gain: float = 0.15
    local_least: float = 0.2  # by so many pixels: neighbouring matches share errors of about this size
    local_noise: float = 2.0  # pixels: one that leaves more to left-out matches was fitted to noise
    # Beyond the matches a local model is held to the homography: at places without one, so far apart,
    held_apart: float = 0.06  # of the long side,
    held_firmly: float = 0.05  # with the weight that a match has at this share; places of the warp go before
    local: LocalOptions = field(default_factory=lambda: DEFAULT_LOCAL)
    ransac: RansacOptions = HOMOGRAPHY_OPTIONS  # its threshold is replaced by the one above

    def __post_init__(self) -> None:
        if self.model not in MODELS:
            raise ConfigError(f"there is no model {self.model!r}; choose one of {', '.join(MODELS)}")
        if not self.threshold > 0:
            raise ConfigError(f"threshold {self.threshold}: give pixels above 0")


DEFAULT_FIT = FitOptions()


@dataclass(frozen=True, eq=False)
class Places:
    """Places that hold a spline where no match is: what a dense warp says there, as far as it is certain."""

    moving: Array  # (K, 2)
    fixed: Array  # (K, 2)
    evidence: Array  # (K,) inverse variances, that of a match being 1


NO_PLACES = Places(np.zeros((0, 2)), np.zeros((0, 2)), np.zeros(0))


@dataclass(frozen=True, eq=False)
class Fit:
    """A transform and what the matches say about it; lengths are in pixels of the fixed image."""

    transform: Transform
    residuals: Array  # (N,) of all matches
    inliers: Mask  # (N,)
    held_out: Array  # (M,) misses of matches that agree, each by a fit without its neighbourhood
    tried: dict[str, float]  # kind -> median miss of left-out matches
    why: str  # why this kind


def fit_transform(
    moving: npt.ArrayLike,
    fixed: npt.ArrayLike,
    size: Size,
    options: FitOptions = DEFAULT_FIT,
    dense: LocalTransform | None = None,
    places: Places = NO_PLACES,
) -> Fit | None:
    """The transform of matches (N, 2), (N, 2) onto a fixed image of `size`; None where they agree on none.

    dense: the transform to judge where `options.model` is "dense"; it is not fitted to matches. places: what
    local models are fitted to beside matches; they are judged by matches alone.
    """
    points0, points1 = (np.asarray(p, np.float64).reshape(-1, 2) for p in (moving, fixed))
    plane = _fit_plane(points0, points1, size, options)
    local = None
    if options.model in ("auto", *LOCAL_KINDS):
        local = _fit_local(points0, points1, size, options, dense, places)
    if options.model != "auto":
        return local if options.model in LOCAL_KINDS else plane
    return _simpler(plane, local, options)


def _simpler(plane: Fit | None, local: Fit | None, options: FitOptions) -> Fit | None:
    """The plane motion, unless the local model misses matches that were left out clearly less."""
    if plane is None or local is None:
        return plane or local
    tried = {**plane.tried, **local.tried}
    kind = local.transform.kind
    # Judged on the matches that either explains.
    before, after = local.tried["homography"], local.tried[kind]
    explains_more = local.inliers.sum() > plane.inliers.sum()
    earned = after < min((1 - options.local_gain) * before, before - options.local_least, options.local_noise)
    if earned and explains_more:
        miss = f"{after:.2f} px, a homography by {before:.2f}"
        why = f"{kind}: misses matches of places left out of the fit by {miss}"
        return replace(local, tried=tried, why=why)
    return replace(plane, tried=tried)


# ---- plane motions


def _fit_plane(points0: Array, points1: Array, size: Size, options: FitOptions) -> Fit | None:
    ransac = replace(options.ransac, threshold=options.threshold)
    found = estimate_homography(points0, points1, ransac)
    if (
        found is None
        or found.inliers.sum() < options.fewest
        or not _is_seen_from_one_side(found.matrix, points0[found.inliers])
    ):
        return None
    inner0, inner1 = points0[found.inliers], points1[found.inliers]
    kinds = PLANE_KINDS if options.model in ("auto", *LOCAL_KINDS) else (options.model,)
    best = simplest_motion(inner0, inner1, kinds)
    if best is None:
        return None
    kind, matrix = best
    if kind == "homography":  # the robust estimate weighs its inliers already
        matrix = found.matrix
    folds = block_folds(inner1, size, options)
    tried = {each: _median(held_out_misses(FITS[each], inner0, inner1, folds)) for each in kinds}
    held_out = held_out_misses(FITS[kind], inner0, inner1, folds)
    residuals = transfer_errors(points0, points1, matrix)
    why = f"{kind}: " + (
        "asked for"
        if len(kinds) == 1
        else "the simplest whose miss of left-out matches is within chance of the least "
        f"({', '.join(f'{name} {miss:.2f}' for name, miss in tried.items())} px)"
    )
    inliers = residuals <= options.threshold
    if inliers.sum() < options.fewest:
        return None
    return Fit(PlaneTransform(kind, matrix), residuals, inliers, held_out, tried, why)


def _is_seen_from_one_side(matrix: Array, points: Array) -> bool:
    """Whether a homography neither mirrors nor puts some points behind the camera."""
    depth = depth_under(matrix, points)
    return bool((depth * depth[0] > 0).all() and np.linalg.det(matrix * np.sign(depth[0])) > 0)


# ---- local models


def _fit_local(
    points0: Array,
    points1: Array,
    size: Size,
    options: FitOptions,
    dense: LocalTransform | None,
    places: Places,
) -> Fit | None:
    """The simplest local model on top of a homography that most matches obey roughly."""
    bend = max(options.threshold, options.bend * max(size))
    rough = estimate_homography(points0, points1, replace(options.ransac, threshold=bend))
    if rough is None or not _is_seen_from_one_side(rough.matrix, points0[rough.inliers]):
        return None
    inner0, inner1 = points0[rough.inliers], points1[rough.inliers]
    matrix = fit_homography(inner0, inner1)
    if matrix is None or len(inner0) < options.local.fewest:
        return None
    folds = block_folds(inner1, size, options)
    tried = {"homography": _median(held_out_misses(fit_homography, inner0, inner1, folds))}
    if dense is not None:
        residuals = _misses(dense.matrix, dense.displacement, points0, points1)
        held_out = residuals[rough.inliers]
        tried["dense"] = _median(held_out)
        why = "dense: asked for; its places are the network's own and no fit to the matches"
        return _judged(dense, residuals, held_out, tried, why, options)
    places = _with_held_places(places, inner1, matrix, size, options)
    # Matches first, then places; a block that is left out of a fit loses both.
    both0, both1 = np.vstack([inner0, places.moving]), np.vstack([inner1, places.fixed])
    evidence = np.concatenate([np.ones(len(inner0)), places.evidence])
    both_folds = block_folds(both1, size, options)
    wanted = both0 - apply_homography(np.linalg.inv(matrix), both1)
    candidates: dict[str, tuple[LinearModel, Array]] = {}
    for kind in [options.model] if options.model in LOCAL_KINDS else ["polynomial", "spline"]:
        models = local_models(kind, both1, size, options.local)
        missed = [
            _held_out(model, matrix, both0, both1, wanted, evidence, both_folds)[: len(inner0)]
            for model in models
        ]
        medians = {str(number): _median(miss) for number, miss in enumerate(missed)}
        if models and len(folds) > 1:
            number = int(simplest(medians, len(inner0)))
            candidates[kind] = models[number], missed[number]
            tried[kind] = medians[str(number)]
    if not candidates:
        return None
    kind = simplest({each: tried[each] for each in candidates}, len(inner0))
    model, held_out = candidates[kind]
    displacement = model.displacement(model.solve(wanted, evidence))
    transform = LocalTransform(kind, matrix, displacement)
    if folds_over(transform, size):
        return None
    residuals = _misses(matrix, displacement, points0, points1)
    return _judged(transform, residuals, held_out, tried, f"{kind}: asked for", options)


def _with_held_places(
    places: Places, matched: Array, matrix: Array, size: Size, options: FitOptions
) -> Places:
    """Places beside those of the warp, where neither these nor matches (N, 2) are near: of the homography."""
    side = options.held_apart * max(size)
    x, y = (np.arange(0.5 * side, length, side) for length in size)
    lattice = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    told = np.vstack([matched, places.fixed])
    beyond = lattice[cKDTree(told).query(lattice)[0] > side]
    return Places(
        np.vstack([places.moving, apply_homography(np.linalg.inv(matrix), beyond)]),
        np.vstack([places.fixed, beyond]),
        np.concatenate([places.evidence, np.full(len(beyond), options.held_firmly)]),
    )


def _judged(
    transform: LocalTransform,
    residuals: Array,
    held_out: Array,
    tried: dict[str, float],
    why: str,
    options: FitOptions,
) -> Fit | None:
    inliers = residuals <= options.threshold
    if inliers.sum() < options.fewest:
        return None
    return Fit(transform, residuals, inliers, held_out, tried, why)


def _held_out(
    model: LinearModel,
    matrix: Array,
    points0: Array,
    points1: Array,
    wanted: Array,
    evidence: Array,
    folds: Sequence[Indices],
) -> Array:
    """By how many pixels (N,) of the fixed image each match is missed by a fit without its fold."""
    fetched = apply_homography(np.linalg.inv(matrix), points1)
    for fold in folds:
        rest = np.setdiff1d(np.arange(len(points0)), fold).astype(np.int64)
        fetched[fold] += np.asarray(model.design[fold] @ model.solve(wanted, evidence, rest))
    return transfer_errors(points0, apply_homography(matrix, fetched), matrix)


def _misses(matrix: Array, displacement: Displacement, points0: Array, points1: Array) -> Array:
    """Distances (N,) in pixels of the fixed image: what is fetched for points1 and points0, both moved by
    the matrix."""
    fetched = apply_homography(np.linalg.inv(matrix), points1) + displacement.at(points1)
    return transfer_errors(points0, apply_homography(matrix, fetched), matrix)


def folds_over(transform: Transform, size: Size, cells: int = 64) -> bool:
    """Whether a transform shows a part of the moving image twice, or mirrored, inside the fixed one."""
    places = transform.inverse_points(point_grid(size, cells)).reshape(cells, cells, 2)
    if not np.isfinite(places).all():
        return True
    across, down = places[:-1, 1:] - places[:-1, :-1], places[1:, :-1] - places[:-1, :-1]
    return bool((across[..., 0] * down[..., 1] - across[..., 1] * down[..., 0] <= 0).any())


def block_folds(points: Array, size: Size, options: FitOptions = DEFAULT_FIT) -> list[Indices]:
    """Folds of points (N, 2) of the fixed image: whole blocks, neighbours in different folds."""
    column, row = (points // (max(size) / options.blocks)).astype(np.int64).T
    number = (column + 2 * row) % options.folds
    folds = [np.flatnonzero(number == fold).astype(np.int64) for fold in range(options.folds)]
    return [fold for fold in folds if len(fold)]


def _median(values: Array) -> float:
    return float(np.median(values)) if len(values) else float("inf")

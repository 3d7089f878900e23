"""Options of mapping: attempts, bundle adjustment, loop closure, and the checks of a model."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Literal

MapperName = Literal["incremental", "global"]


@dataclass(frozen=True)
class MappingAttempt:
    """One way to run the incremental mapper."""

    first_angle: float  # degrees between the rays of the initial pair
    two_view_tracks: bool  # also triangulate tracks that only two photos see
    min_inliers: int  # points that must agree before a photo is registered


@dataclass(frozen=True)
class AdjustmentOptions:
    """The last bundle adjustment, with a Cauchy loss."""

    loss_scale: float = 1.0  # pixels beyond which an observation loses weight at first: tension spreads
    min_loss_scale: float = 0.02  # pixels: after that the scale is the median error, at least this
    min_angle: float = 1.5  # degrees between the rays of a point: points below it are removed
    iterations: int = 50
    tolerance: float = 1e-6  # relative change of the cost at which it has converged
    two_view_share: float = 0.2  # of points that two photos see: from there on cameras rest on those as well


@dataclass(frozen=True)
class LoopClosureOptions:
    """When a loop of photos counts as open, and how it is closed."""

    max_contradiction: float = 0.003  # share of the evidence of pairs against a model that is let be
    radius: float = 0.05  # of the long side: so far may matches miss their point while a loop is closed
    angle: float = 4.0  # degrees that they may miss it by
    loss_scale: float = 1.0  # pixels of the robust loss meanwhile: what lies far off is to pull


@dataclass(frozen=True)
class CheckOptions:
    """How a model is compared with the verified pairs."""

    error_factor: float = 2.0  # times the error of verification within which a match fits the model
    min_fitting: float = 0.5  # share of its matches that must fit where a pair agrees with the model
    min_common_points: int = 30  # 3D points: two photos with fewer do not hold each other
    point_distance: float = 0.01  # of the long side: two points for one that lie farther apart are two places
    flat_share: float = 0.9  # of pairs that a homography explains: then the scene is flat


@dataclass(frozen=True)
class LargePlaceOptions:
    """How a place of many photos is mapped: on fewer tracks, adjusted together less often, leg by leg.

    Chosen on the made landmark of 300 photos, checked on that of 500 (`benchmarks.mapping`, docs/scale.md).
    """

    min_photos: int = 200  # of a place, from which on this holds
    tracks_per_photo: int = (
        200  # the longest and surest of so many cells in turn: cameras are found from them
    )
    tracks_per_pair: int = 30  # at least, where a pair has so many
    cells: int = 6  # per side of a photo
    growth: float = 1.4  # of photos or points, after which all are adjusted together
    refinements: int = 2  # bundle adjustments with removal of outliers each time that they are, at most
    iterations: int = 20  # of each of these
    tolerance: float = 1e-5  # relative change of the cost at which one has converged
    photos_per_leg: int = 250  # so many more are mapped, then the model is kept: a killed run goes on there
    few_misplaced: float = 0.02  # of the photos: for so few nothing is mapped once more, they are left out


@dataclass(frozen=True)
class MapperOptions:
    """How models are built from a database."""

    mapper: MapperName = "incremental"
    min_model_size: int = 3  # photos: smaller models are dropped
    max_reprojection_error: float = 4.0  # pixels: observations further off are removed after refinement
    refine_intrinsics: bool = True
    min_matches: int = 15  # verified matches a pair needs to be used
    matches_per_pair: int = 300  # cameras are found from so many of a pair's best; all are triangulated after
    seed: int = 0
    # With more threads (-1: all cores) sums come in any order, and two runs may differ by some points.
    threads: int = 1
    # A wide initial pair and long tracks are best. Where only close pairs have many matches COLMAP starts
    # from a wide one with few, and the model stays a fragment: then closer pairs and short tracks are tried.
    attempts: tuple[MappingAttempt, ...] = (
        MappingAttempt(16.0, False, 30),
        MappingAttempt(6.0, True, 20),
        MappingAttempt(3.0, True, 20),
    )
    enough_registered: float = 0.8  # of the photos with a verified pair: further attempts are not needed
    max_misplaced: float = 0.5  # of a model: so many photos in wrong places are taken out of it
    strong_share: float = (
        0.25  # of a photo's best pair: weaker pairs are left out where all give no right model
    )
    adjustment: AdjustmentOptions = field(default_factory=AdjustmentOptions)
    large: LargePlaceOptions = field(default_factory=LargePlaceOptions)
    loop_closure: LoopClosureOptions = field(default_factory=LoopClosureOptions)
    checks: CheckOptions = field(default_factory=CheckOptions)

    RECORDED: ClassVar[str] = (
        "MapperOptions(mapper, min_model_size, max_reprojection_error, refine_intrinsics, "
        "min_links=min_matches, links_per_pair=matches_per_pair, seed, threads)"
    )

    def is_large(self, photos: int) -> bool:
        """Whether a place of so many photos is mapped as `large` says."""
        return self.mapper == "incremental" and photos >= self.large.min_photos

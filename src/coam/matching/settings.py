"""`MatcherConfig`: how photos are prepared and matches chosen; the presets."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal, TypedDict, get_args

from coam.errors import ConfigError

if TYPE_CHECKING:  # the command line reads the choices before torch is imported
    from coam.models.network import Capabilities

Preset = Literal["default", "paper"]
Ranking = Literal["dual_softmax", "paper", "similarity"]
Looks = Literal["once", "align", "search"]
Search = Literal["guided", "exact", "coarse_to_fine"]
Refinement = Literal["auto", "fine", "quadratic", "paper", "none"]
Alignment = Literal["patches", "none"]
CHOICES = {
    "ranking": get_args(Ranking),
    "refinement": get_args(Refinement),
    "alignment": get_args(Alignment),
    "looks": get_args(Looks),
    "search": get_args(Search),
}
LOWEST_INTEGERS = {"resolution": 32, "grid": 1, "max_matches": 0, "fine_radius": 0, "cached_images": 1}
SHARES = ("min_score", "min_distinctiveness", "crowding", "window")

CLOSEST_STEP = 4  # pixels: a descriptor map finer than this is compared on a grid
GRID_OF_FINE_MAPS = 128  # positions a side, as in the paper


@dataclass(frozen=True)
class MatcherConfig:
    """How photos are prepared and matches chosen."""

    resolution: int = 800  # long side, in pixels, at which the network sees a photo
    squash: bool = False  # True: both sides become `resolution`, as in the paper
    # G x G positions; None: every cell of the model's descriptor map (128 if cells are closer than 4 pixels)
    grid: int | None = None
    max_matches: int = 2048  # the best so many are kept
    min_score: float = 0.001  # matches below it are left out; on hard pairs weak ones are still worth having
    min_distinctiveness: float = 0.02  # positions below it (sky, water, seen in one photo) are not compared
    crowding: float = 0.99  # below 1: what lies where many better ones lie is chosen less; 1: only the score
    # "paper": eq. 2, the score folded into the similarity; "similarity": eq. 2 without it (the "w/o conf" of
    # the paper)
    ranking: Ranking = "dual_softmax"
    # "guided": positions are compared where coarse descriptors allow a match; "exact": all with all. Where
    # guiding does not apply (eq. 2, a `grid`, no coarse descriptors) and in fused kernels it is exact.
    # "coarse_to_fine" (CAPSNet): the best coarse cell, then the best fine one in a window around it
    search: Search = "guided"
    refinement: Refinement = "auto"  # how points in photo 1 become sub-pixel; "auto": the best the model has
    window: float = 0.125  # of "coarse_to_fine": side of the fine window over the photo's longer side
    fine_radius: int = 2  # cells around a match in which the fine map is searched
    keypoint_tolerance: float = 0.35  # resized pixels: usual distance of given keypoints of one place
    # "align": again from one viewpoint; "search": and, where nothing is found, through other views
    looks: Looks = "search"
    # "patches": at last, points of photo 1 are refined in the pixels of both photos where these look alike
    alignment: Alignment = "patches"
    effort: float = 1.0  # of a search: 1 is 28 views at most; those that help most often come first
    cached_images: int = 24  # how many encoded photos `match_many` keeps

    def __post_init__(self) -> None:
        for name, lowest in LOWEST_INTEGERS.items():
            value = getattr(self, name)
            if value is None and name == "grid":
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < lowest:
                raise ConfigError(f"{name} must be a whole number of at least {lowest}, not {value!r}")
        for name in SHARES:
            value = getattr(self, name)
            if not isinstance(value, int | float) or not 0 <= value <= 1:
                raise ConfigError(f"{name} must lie between 0 and 1, not {value!r}")
        if not isinstance(self.keypoint_tolerance, int | float) or not 0 < self.keypoint_tolerance < math.inf:
            raise ConfigError(f"keypoint_tolerance must be above 0 pixels, not {self.keypoint_tolerance!r}")
        if not isinstance(self.effort, int | float) or not 0 <= self.effort < math.inf:
            raise ConfigError(f"effort must be a number of at least 0, not {self.effort!r}")
        for name, choices in CHOICES.items():
            if getattr(self, name) not in choices:
                raise ConfigError(f"{name} must be one of {', '.join(choices)}, not {getattr(self, name)!r}")

    def for_network(self, capabilities: Capabilities) -> MatcherConfig:
        """The same settings with what was left to the network filled in; what it cannot serve is refused."""
        able = capabilities.refinements
        if self.refinement not in ("auto", *able):
            raise ConfigError(f"this model cannot refine by {self.refinement!r}; choose {', '.join(able)}")
        refinement = able[0] if self.refinement == "auto" else self.refinement
        if self.search == "coarse_to_fine":
            if not capabilities.coarse_to_fine:
                raise ConfigError(
                    "this model was not trained for coarse_to_fine; choose search guided or exact"
                )
            if self.grid is not None or self.ranking != "dual_softmax":
                raise ConfigError("search coarse_to_fine compares all cells: leave grid and ranking out")
        too_fine = self.grid is None and capabilities.stride < CLOSEST_STEP
        return replace(self, refinement=refinement, grid=GRID_OF_FINE_MAPS if too_fine else self.grid)


class MatcherOptions(TypedDict, total=False):
    """The fields of `MatcherConfig` as keywords, each of which may be left out."""

    resolution: int
    squash: bool
    grid: int | None
    max_matches: int
    min_score: float
    min_distinctiveness: float
    crowding: float
    ranking: Ranking
    search: Search
    refinement: Refinement
    window: float
    fine_radius: int
    keypoint_tolerance: float
    looks: Looks
    alignment: Alignment
    effort: float
    cached_images: int


PRESETS: dict[str, MatcherConfig] = {
    "default": MatcherConfig(),
    "paper": MatcherConfig(
        resolution=512,
        squash=True,
        grid=128,
        max_matches=2000,
        min_score=0.0,
        min_distinctiveness=0.0,
        crowding=1.0,
        ranking="paper",
        refinement="none",
        looks="once",
        alignment="none",
    ),
}

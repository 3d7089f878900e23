"""Geometry of `Matches`: the bodies of its methods `homography`, `fundamental`, `essential` and `pose`.

Here the best estimator at hand is the default ("auto"), and the scores order the draws. What the defaults
were chosen on: docs/geometry.md.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy.typing as npt

from coam.geometry.ransacs import RansacKeywords, RansacOptions
from coam.geometry.robust import (
    DEFAULT_OPTIONS,
    HOMOGRAPHY_OPTIONS,
    MINDING_PLANES,
    estimate_essential,
    estimate_fundamental,
    estimate_homography,
    relative_pose,
)

if TYPE_CHECKING:
    from typing import Unpack

    from coam.geometry.two_view_models import EssentialMatrix, FundamentalMatrix, Homography, RelativePose
    from coam.types import Matches


def homography(matches: Matches, **options: Unpack[RansacKeywords]) -> Homography | None:
    """See `Matches.homography`."""
    chosen = _options(HOMOGRAPHY_OPTIONS, options)
    return estimate_homography(matches.points0, matches.points1, chosen, matches.scores)


def fundamental(matches: Matches, **options: Unpack[RansacKeywords]) -> FundamentalMatrix | None:
    """See `Matches.fundamental`."""
    chosen = _options(MINDING_PLANES, options)
    return estimate_fundamental(matches.points0, matches.points1, chosen, matches.scores)


def essential(
    matches: Matches,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    **options: Unpack[RansacKeywords],
) -> EssentialMatrix | None:
    """See `Matches.essential`."""
    cameras, chosen = (intrinsics0, intrinsics1), _options(DEFAULT_OPTIONS, options)
    return estimate_essential(matches.points0, matches.points1, *cameras, chosen, matches.scores)


def pose(
    matches: Matches,
    intrinsics0: npt.ArrayLike,
    intrinsics1: npt.ArrayLike,
    **options: Unpack[RansacKeywords],
) -> RelativePose | None:
    """See `Matches.pose`."""
    cameras, chosen = (intrinsics0, intrinsics1), _options(MINDING_PLANES, options)
    return relative_pose(matches.points0, matches.points1, *cameras, chosen, matches.scores)


def _options(defaults: RansacOptions, given: RansacKeywords) -> RansacOptions:
    return replace(replace(defaults, estimator="auto"), **given)

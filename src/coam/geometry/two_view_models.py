"""What the matches of two photos are explained by: homography, fundamental and essential matrix, pose.

Every model says by how many pixels a match misses it (`residuals`) and which matches it explains (`inliers`:
a residual of at most `threshold`), whichever estimator found it.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal, TypeVar

import numpy as np
import numpy.typing as npt

from coam.geometry.correspondences import Array, rays
from coam.geometry.epipolar import (
    cheirality,
    epipolar_lines,
    essential_from_pose,
    fundamental_from_essential,
    sampson_distance,
)
from coam.geometry.homography import apply_homography, transfer_errors

Mask = npt.NDArray[np.bool_]
Model = TypeVar("Model", bound="TwoViewModel")
# "plane": one plane explains all; "rotation": the camera has only turned; "": neither
Degeneracy = Literal["", "plane", "rotation"]


@dataclass(frozen=True, eq=False, kw_only=True)
class TwoViewModel(ABC):
    """What all models have: the matches they were fitted to, judged."""

    kind: ClassVar[str]  # what it is called
    threshold: float  # largest residual of an inlier, in pixels
    estimator: str  # who found it
    inliers: Mask = field(
        default_factory=lambda: np.zeros(0, np.bool_)
    )  # (N,) of the matches it was fitted to
    residuals: Array = field(default_factory=lambda: np.zeros(0))  # (N,) pixels; inf: cannot be explained

    @abstractmethod
    def residuals_of(self, points0: npt.ArrayLike, points1: npt.ArrayLike) -> Array:
        """By how many pixels (N,) matches (N, 2), (N, 2) miss the model; inf: one cannot be explained."""

    @abstractmethod
    def _values(self) -> dict[str, Any]:
        """The model itself in JSON values."""

    def explains(self, points0: npt.ArrayLike, points1: npt.ArrayLike) -> Mask:
        """Which matches (N,) of points (N, 2), (N, 2) are inliers."""
        return np.asarray(self.residuals_of(points0, points1) <= self.threshold)

    def judged(self: Model, points0: npt.ArrayLike, points1: npt.ArrayLike) -> Model:
        """The same model with the residuals and inliers of these matches (N, 2), (N, 2)."""
        residuals = self.residuals_of(points0, points1)
        return replace(self, residuals=residuals, inliers=residuals <= self.threshold)

    @property
    def remark(self) -> str:
        """What one should know before trusting it; empty where there is nothing."""
        return ""

    def to_json(self) -> dict[str, Any]:
        """Everything but the residuals, in JSON values; `inliers` are indices of matches."""
        return {
            "kind": self.kind,
            **self._values(),
            "threshold": self.threshold,
            "estimator": self.estimator,
            "matches": len(self.inliers),
            "inlier_count": int(self.inliers.sum()),
            "inliers": np.flatnonzero(self.inliers).tolist(),
            "remark": self.remark,
        }

    def __repr__(self) -> str:
        counts = f"{int(self.inliers.sum()):,} of {len(self.inliers):,} matches within {self.threshold:g} px"
        remark = f"; {self.remark}" if self.remark else ""
        return f"{type(self).__name__}({counts}, {self.estimator}{remark})"


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class Homography(TwoViewModel):
    """The map of a plane, or of a camera that only turns. Residual: distance to the mapped point."""

    kind: ClassVar[str] = "homography"
    matrix: Array  # (3, 3) pixels of photo 0 -> pixels of photo 1

    def apply(self, points0: npt.ArrayLike) -> Array:
        """Points (N, 2) of photo 0 in photo 1, (N, 2); inf where they are sent to infinity."""
        return apply_homography(self.matrix, points0)

    def residuals_of(self, points0: npt.ArrayLike, points1: npt.ArrayLike) -> Array:
        return transfer_errors(points0, points1, self.matrix)

    def _values(self) -> dict[str, Any]:
        return {"matrix": self.matrix.tolist()}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class FundamentalMatrix(TwoViewModel):
    """Epipolar geometry of two photos whose cameras are not known. Residual: Sampson distance."""

    kind: ClassVar[str] = "fundamental"
    matrix: Array  # (3, 3) of rank 2: x1^T F x0 = 0
    degeneracy: Degeneracy = ""

    def lines1(self, points0: npt.ArrayLike) -> Array:
        """Epipolar lines (N, 3) in photo 1 of points (N, 2) of photo 0: a x + b y + c = 0, a^2 + b^2 = 1."""
        return epipolar_lines(self.matrix, points0)

    def lines0(self, points1: npt.ArrayLike) -> Array:
        """Epipolar lines (N, 3) in photo 0 of points (N, 2) of photo 1: a x + b y + c = 0, a^2 + b^2 = 1."""
        return epipolar_lines(self.matrix.T, points1)

    def residuals_of(self, points0: npt.ArrayLike, points1: npt.ArrayLike) -> Array:
        return _finite_or_inf(sampson_distance(points0, points1, self.matrix))

    @property
    def remark(self) -> str:
        if not self.degeneracy:
            return ""
        return "the matches show one plane only: many fundamental matrices explain them, this is one of these"

    def _values(self) -> dict[str, Any]:
        return {"matrix": self.matrix.tolist(), "degeneracy": self.degeneracy}


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class EssentialMatrix(TwoViewModel):
    """Epipolar geometry of two photos with known cameras. Residual: Sampson distance in pixels."""

    kind: ClassVar[str] = "essential"
    matrix: Array  # (3, 3): r1^T E r0 = 0 for rays r = K^-1 x
    intrinsics0: Array  # (3, 3) camera matrices
    intrinsics1: Array

    @property
    def fundamental(self) -> Array:
        """The fundamental matrix (3, 3) of unit length."""
        return fundamental_from_essential(self.matrix, self.intrinsics0, self.intrinsics1)

    def residuals_of(self, points0: npt.ArrayLike, points1: npt.ArrayLike) -> Array:
        return _finite_or_inf(sampson_distance(points0, points1, self.fundamental))

    def _values(self) -> dict[str, Any]:
        cameras = {"intrinsics0": self.intrinsics0.tolist(), "intrinsics1": self.intrinsics1.tolist()}
        return {"matrix": self.matrix.tolist()} | cameras


@dataclass(frozen=True, eq=False, kw_only=True, repr=False)
class RelativePose(TwoViewModel):
    """How camera 1 stands to camera 0: X1 = R X0 + t, t of length 1.

    Residual: Sampson distance in pixels; inf where the match would lie behind a camera. Two cameras that see
    one plane can stand in two ways that explain all matches: `alternative` is then the other one, explained
    as well by what was matched.
    """

    kind: ClassVar[str] = "pose"
    rotation: Array  # (3, 3)
    translation: Array  # (3,) of length 1: two views do not tell the scale
    intrinsics0: Array  # (3, 3) camera matrices
    intrinsics1: Array
    degeneracy: Degeneracy = ""
    alternative: RelativePose | None = None

    @property
    def essential(self) -> Array:
        """The essential matrix (3, 3)."""
        return essential_from_pose(self.rotation, self.translation)

    @property
    def fundamental(self) -> Array:
        """The fundamental matrix (3, 3) of unit length."""
        return fundamental_from_essential(self.essential, self.intrinsics0, self.intrinsics1)

    def residuals_of(self, points0: npt.ArrayLike, points1: npt.ArrayLike) -> Array:
        rays0, rays1 = rays(points0, self.intrinsics0), rays(points1, self.intrinsics1)
        focal = float(np.sqrt(self.intrinsics0[0, 0] * self.intrinsics1[0, 0]))
        # Rays that a pixel of noise would make meet behind are too far away to say.
        front = cheirality(rays0, rays1, self.rotation, self.translation, self.threshold / focal)
        return _finite_or_inf(np.where(front, sampson_distance(points0, points1, self.fundamental), np.inf))

    @property
    def remark(self) -> str:
        if self.degeneracy == "rotation":
            return "the camera has only turned, as far as matches tell: the direction of motion means nothing"
        if self.alternative is not None:
            return "the matches show one plane only: the pose has two answers, see alternative"
        return ""

    def _values(self) -> dict[str, Any]:
        other = self.alternative
        return {
            "rotation": self.rotation.tolist(),
            "translation": self.translation.tolist(),
            "intrinsics0": self.intrinsics0.tolist(),
            "intrinsics1": self.intrinsics1.tolist(),
            "degeneracy": self.degeneracy,
            "alternative": None
            if other is None
            else {"rotation": other.rotation.tolist(), "translation": other.translation.tolist()},
        }


def _finite_or_inf(residuals: Array) -> Array:
    return np.asarray(np.nan_to_num(residuals, nan=np.inf, posinf=np.inf), dtype=np.float64)

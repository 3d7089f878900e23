"""Transforms: where a point of the moving image lies in the fixed one, and the reverse.

A `PlaneTransform` is a matrix. A `LocalTransform` is a matrix and a displacement that changes from place to
place: a polynomial, a thin-plate spline, or a map of displacements. It is written from the fixed image to the
moving one, the way in which pixels are fetched; the other way is found by iteration.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations_with_replacement
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt

from coam.errors import DataError
from coam.geometry.homography import apply_homography
from coam.geometry.motions import FITS
from coam.store.documents import check_shape

Array = npt.NDArray[np.float64]
PLANE_KINDS: tuple[str, ...] = tuple(FITS)  # simplest first
LOCAL_KINDS = ("polynomial", "spline", "dense")
KINDS = (*PLANE_KINDS, *LOCAL_KINDS)  # what a user can ask for, beside "auto"
ITERATIONS, CONVERGED = 50, 1e-4  # of the inverse of a local transform; pixels of the fixed image
AT_ONCE = 65_536  # points at which a spline is evaluated together: its kernel is a matrix points x centres
LARGEST_MAP = 4096  # cells a side of a map of displacements in a file


class Transform(ABC):
    """Maps points (N, 2) of the moving image to the fixed one, and back."""

    kind: str  # one of `KINDS`

    @abstractmethod
    def points(self, moving: npt.ArrayLike) -> Array:
        """Places (N, 2) in the fixed image of points (N, 2) of the moving one; inf where there is none."""

    @abstractmethod
    def inverse_points(self, fixed: npt.ArrayLike) -> Array:
        """Places (N, 2) in the moving image of points (N, 2) of the fixed one; inf where there is none."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON values; see `transform_from_json`."""


@dataclass(frozen=True, eq=False)
class PlaneTransform(Transform):
    """Translation, similarity, affine map or homography."""

    kind: str
    matrix: Array  # (3, 3) pixels of the moving image -> pixels of the fixed image

    def points(self, moving: npt.ArrayLike) -> Array:
        return apply_homography(self.matrix, moving)

    def inverse_points(self, fixed: npt.ArrayLike) -> Array:
        return apply_homography(np.linalg.inv(self.matrix), fixed)

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "matrix": self.matrix.tolist()}

    def __repr__(self) -> str:
        return f"PlaneTransform({self.kind})"


class Displacement(ABC):
    """By how many pixels of the moving image a matrix is wrong, at points of the fixed image."""

    @abstractmethod
    def at(self, fixed: Array) -> Array:
        """Displacements (N, 2) at points (N, 2)."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """Everything, in JSON values."""


@dataclass(frozen=True, eq=False)
class Polynomial(Displacement):
    """All monomials of x and y up to a degree, of points shifted by `centre` and divided by `scale`."""

    degree: int
    centre: Array  # (2,) pixels of the fixed image
    scale: float  # pixels
    coefficients: Array  # (terms, 2)

    def at(self, fixed: Array) -> Array:
        return np.asarray(self.design(fixed, self.degree, self.centre, self.scale) @ self.coefficients)

    @staticmethod
    def design(fixed: Array, degree: int, centre: Array, scale: float) -> Array:
        """(N, terms) the monomials at points (N, 2)."""
        ones = np.ones((len(fixed), 1))
        columns = [ones, *(((fixed - centre) / scale).T[:, :, None])]
        of_degree = combinations_with_replacement(range(3), degree)
        return np.hstack([np.prod([columns[index] for index in term], axis=0) for term in of_degree])

    def to_json(self) -> dict[str, Any]:
        return {
            "degree": self.degree,
            "centre": self.centre.tolist(),
            "scale": self.scale,
            "coefficients": self.coefficients.tolist(),
        }


@dataclass(frozen=True, eq=False)
class Spline(Displacement):
    """Thin-plate spline: an affine part and one weight for each centre, in units of `scale`."""

    centres: Array  # (K, 2) pixels of the fixed image
    scale: float  # pixels
    weights: Array  # (K + 3, 2): of the centres, then of 1, x and y

    def at(self, fixed: Array) -> Array:
        parts = [
            self.design(fixed[start : start + AT_ONCE], self.centres, self.scale) @ self.weights
            for start in range(0, len(fixed), AT_ONCE)
        ]
        return np.concatenate(parts) if parts else np.zeros((0, 2))

    @staticmethod
    def design(fixed: Array, centres: Array, scale: float) -> Array:
        """(N, K + 3): r^2 log r for each centre, then 1, x and y, of points (N, 2)."""
        x, y = (fixed[:, None] - centres[None]).transpose(2, 0, 1) / scale
        squared = np.square(x) + np.square(y)
        kernel = 0.5 * squared * np.log(np.maximum(squared, 1e-12))
        return np.column_stack([kernel, np.ones(len(fixed)), fixed / scale])

    def to_json(self) -> dict[str, Any]:
        return {"centres": self.centres.tolist(), "scale": self.scale, "weights": self.weights.tolist()}


@dataclass(frozen=True, eq=False)
class DisplacementMap(Displacement):
    """Displacements on a regular grid over the fixed image, bilinear between, constant beyond."""

    values: npt.NDArray[np.float32]  # (rows, columns, 2)
    step: tuple[float, float]  # pixels between grid points, in x and y; the first lies at half a step - 0.5

    def at(self, fixed: Array) -> Array:
        x, y = (((fixed + 0.5) / np.asarray(self.step)) - 0.5).astype(np.float32).T
        parts = []
        for start in range(0, len(fixed), 32_000):  # OpenCV's maps have sides below 2^15
            part = slice(start, start + 32_000)
            parts.append(
                cv2.remap(
                    self.values,
                    x[None, part],
                    y[None, part],
                    cv2.INTER_LINEAR,
                    borderMode=cv2.BORDER_REPLICATE,
                )[0]
            )
        return np.concatenate(parts).astype(np.float64) if parts else np.zeros((0, 2))

    def to_json(self) -> dict[str, Any]:
        rows, columns = self.values.shape[:2]
        packed = b64encode(np.ascontiguousarray(self.values, "<f4").tobytes()).decode("ascii")
        return {"rows": rows, "columns": columns, "step": list(self.step), "float32": packed}


@dataclass(frozen=True, eq=False)
class LocalTransform(Transform):
    """A matrix and a displacement: `fixed` lies at inverse(matrix)(fixed) + displacement(fixed)."""

    kind: str
    matrix: Array  # (3, 3) pixels of the moving image -> pixels of the fixed image, without the displacement
    displacement: Displacement

    def inverse_points(self, fixed: npt.ArrayLike) -> Array:
        xy = np.asarray(fixed, np.float64).reshape(-1, 2)
        return apply_homography(np.linalg.inv(self.matrix), xy) + self.displacement.at(xy)

    def points(self, moving: npt.ArrayLike) -> Array:
        wanted = np.asarray(moving, np.float64).reshape(-1, 2)
        found = apply_homography(self.matrix, wanted)
        for _ in range(ITERATIONS):
            start = np.where(np.isfinite(found), found, 0.0)
            better = apply_homography(self.matrix, wanted - self.displacement.at(start))
            change = np.abs(better - found)
            found = better
            if not (change > CONVERGED).any():
                break
        return found

    def to_json(self) -> dict[str, Any]:
        return {"kind": self.kind, "matrix": self.matrix.tolist(), "local": self.displacement.to_json()}

    def __repr__(self) -> str:
        return f"LocalTransform({self.kind})"


@dataclass(frozen=True, eq=False)
class Reframed(Transform):
    """A transform onto a fixed frame that is then moved itself: onto a crop, or onto a common middle."""

    inner: Transform
    matrix: Array  # (3, 3) pixels of the fixed frame -> pixels of the new one

    @property
    def kind(self) -> str:  # type: ignore[override]
        return self.inner.kind

    def points(self, moving: npt.ArrayLike) -> Array:
        return apply_homography(self.matrix, self.inner.points(moving))

    def inverse_points(self, fixed: npt.ArrayLike) -> Array:
        return self.inner.inverse_points(apply_homography(np.linalg.inv(self.matrix), fixed))

    def to_json(self) -> dict[str, Any]:
        return {**self.inner.to_json(), "then": self.matrix.tolist()}


def transform_from_json(content: Mapping[str, Any]) -> Transform:
    """The transform that `to_json` wrote; a `ValueError` or `KeyError` for anything else."""
    kind = content["kind"]
    matrix = _numbers(content["matrix"], (3, 3))
    if kind in PLANE_KINDS:
        return PlaneTransform(kind, matrix)
    if kind not in LOCAL_KINDS:
        raise DataError(f"there is no transform {kind!r}; it was written by a newer coam, or by hand")
    return LocalTransform(kind, matrix, _displacement(kind, content["local"]))


def _displacement(kind: str, local: Mapping[str, Any]) -> Displacement:
    if kind == "polynomial":
        degree = int(local["degree"])
        if not 1 <= degree <= 5:
            raise ValueError(f"a degree of {degree}")
        terms = (degree + 1) * (degree + 2) // 2
        centre = _numbers(local["centre"], (2,))
        return Polynomial(
            degree, centre, _positive(local["scale"]), _numbers(local["coefficients"], (terms, 2))
        )
    if kind == "spline":
        centres = _numbers(local["centres"], (len(local["centres"]), 2))
        weights = _numbers(local["weights"], (len(centres) + 3, 2))
        return Spline(centres, _positive(local["scale"]), weights)
    check_shape(local, {"rows": int, "columns": int, "float32": str})
    rows, columns = local["rows"], local["columns"]
    if not (0 < rows <= LARGEST_MAP and 0 < columns <= LARGEST_MAP):
        raise ValueError(f"a map of {columns} x {rows}")
    values = np.frombuffer(b64decode(local["float32"], validate=True), "<f4").reshape(rows, columns, 2)
    if not np.isfinite(values).all():
        raise ValueError("displacements that are not finite")
    step = (_positive(local["step"][0]), _positive(local["step"][1]))
    return DisplacementMap(np.array(values, np.float32), step)


def _numbers(values: Any, shape: tuple[int, ...]) -> Array:
    array = np.asarray(values, np.float64)
    if array.shape != shape or not np.isfinite(array).all():
        raise ValueError(f"wanted finite numbers of shape {shape}")
    return array


def _positive(value: Any) -> float:
    number = float(value)
    if not 0 < number < np.inf:
        raise ValueError("wanted a number above 0")
    return number

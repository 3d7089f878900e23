"""`Registration`: the transform of one image onto another, how good it is, and what it was fitted to."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from coam.errors import CoamError, DataError, ImageError
from coam.registration.quality import Quality, doubts, right_within
from coam.registration.rasters import RasterLike, open_raster
from coam.registration.resampling import DEFAULT_RESAMPLE, ResampleOptions, resample_whole
from coam.registration.transforms import Array, Transform, transform_from_json
from coam.store.documents import read_json, write_sealed_json
from coam.types import Size

FORMAT, VERSION = "coam-registration", 1
_CONTENT = {
    "format": str,
    "version": int,
    "moving_size": [int],
    "fixed_size": [int],
    "transform": {"kind": str, "matrix": [[float]]},
    "quality": dict,
    "why": str,
    "refusal": str,
    "tried": {str: (float, type(None))},
    "control_points": [[float]],
    "meta": dict,
}


class RegistrationRefused(CoamError):
    """The images could not be registered so that the result can be trusted; the message says why."""

    def __init__(self, reason: str, attempt: Registration | None = None) -> None:
        super().__init__(reason)
        self.attempt = attempt  # what was found all the same, to look at


@dataclass(frozen=True, eq=False)
class Registration:
    """How a moving image lies on a fixed one. Points are pixels (x, y), errors pixels of the fixed image."""

    transform: Transform
    moving_size: Size
    fixed_size: Size
    quality: Quality
    control_points: Array  # (N, 4) moving x y, fixed x y of matches that agree
    residuals: Array  # (N,) by how much each misses the transform
    why: str = ""  # why this kind of transform
    tried: dict[str, float] = field(default_factory=dict)  # kind -> median miss of left-out matches
    refusal: str = ""  # why it must not be trusted; empty: it may
    meta: dict[str, Any] = field(default_factory=dict)  # model, seconds, names; JSON values

    def __repr__(self) -> str:
        quality = self.quality
        return (
            f"Registration({self.transform.kind}, {quality.inliers:,} matches agree, "
            f"left-out ones are missed by {quality.held_out_error:.2f} px, "
            f"confidence {quality.confidence:.2f}"
            f"{', REFUSED: ' + self.refusal if self.refusal else ''})"
        )

    @property
    def confidence(self) -> float:
        """Probability that it is right: a mean error below 5 px, or 0.5 % of the fixed image's long side."""
        return self.quality.confidence

    @property
    def coverage(self) -> float:
        """Share of what the moving image covers that matches bear out."""
        return self.quality.coverage

    @property
    def residual_map(self) -> npt.NDArray[np.float32]:
        """(rows, columns) over the fixed image: median residual there; nan where no match agrees."""
        return self.quality.residual_map

    def points(self, moving: npt.ArrayLike) -> Array:
        """Places (N, 2) in the fixed image of points (N, 2) of the moving one; inf where there is none."""
        return self.transform.points(moving)

    def inverse_points(self, fixed: npt.ArrayLike) -> Array:
        """Places (N, 2) in the moving image of points (N, 2) of the fixed one."""
        return self.transform.inverse_points(fixed)

    def apply(self, moving: RasterLike, options: ResampleOptions = DEFAULT_RESAMPLE) -> npt.NDArray[Any]:
        """The moving image, or another of its size (a mask, other bands), in the fixed image's frame.

        (H, W) or (H, W, bands) in its own type of values. A registration that was refused refuses here too.
        """
        return self.apply_with_mask(moving, options)[0]

    def apply_with_mask(
        self, moving: RasterLike, options: ResampleOptions = DEFAULT_RESAMPLE
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
        """`apply`, and (H, W) where the moving image has pixels."""
        self.require_trust()
        raster = open_raster(moving)
        if raster.size != self.moving_size:
            width, height = self.moving_size
            raise ImageError(
                f"this registration is of a moving image of {width} x {height}; give one of that size"
            )
        pixels, inside = resample_whole(raster, self.transform, self.fixed_size, options)
        flat = isinstance(moving, np.ndarray) and moving.ndim == 2
        return (pixels[..., 0] if flat else pixels), inside

    def require_trust(self) -> None:
        """Raise `RegistrationRefused` where this registration was refused."""
        if self.refusal:
            raise RegistrationRefused(self.refusal, self)

    def in_words(self, moving: str = "MOVING", fixed: str = "FIXED") -> list[str]:
        """What was found, how sure that is and why, line by line; the images are called by their names."""
        q = self.quality
        return [
            f"{self.transform.kind}: {q.inliers:,} matches agree ({q.inlier_share:.0%}), left-out ones are "
            f"missed by {_pixels(q.held_out_error)} px (nine in ten by less than {_pixels(q.held_out_p90)})",
            f"right with a probability of {q.confidence:.2f}; {moving} covers {q.overlap:.0%} of {fixed}, "
            f"matches bear out {q.coverage:.0%} of that",
            *(f"but {doubt}" for doubt in doubts(q)),
            f"why {self.why}",
        ]

    # ---- on disk

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write a .json file with everything but pixels."""
        return write_sealed_json(path, self.to_json())

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Registration:
        """Read what `save` wrote."""
        content = read_json(path, _CONTENT, "give a file of coam register")
        if content.get("format") != FORMAT:
            raise DataError(f"{os.fspath(path)}: holds no registration; give a file of coam register")
        if content["version"] > VERSION:
            raise DataError(f"{os.fspath(path)}: was written by a newer coam; upgrade coam to read it")
        try:
            return _from_json(content)
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise DataError(f"{os.fspath(path)}: is damaged ({error}); register the images again") from error

    def to_json(self) -> dict[str, Any]:
        """Everything but pixels, in JSON values."""
        quality = {item.name: _plain(getattr(self.quality, item.name)) for item in fields(Quality)}
        rows = np.column_stack([self.control_points, self.residuals])
        return {
            "format": FORMAT,
            "version": VERSION,
            "moving_size": list(self.moving_size),
            "fixed_size": list(self.fixed_size),
            "transform": self.transform.to_json(),
            "quality": quality,
            "why": self.why,
            "tried": {kind: _plain(miss) for kind, miss in self.tried.items()},
            "refusal": self.refusal,
            "control_points": np.round(rows, 4).tolist(),
            "meta": self.meta,
        }


def _pixels(length: float) -> str:
    return f"{length:.2f}" if math.isfinite(length) else "-"


def _from_json(content: dict[str, Any]) -> Registration:
    quality = dict(content["quality"])
    for name in ("held_out_error", "held_out_p90"):
        quality[name] = math.inf if quality[name] is None else float(quality[name])
    quality.setdefault("against", None)  # files of earlier versions
    quality["against"] = math.nan if quality["against"] is None else float(quality["against"])
    quality.setdefault("uncertainty", None)
    quality["uncertainty"] = math.nan if quality["uncertainty"] is None else float(quality["uncertainty"])
    quality.setdefault("bearable", right_within(tuple(content["fixed_size"])))
    quality["same_place"] = math.nan if quality["same_place"] is None else float(quality["same_place"])
    quality["residual_map"] = np.array(quality["residual_map"], np.float32)
    quality["covered"] = np.array(quality["covered"], np.bool_)
    if quality["residual_map"].ndim != 2 or quality["covered"].shape != quality["residual_map"].shape:
        raise ValueError("maps of another shape")
    rows = np.asarray(content["control_points"], np.float64).reshape(-1, 5)
    sizes = [(int(width), int(height)) for width, height in (content["moving_size"], content["fixed_size"])]
    return Registration(
        transform=transform_from_json(content["transform"]),
        moving_size=sizes[0],
        fixed_size=sizes[1],
        quality=Quality(**quality),
        control_points=rows[:, :4],
        residuals=rows[:, 4],
        why=content["why"],
        tried={kind: math.inf if miss is None else miss for kind, miss in content["tried"].items()},
        refusal=content["refusal"],
        meta=content["meta"],
    )


def _plain(value: Any) -> Any:
    """A number or an array in JSON values; what is not finite is null."""
    if isinstance(value, np.ndarray):
        if value.dtype == np.bool_:
            return value.tolist()
        return [[_plain(float(cell)) for cell in row] for row in value]
    if isinstance(value, float):
        return round(value, 6) if math.isfinite(value) else None
    return value

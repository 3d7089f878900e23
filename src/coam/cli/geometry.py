"""`coam match --geometry`: which geometry is asked for, with which cameras, and how it is told."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from coam.cli.options import check_choice
from coam.errors import ConfigError

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from coam.geometry.two_view_models import TwoViewModel
    from coam.images import LoadedImage
    from coam.types import Matches

KINDS = ("homography", "fundamental", "pose")


@dataclass(frozen=True)
class GeometryRequest:
    """What the options of a command ask for."""

    kind: str
    threshold: float | None  # pixels
    estimator: str
    cameras: tuple[str | None, str | None]  # FX,FY,CX,CY or F,CX,CY or F, in pixels
    focal: float | None  # pixels, of both cameras

    def fit(self, matches: Matches, matrices: list[npt.NDArray[np.float64]]) -> TwoViewModel | None:
        """The model of the matches; `matrices`: what `camera_matrices` gave."""
        options: Any = {"estimator": self.estimator}
        if self.threshold is not None:
            options["threshold"] = self.threshold
        model: TwoViewModel | None = getattr(matches, self.kind)(*matrices, **options)
        return model

    def camera_matrices(
        self, photos: tuple[LoadedImage, LoadedImage], paths: tuple[Path, Path]
    ) -> list[npt.NDArray[np.float64]]:
        """The two camera matrices of a pose, from the options or from EXIF; none for the other kinds."""
        if self.kind != "pose":
            return []
        return [self._camera(side, photo, paths[side]) for side, photo in enumerate(photos)]

    def _camera(self, side: int, photo: LoadedImage, path: Path) -> npt.NDArray[np.float64]:
        from coam.geometry.correspondences import camera_matrix, centred_camera
        from coam.sfm.cameras import FILM_LONG_SIDE

        given, option = self.cameras[side], f"--camera{side}"
        if given is not None:
            numbers = _numbers(given, option)
            if len(numbers) == 1:
                return centred_camera(numbers[0], photo.size)
            fx, fy, cx, cy = numbers if len(numbers) == 4 else (numbers[0], *numbers)
            return camera_matrix([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])
        if self.focal is not None:
            return centred_camera(self.focal, photo.size)
        if photo.focal35:
            return centred_camera(photo.focal35 / FILM_LONG_SIDE * max(photo.size), photo.size)
        raise ConfigError(
            f"{path}: tells no focal length, and a pose needs it; give --focal PIXELS or {option} FX,FY,CX,CY"
        )


def geometry_request(
    kind: str | None,
    threshold: float | None,
    estimator: str | None,
    cameras: tuple[str | None, str | None],
    focal: float | None,
    overlay: Path | None,
) -> GeometryRequest | None:
    """The checked request; None where no geometry is asked for."""
    check_choice("--geometry", kind, KINDS)
    if kind is None:
        for name, value in (
            ("--threshold", threshold), ("--estimator", estimator), ("--camera0", cameras[0]),
            ("--camera1", cameras[1]), ("--focal", focal), ("--overlay", overlay),
        ):  # fmt: skip
            if value is not None:
                raise ConfigError(f"{name} is about --geometry; give --geometry {'|'.join(KINDS)} too")
        return None
    if overlay is not None and kind != "homography":
        raise ConfigError("--overlay warps a photo by a homography; give --geometry homography with it")
    for side, given in enumerate(cameras):
        if given is not None:
            _numbers(given, f"--camera{side}")
    from coam.geometry.ransacs import ESTIMATORS

    check_choice("--estimator", estimator, ESTIMATORS)
    return GeometryRequest(kind, threshold, estimator or "auto", cameras, focal)


def _numbers(text: str, option: str) -> list[float]:
    try:
        numbers = [float(word) for word in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 3, 4) or not all(map(math.isfinite, numbers)) or numbers[0] <= 0:
        raise ConfigError(f"{option} {text}: wanted FX,FY,CX,CY or F,CX,CY or F, in pixels")
    return numbers


def geometry_lines(found: dict[str, Any] | None) -> list[str]:
    """What people read about a model's JSON; None: there is none."""
    if found is None:
        return ["no geometry: the matches determine none"]
    share = f"{found['inlier_count']:,} of {found['matches']:,} matches within {found['threshold']:g} px"
    lines = [f"{found['kind']}: {share}, by {found['estimator']}"]
    if "matrix" in found:
        lines += ["  " + "  ".join(f"{value:12.6g}" for value in row) for row in found["matrix"]]
    else:
        lines.append(_pose_line(found))
    if found["remark"]:
        lines.append(found["remark"])
    if found.get("alternative"):
        lines.append("or: " + _pose_line(found["alternative"]).strip())
    return lines


def _pose_line(pose: dict[str, Any]) -> str:
    from coam.geometry.pose import rotation_angle

    x, y, z = pose["translation"]
    turn = rotation_angle(pose["rotation"])
    return f"  turned by {turn:.2f} degrees, moved along ({x:.4f}, {y:.4f}, {z:.4f})"

"""A multi-view scene with exact cameras and, for some views, ground-truth depth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.geometry.epipolar import cross_matrix
from coam.samples.ground_truth_maps import Float64Array, read_png16, sample_smooth
from coam.types import FloatArray

SAME_SURFACE = 0.03  # relative difference up to which two depths are of one surface


@dataclass(frozen=True)
class Camera:
    """A pinhole camera; its principal point is in our pixels (first pixel centre is (0, 0))."""

    width: int
    height: int
    focal: tuple[float, float]
    principal: tuple[float, float]

    def project(self, points: Float64Array) -> Float64Array:
        """Pixels (N, 2) of points (N, 3) in camera coordinates; nan behind the camera."""
        z = np.where(points[:, 2] > 0, points[:, 2], np.nan)
        return points[:, :2] / z[:, None] * self.focal + self.principal

    def unproject(self, pixels: Float64Array, depth: Float64Array) -> Float64Array:
        """Points (N, 3) in camera coordinates at `depth` (N,) along the optical axis."""
        plane = (pixels - self.principal) / np.asarray(self.focal)
        return np.concatenate([plane, np.ones((len(plane), 1))], axis=1) * depth[:, None]


@dataclass(frozen=True)
class Pose:
    """Camera from world: x_camera = rotation @ x_world + translation."""

    rotation: Float64Array  # (3, 3)
    translation: Float64Array  # (3,) metres

    def to_camera(self, points: Float64Array) -> Float64Array:
        """World points (N, 3) in camera coordinates."""
        return points @ self.rotation.T + self.translation

    def to_world(self, points: Float64Array) -> Float64Array:
        """Camera points (N, 3) in world coordinates."""
        return (points - self.translation) @ self.rotation


@dataclass(frozen=True)
class CourtyardSample:
    """The rendered courtyard: views day_01 to day_12 and night_01 to night_04; metres; camera from world."""

    model_dir: Path  # holds the COLMAP text model, images/ and depth/

    @property
    def image_dir(self) -> Path:
        return self.model_dir / "images"

    @cached_property
    def names(self) -> tuple[str, ...]:
        """All views, day first, in walking order."""
        return tuple(sorted(path.stem for path in self.image_dir.glob("*.jpg")))

    @property
    def day(self) -> tuple[Path, ...]:
        """The 12 pictures by day, in walking order."""
        return tuple(self.image(name) for name in self.names if name.startswith("day"))

    @property
    def night(self) -> tuple[Path, ...]:
        """The 4 pictures by night, in walking order."""
        return tuple(self.image(name) for name in self.names if name.startswith("night"))

    @cached_property
    def depth_names(self) -> tuple[str, ...]:
        """The views that have true depth."""
        return tuple(sorted(path.stem for path in (self.model_dir / "depth").glob("*.png")))

    def image(self, name: str) -> Path:
        """The picture of the view `name`."""
        return self.image_dir / f"{self._known(name, self.names)}.jpg"

    def camera(self, name: str) -> Camera:
        """The intrinsics of the view `name`."""
        return self._views[self._known(name, self.names)][0]

    def pose(self, name: str) -> Pose:
        """The camera-from-world pose of the view `name`."""
        return self._views[self._known(name, self.names)][1]

    def depth(self, name: str) -> FloatArray:
        """Depth (H, W) in metres along the optical axis, nan where the ray meets nothing (sky)."""
        path = self.model_dir / "depth" / f"{self._known(name, self.depth_names)}.png"
        millimetres = read_png16(path).astype(np.float32)
        return np.where(millimetres > 0, millimetres / np.float32(1000), np.float32(np.nan))

    @cached_property
    def points(self) -> Float64Array:
        """True surface points (N, 3), metres."""
        return np.loadtxt(self.model_dir / "points3D.txt", usecols=(1, 2, 3))

    def true_points1(
        self, name0: str, name1: str, points0: npt.ArrayLike
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Where pixels (N, 2) of `name0` are in `name1`: points (N, 2), nan where unknown, and valid (N,).

        `name0` must have depth. Not valid: no depth, on a depth edge, outside view 1, or, where `name1` has
        depth too, hidden there.
        """
        points = np.asarray(points0, dtype=np.float64).reshape(-1, 2)
        depth, known = interpolated_depth(self.depth(name0), points)
        world = self.pose(name0).to_world(self.camera(name0).unproject(points, depth))
        local = self.pose(name1).to_camera(world)
        camera = self.camera(name1)
        points1 = camera.project(local)
        x, y = points1[:, 0], points1[:, 1]
        valid = known & (x >= 0) & (y >= 0) & (x <= camera.width - 1) & (y <= camera.height - 1)
        if name1 in self.depth_names:
            seen, certain = interpolated_depth(self.depth(name1), points1)
            valid &= certain & (np.abs(seen - local[:, 2]) <= SAME_SURFACE * seen)
        return points1.astype(np.float32), valid

    @cached_property
    def _views(self) -> dict[str, tuple[Camera, Pose]]:
        """Camera and pose of every view, read from the COLMAP text model: no pycolmap is needed."""
        try:
            cameras = {words[0]: _camera(words) for words in self._records("cameras.txt")}
            # Two lines for each image; the second lists the points that it sees.
            heads = self._records("images.txt")[::2]
            return {Path(words[9]).stem: (cameras[words[8]], _pose(words)) for words in heads}
        except (OSError, ValueError, LookupError) as error:
            raise DataError(
                f"the bundled {self.model_dir.name} is damaged ({error}); reinstall coam"
            ) from error

    def _records(self, file: str) -> list[list[str]]:
        lines = (self.model_dir / file).read_text(encoding="utf-8").splitlines()
        return [line.split() for line in lines if not line.startswith("#")]

    @staticmethod
    def _known(name: str, names: tuple[str, ...]) -> str:
        if name not in names:
            raise ConfigError(f"no view '{name}' here; choose one of: {', '.join(names)}")
        return name


def _camera(words: list[str]) -> Camera:
    """CAMERA_ID PINHOLE WIDTH HEIGHT FX FY CX CY"""
    from coam.geometry.coordinates import from_colmap

    fx, fy, *centre = (float(word) for word in words[4:8])
    cx, cy = from_colmap(np.asarray(centre)).tolist()
    return Camera(int(words[2]), int(words[3]), (fx, fy), (cx, cy))


def _pose(words: list[str]) -> Pose:
    """IMAGE_ID QW QX QY QZ TX TY TZ CAMERA_ID NAME"""
    numbers = np.asarray(words[1:8], dtype=np.float64)
    w, *axis = numbers[:4] / np.linalg.norm(numbers[:4])
    v = np.asarray(axis)
    return Pose((w * w - v @ v) * np.eye(3) + 2 * np.outer(v, v) + 2 * w * cross_matrix(v), numbers[4:])


def interpolated_depth(
    depth: FloatArray, points: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Depth (N,) between pixels and where it is certain; interpolates 1/depth, which is linear on a plane."""
    _, certain = sample_smooth(np.log(depth), points, SAME_SURFACE)
    inverse, _ = sample_smooth(1.0 / depth, points, np.inf)
    return 1.0 / np.where(certain, inverse, np.nan), certain

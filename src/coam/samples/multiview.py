"""Many views of one place with exact cameras and, for some, true depth."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError
from coam.samples.colmap_text import (
    Camera,
    ImageRecord,
    PointRecord,
    Pose,
    read_cameras,
    read_images,
    read_points,
)
from coam.samples.sampling import read_png16, sample_smooth
from coam.types import FloatArray

SAME_SURFACE = 0.03  # depths that differ by at most 3 % are of one surface


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
        return self._cameras[self.record(name).camera_id]

    def pose(self, name: str) -> Pose:
        """The camera-from-world pose of the view `name`."""
        return self.record(name).pose

    def record(self, name: str) -> ImageRecord:
        """All that the model says about the view `name`, with the surface points it sees."""
        return self._images[f"{self._known(name, self.names)}.jpg"]

    def depth(self, name: str) -> FloatArray:
        """Depth (H, W) in metres along the optical axis, nan where the ray meets nothing (sky)."""
        path = self.model_dir / "depth" / f"{self._known(name, self.depth_names)}.png"
        millimetres = read_png16(path).astype(np.float32)
        return np.where(millimetres > 0, millimetres / np.float32(1000), np.float32(np.nan))

    @cached_property
    def points(self) -> dict[int, PointRecord]:
        """True surface points and the views that see them."""
        return read_points(self.model_dir / "points3D.txt")

    def true_points1(
        self, name0: str, name1: str, points0: npt.ArrayLike
    ) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Where pixels (N, 2) of `name0` are in `name1`: points (N, 2), nan where unknown, and valid (N,).

        `name0` must have depth. Not valid: no depth, on a depth edge, outside view 1, or, where `name1` has
        depth too, hidden there.
        """
        points = np.asarray(points0, dtype=np.float64).reshape(-1, 2)
        depth, known = _smooth_depth(self.depth(name0), points)
        world = self.pose(name0).to_world(self.camera(name0).unproject(points, depth))
        local = self.pose(name1).to_camera(world)
        camera = self.camera(name1)
        points1 = camera.project(local)
        x, y = points1[:, 0], points1[:, 1]
        valid = known & (x >= 0) & (y >= 0) & (x <= camera.width - 1) & (y <= camera.height - 1)
        if name1 in self.depth_names:
            seen, certain = _smooth_depth(self.depth(name1), points1)
            valid &= certain & (np.abs(seen - local[:, 2]) <= SAME_SURFACE * seen)
        return points1.astype(np.float32), valid

    @cached_property
    def _cameras(self) -> dict[int, Camera]:
        return read_cameras(self.model_dir / "cameras.txt")

    @cached_property
    def _images(self) -> dict[str, ImageRecord]:
        return read_images(self.model_dir / "images.txt")

    @staticmethod
    def _known(name: str, names: tuple[str, ...]) -> str:
        if name not in names:
            raise ConfigError(f"no view '{name}' here; choose one of: {', '.join(names)}")
        return name


def _smooth_depth(
    depth: FloatArray, points: npt.NDArray[np.float64]
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Depth (N,) between pixels and where it is certain; interpolates 1/depth, which is linear on a plane."""
    _, certain = sample_smooth(np.log(depth), points, SAME_SURFACE)
    inverse, _ = sample_smooth(1.0 / depth, points, np.inf)
    return 1.0 / np.where(certain, inverse, np.nan), certain

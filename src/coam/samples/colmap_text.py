"""Reading the COLMAP text model that the bundled scene ships (PINHOLE cameras only)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from coam.errors import DataError

Float64Array = npt.NDArray[np.float64]
Int64Array = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Camera:
    """A pinhole camera; its principal point is in our pixels (first pixel centre is (0, 0))."""

    width: int
    height: int
    focal: tuple[float, float]
    principal: tuple[float, float]

    @property
    def matrix(self) -> Float64Array:
        """The calibration matrix K (3, 3) for our pixels."""
        (fx, fy), (cx, cy) = self.focal, self.principal
        return np.array([[fx, 0.0, cx], [0.0, fy, cy], [0.0, 0.0, 1.0]])

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

    @property
    def matrix(self) -> Float64Array:
        """(4, 4), homogeneous."""
        pose = np.eye(4)
        pose[:3, :3], pose[:3, 3] = self.rotation, self.translation
        return pose

    @property
    def centre(self) -> Float64Array:
        """Where the camera stands in the world (3,)."""
        return -self.rotation.T @ self.translation

    def to_camera(self, points: Float64Array) -> Float64Array:
        """World points (N, 3) in camera coordinates."""
        return points @ self.rotation.T + self.translation

    def to_world(self, points: Float64Array) -> Float64Array:
        """Camera points (N, 3) in world coordinates."""
        return (points - self.translation) @ self.rotation


@dataclass(frozen=True)
class ImageRecord:
    """One registered image with its observations."""

    image_id: int
    name: str  # file name
    camera_id: int
    quaternion: Float64Array  # (4,) w, x, y, z as written
    pose: Pose
    points: Float64Array  # (N, 2) observed positions in our pixels
    point_ids: Int64Array  # (N,) ids of the surface points


@dataclass(frozen=True)
class PointRecord:
    """One point on a surface and who sees it."""

    position: Float64Array  # (3,) metres
    color: tuple[int, int, int]
    track: tuple[tuple[int, int], ...]  # (image id, index into that image's observations)


def rotation_from_quaternion(quaternion: npt.ArrayLike) -> Float64Array:
    """The rotation (3, 3) of a quaternion (w, x, y, z) of any length but 0."""
    q = np.asarray(quaternion, dtype=np.float64)
    length = float(np.linalg.norm(q))
    if q.shape != (4,) or not np.isfinite(length) or length == 0.0:
        raise DataError(f"a quaternion is four finite numbers, not all zero; this one is {q.tolist()}")
    w, x, y, z = q / length
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
            [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
            [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
        ]
    )


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise DataError(f"cannot read {path} ({error.strerror}); give a COLMAP text model") from error
    return [line.strip() for line in text.splitlines() if not line.startswith("#")]


def _numbers(words: list[str], path: Path) -> Float64Array:
    try:
        return np.array([float(word) for word in words])
    except ValueError as error:
        raise DataError(f"{path.name} is damaged: {error}") from error


def _records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Numbered non-empty lines, split into words."""
    yield from ((number, line.split()) for number, line in enumerate(_lines(path), start=1) if line)


def read_cameras(path: Path) -> dict[int, Camera]:
    """cameras.txt: camera id to camera."""
    from coam.geometry.coordinates import from_colmap

    cameras = {}
    for number, words in _records(path):
        if len(words) != 8 or words[1] != "PINHOLE":
            raise DataError(f"{path.name}, record {number}: only PINHOLE cameras are read here")
        camera_id, width, height = _numbers([words[0], *words[2:4]], path).astype(int).tolist()
        parameters = _numbers(words[4:], path)
        fx, fy = parameters[:2].tolist()
        x, y = from_colmap(parameters[2:]).tolist()
        cameras[camera_id] = Camera(width, height, (fx, fy), (x, y))
    return cameras


def read_images(path: Path) -> dict[str, ImageRecord]:
    """images.txt: file name to image. Every image has two lines; the second may be empty."""
    from coam.geometry.coordinates import from_colmap

    lines = _lines(path)
    if len(lines) % 2:
        lines.append("")
    images = {}
    for head, tail in zip(lines[::2], lines[1::2], strict=True):
        words = head.split()
        if len(words) != 10:
            raise DataError(f"{path.name}: an image line needs 10 words, not {len(words)}: {head[:60]}")
        if len(tail.split()) % 3:
            raise DataError(f"{path.name}: the observations of {words[9]} are not triples")
        numbers = _numbers(words[1:8], path)
        image_id, camera_id = _numbers([words[0], words[8]], path).astype(int).tolist()
        observed = _numbers(tail.split(), path).reshape(-1, 3)
        positions: Float64Array = from_colmap(observed[:, :2]).astype(np.float64)
        images[words[9]] = ImageRecord(
            image_id=image_id,
            name=words[9],
            camera_id=camera_id,
            quaternion=numbers[:4],
            pose=Pose(rotation_from_quaternion(numbers[:4]), numbers[4:]),
            points=positions,
            point_ids=observed[:, 2].astype(np.int64),
        )
    return images


def read_points(path: Path) -> dict[int, PointRecord]:
    """points3D.txt: point id to point."""
    points = {}
    for number, words in _records(path):
        if len(words) < 8 or len(words) % 2:
            raise DataError(f"{path.name}, record {number}: a point needs 8 words and a track of pairs")
        numbers = _numbers(words, path)
        ends = numbers[8:].astype(int).tolist()
        red, green, blue = numbers[4:7].astype(int).tolist()
        points[int(numbers[0])] = PointRecord(
            position=numbers[1:4],
            color=(red, green, blue),
            track=tuple(zip(ends[::2], ends[1::2], strict=True)),
        )
    return points

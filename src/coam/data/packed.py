"""One file that holds everything a training source needs: photos, cameras, observed points or depth, pairs.

The file is plain safetensors: reading it needs numpy and PIL only and runs no code that the file brings
along. Photos stay as JPEG bytes (no EXIF turn is applied when they are decoded: cameras and points belong to
the pixels as they are stored); everything else is arrays. Points are in our pixel convention.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt

from coam.errors import DataError

Array = npt.NDArray[Any]
_TEXT_FIELDS = ("scenes", "names")


class _PackedFile:
    """Saving and loading of a dataclass of arrays; subclasses name their fields and their format."""

    FORMAT: ClassVar[str]

    def save(self, path: str | Path) -> Path:
        """Write one .safetensors file, whole or not at all."""
        from safetensors.numpy import save

        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in self._array_names()}
        metadata = {name: json.dumps(getattr(self, name)) for name in _TEXT_FIELDS} | {"format": self.FORMAT}
        temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
        temporary.write_bytes(save(arrays, metadata=metadata))
        temporary.rename(path)
        return path

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read what `save` wrote."""
        from safetensors import SafetensorError, safe_open

        path = Path(path)
        if not path.is_file():
            raise DataError(
                f"{path} does not exist; make it with: coam data pack-tracks or coam data pack-rgbd"
            )
        try:
            with safe_open(path, framework="numpy") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != cls.FORMAT:
                    found = metadata.get("format", "another kind of file")
                    raise DataError(f"{path} is {found}, not {cls.FORMAT}; pack it again")
                arrays = {name: file.get_tensor(name) for name in cls._array_names()}
        except SafetensorError as error:
            raise DataError(f"{path} is damaged ({error}); pack it again") from error
        texts = {name: tuple(json.loads(metadata[name])) for name in _TEXT_FIELDS}
        return cls(**arrays, **texts)

    @classmethod
    def _array_names(cls) -> list[str]:
        return [f.name for f in fields(cls) if f.name not in _TEXT_FIELDS]  # type: ignore[arg-type]


def _decode_span(data: Array, span: Array) -> Array:
    from PIL import Image

    with Image.open(io.BytesIO(data[span[0] : span[1]].tobytes())) as image:
        return np.asarray(image)


@dataclass(frozen=True)
class PackedTracks(_PackedFile):
    """N photos of S scenes, their M observations of 3D points, and P pairs that share points."""

    FORMAT: ClassVar[str] = "coam-tracks-1"

    jpeg: Array  # (bytes,) uint8, photo after photo; a photo that several models hold is there once
    jpeg_spans: Array  # (N, 2) int64 begin and end of each photo
    sizes: Array  # (N, 2) int32 width, height
    image_scene: Array  # (N,) int32
    intrinsics: Array  # (N, 4) float64 fx, fy, cx, cy, our pixels
    radial: Array  # (N, 2) float64 radial distortion k1, k2 (COLMAP RADIAL model), 0 where there is none
    poses: Array  # (N, 3, 4) float64 camera-from-world
    observation_offsets: Array  # (N + 1,) int64: observations of photo i are [offsets[i], offsets[i + 1])
    observation_point: Array  # (M,) int32 id of the 3D point over all scenes, ascending within a photo
    observation_xy: Array  # (M, 2) float32
    observation_depth: Array  # (M,) float32 depth of the point in the photo's camera
    pairs: Array  # (P, 2) int32 photo indices
    pair_shared: Array  # (P,) int32 number of points that both photos observe
    pair_angle: Array  # (P,) float32 degrees, median triangulation angle
    pair_scale: Array  # (P,) float32 how much larger things are in the second photo than in the first
    scenes: tuple[str, ...]  # S
    names: tuple[str, ...]  # N

    def photo(self, index: int) -> Array:
        """Photo (height, width, 3) uint8 RGB."""
        return _decode_span(self.jpeg, self.jpeg_spans[index])

    def observations(self, index: int) -> tuple[Array, Array, Array]:
        """Point ids (m,), positions (m, 2) and depths (m,) that photo `index` observes."""
        part = slice(self.observation_offsets[index], self.observation_offsets[index + 1])
        return self.observation_point[part], self.observation_xy[part], self.observation_depth[part]

    def shared_points(self, pair: int) -> tuple[Array, Array]:
        """Positions (k, 2) and (k, 2) of the points that both photos of the pair observe."""
        (ids0, xy0, _), (ids1, xy1, _) = (self.observations(int(i)) for i in self.pairs[pair])
        _, index0, index1 = np.intersect1d(ids0, ids1, assume_unique=True, return_indices=True)
        return xy0[index0], xy1[index1]


@dataclass(frozen=True)
class PackedRgbd(_PackedFile):
    """N registered colour and depth frames of S scenes, and P pairs that overlap."""

    FORMAT: ClassVar[str] = "coam-rgbd-1"

    jpeg: Array  # (bytes,) uint8
    jpeg_spans: Array  # (N, 2) int64
    depth_png: Array  # (bytes,) uint8, 16-bit PNG
    depth_spans: Array  # (N, 2) int64
    depth_unit: Array  # (1,) float64 metres per step of the depth PNG
    sizes: Array  # (N, 2) int32 width, height
    image_scene: Array  # (N,) int32
    intrinsics: Array  # (N, 4) float64 fx, fy, cx, cy
    poses: Array  # (N, 3, 4) float64 camera-from-world
    pairs: Array  # (P, 2) int32
    pair_shared: Array  # (P,) float32 share of the first photo's pixels with depth that the second one sees
    pair_angle: Array  # (P,) float32 degrees, median triangulation angle
    pair_scale: Array  # (P,) float32
    scenes: tuple[str, ...]
    names: tuple[str, ...]

    def photo(self, index: int) -> Array:
        """Photo (height, width, 3) uint8 RGB."""
        return _decode_span(self.jpeg, self.jpeg_spans[index])

    def depth(self, index: int) -> npt.NDArray[np.float32]:
        """Depth (height, width) float32 in metres, 0 where there is none."""
        raw = _decode_span(self.depth_png, self.depth_spans[index]).astype(np.uint16)
        metres: npt.NDArray[np.float32] = (raw * float(self.depth_unit[0])).astype(np.float32)
        metres[raw == 65535] = 0
        return metres


def read_photo_as_jpeg(path: Path, max_side: int | None, quality: int = 92) -> tuple[bytes, tuple[int, int]]:
    """JPEG bytes and size of a photo; the file's own bytes where neither size nor kind has to change."""
    from PIL import Image

    try:
        with Image.open(path) as image:
            shrink = max_side is not None and max(image.size) > max_side
            if image.format == "JPEG" and image.mode == "RGB" and not shrink:
                return path.read_bytes(), image.size
            scale = max_side / max(image.size) if shrink and max_side is not None else 1.0
            size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
            small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
    except OSError as error:
        raise DataError(f"cannot read the photo {path}: {error}") from error
    buffer = io.BytesIO()
    small.save(buffer, "JPEG", quality=quality)
    return buffer.getvalue(), size


def concatenate_bytes(parts: Sequence[bytes]) -> tuple[Array, Array]:
    """All parts in one uint8 array, equal ones once, and where each begins and ends (len, 2)."""
    place: dict[bytes, tuple[int, int]] = {}
    end = 0
    for part in parts:
        if part not in place:
            place[part] = (end, end + len(part))
            end += len(part)
    spans = np.array([place[part] for part in parts], dtype=np.int64).reshape(-1, 2)
    return np.frombuffer(b"".join(place), dtype=np.uint8), spans

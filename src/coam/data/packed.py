"""Packed files: one .safetensors with photos, cameras, observed points or depth, and pairs.

The file is plain safetensors: reading it needs numpy and PIL only and runs no code that the file brings
along. Photos stay as JPEG bytes (no EXIF turn is applied when they are decoded: cameras and points belong to
the pixels as they are stored); everything else is arrays. Points are in our pixel convention.
"""

from __future__ import annotations

import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import numpy.typing as npt

from coam.errors import ConfigError, DataError
from coam.images.limits import open_checked, opened_picture
from coam.store.documents import check_shape, parse_json
from coam.store.tensor_files import read_safetensors, write_safetensors

if TYPE_CHECKING:
    from typing import Self  # Python 3.11

Array = npt.NDArray[Any]
_TEXT_FIELDS = ("scenes", "names")


@dataclass(frozen=True)
class PairWeights:
    """How often pairs are drawn."""

    easy_weight: float = 0.35  # a pair at 0 degrees against one at 10 degrees of triangulation angle or more
    scene_power: float = 0.5  # scenes weigh as (number of pairs) ** scene_power: 0 all alike, 1 by pairs


@dataclass(frozen=True)
class PairChoice(PairWeights):
    """Which pairs are used and how often."""

    min_shared: float = 30  # points that both photos observe
    max_angle: float = 90.0  # degrees of triangulation angle above which a pair is left out


@dataclass(frozen=True, kw_only=True)
class PackedPairs:
    """N photos of S scenes, and P pairs of them; subclasses add what is known of their points."""

    FORMAT: ClassVar[str]

    jpeg: Array  # (bytes,) uint8, photo after photo; a photo that several models hold is there once
    jpeg_spans: Array  # (N, 2) int64 begin and end of each photo
    sizes: Array  # (N, 2) int32 width, height
    image_scene: Array  # (N,) int32
    intrinsics: Array  # (N, 4) float64 fx, fy, cx, cy, our pixels
    poses: Array  # (N, 3, 4) float64 camera-from-world
    pairs: Array  # (P, 2) int32 photo indices
    pair_shared: Array  # (P,) number of points that both photos observe, or a share: see the subclasses
    pair_angle: Array  # (P,) float32 degrees, median triangulation angle
    scenes: tuple[str, ...]  # S
    names: tuple[str, ...]  # N

    def save(self, path: str | Path) -> Path:
        """Write one .safetensors file, whole or not at all."""
        arrays = {name: getattr(self, name) for name in self._array_names()}
        metadata = {name: json.dumps(getattr(self, name)) for name in _TEXT_FIELDS} | {"format": self.FORMAT}
        return write_safetensors(path, arrays, metadata)

    @classmethod
    def load(cls, path: Self | str | Path) -> Self:
        """Read what `save` wrote; what is loaded already is given back."""
        if isinstance(path, cls):
            return path
        path = Path(str(path))
        if not path.is_file():
            raise DataError(
                f"{path} does not exist; make it with: coam data pack-tracks or coam data pack-rgbd"
            )
        arrays, metadata = read_safetensors(path, "pack it again", DataError, "numpy")
        if metadata.get("format") != cls.FORMAT:
            found = metadata.get("format", "another kind of file")
            raise DataError(f"{path} is {found}, not {cls.FORMAT}; pack it again")
        values: dict[str, Any] = {name: tuple(_names(path, metadata, name)) for name in _TEXT_FIELDS}
        for name in cls._array_names():
            if name not in arrays:
                raise DataError(f"{path} is damaged (it lacks {name!r}); pack it again")
            values[name] = arrays[name]
        return cls(**values)

    def photo(self, index: int) -> Array:
        """Photo (height, width, 3) uint8 RGB."""
        return _decode_span(self.jpeg, self.jpeg_spans[index])

    def in_scenes(self, scenes: Sequence[str] | None) -> npt.NDArray[np.bool_]:
        """Which pairs (P,) belong to the named scenes (None: all)."""
        for name in scenes or ():
            if name not in self.scenes:
                raise ConfigError(f"no scene {name!r}; the file has: {', '.join(self.scenes)}")
        named = np.array([scenes is None or name in scenes for name in self.scenes])
        chosen: npt.NDArray[np.bool_] = named[self.image_scene[self.pairs[:, 0]]]
        return chosen

    def chosen(self, choice: PairChoice, scenes: Sequence[str] | None = None) -> Array:
        """Indices (n,) of the pairs of the named scenes (None: all) that are used."""
        good = (self.pair_shared >= choice.min_shared) & (self.pair_angle <= choice.max_angle)
        return np.flatnonzero(self.in_scenes(scenes) & good)

    def weights_of(self, index: Array, weights: PairWeights) -> npt.NDArray[np.float64]:
        """How often (n,) the pairs `index` (n,) are drawn: see `pair_weights`."""
        return pair_weights(self.pair_angle[index], self.image_scene[self.pairs[index, 0]], weights)

    @classmethod
    def _array_names(cls) -> list[str]:
        return [f.name for f in fields(cls) if f.name not in _TEXT_FIELDS]


def pair_weights(
    angle: npt.NDArray[np.floating], scene: npt.NDArray[np.integer], weights: PairWeights
) -> npt.NDArray[np.float64]:
    """How often pairs (P,) are drawn, by triangulation angle in degrees (P,) and scene (P,); sums to 1."""
    easy = weights.easy_weight
    weight = easy + (1 - easy) * np.clip(angle.astype(np.float64) / 10.0, 0, 1)
    total = np.bincount(scene, weights=weight)
    count = np.bincount(scene).astype(np.float64)
    balanced = weight * count[scene] ** weights.scene_power / total[scene]
    return np.asarray(balanced / balanced.sum())


def _decode_span(data: Array, span: Array) -> Array:
    with open_checked(io.BytesIO(data[span[0] : span[1]].tobytes()), "a packed photo") as image:
        return np.asarray(image)


def _names(path: Path, metadata: Mapping[str, str], key: str) -> list[str]:
    try:
        names: list[str] = parse_json(metadata[key])
        check_shape(names, [str], key)
    except (KeyError, ValueError) as error:
        raise DataError(f"{path} is damaged ({error}); pack it again") from error
    return names


@dataclass(frozen=True, kw_only=True)
class PackedTracks(PackedPairs):
    """Photos with their M observations of 3D points; `pair_shared` (int32) counts common ones."""

    FORMAT: ClassVar[str] = "coam-tracks-1"

    observation_offsets: Array  # (N + 1,) int64: observations of photo i are [offsets[i], offsets[i + 1])
    observation_point: Array  # (M,) int32 id of the 3D point over all scenes, ascending within a photo
    observation_xy: Array  # (M, 2) float32
    observation_depth: Array  # (M,) float32 depth of the point in the photo's camera

    def observations(self, index: int) -> tuple[Array, Array, Array]:
        """Point ids (m,), positions (m, 2) and depths (m,) that photo `index` observes."""
        part = slice(self.observation_offsets[index], self.observation_offsets[index + 1])
        return self.observation_point[part], self.observation_xy[part], self.observation_depth[part]

    def shared_points(self, pair: int) -> tuple[Array, Array]:
        """Positions (k, 2) and (k, 2) of the points that both photos of the pair observe."""
        (ids0, xy0, _), (ids1, xy1, _) = (self.observations(int(i)) for i in self.pairs[pair])
        _, index0, index1 = np.intersect1d(ids0, ids1, assume_unique=True, return_indices=True)
        return xy0[index0], xy1[index1]


@dataclass(frozen=True, kw_only=True)
class PackedRgbd(PackedPairs):
    """Registered colour and depth frames.

    `pair_shared` (float32) is the share of the first photo's pixels with depth that the second one sees.
    """

    FORMAT: ClassVar[str] = "coam-rgbd-1"

    depth_png: Array  # (bytes,) uint8, 16-bit PNG
    depth_spans: Array  # (N, 2) int64
    depth_unit: Array  # (1,) float64 metres per step of the depth PNG

    def depth(self, index: int) -> npt.NDArray[np.float32]:
        """Depth (height, width) float32 in metres, 0 where there is none."""
        raw = _decode_span(self.depth_png, self.depth_spans[index]).astype(np.uint16)
        metres: npt.NDArray[np.float32] = (raw * float(self.depth_unit[0])).astype(np.float32)
        metres[raw == 65535] = 0
        return metres


def read_stored_rgb(path: Path) -> npt.NDArray[np.uint8]:
    """A photo (H, W, 3) as it is stored: no EXIF turn, because cameras belong to the stored pixels."""
    with opened_picture(path) as image:
        return np.asarray(image.convert("RGB"))


def read_photo_as_jpeg(path: Path, max_side: int | None, quality: int = 92) -> tuple[bytes, tuple[int, int]]:
    """JPEG bytes and size of a photo; the file's own bytes where neither size nor kind has to change."""
    from PIL import Image

    with opened_picture(path) as image:
        shrink = max_side is not None and max(image.size) > max_side
        if image.format == "JPEG" and image.mode == "RGB" and not shrink:
            return path.read_bytes(), image.size
        scale = max_side / max(image.size) if shrink and max_side is not None else 1.0
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        small = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
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

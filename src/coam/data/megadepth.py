"""MegaDepth in its published layout (D2-Net): scene_info/NNNN.K.npz, photos, and depth maps as .h5 files.

Photos are too many to stay on the device: a sample reads its two photos and depth maps in a thread of its
own, with a generator of its own, so the result depends on the seed only and not on the number of workers.
Most of its time goes into decoding; `cache` names a folder in which decoded photos are kept (`view_cache`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Generic

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.data.depth import DEFAULT_DEPTH, DepthOptions, DepthViews, common_probes, dense_correspondences
from coam.data.host_photos import HostPhotos
from coam.data.packed import read_stored_rgb
from coam.data.photo_pairs import PairTable, cut_pairs
from coam.data.sample import AnyBatch, Draw, PairBatch, concatenate
from coam.data.view_cache import DecodedView, ViewCache
from coam.data.windows import DEFAULT_CROP, CropOptions
from coam.errors import ConfigError, DataError
from coam.geometry.coordinates import from_colmap
from coam.store.archives import read_npz

SPLITS = ("train", "valid", "test", "imc")
_MIN_COMMON = 10  # probes that both photos must see; otherwise another pair is drawn
_MOST_ATTEMPTS = 50
_PROBES = 40  # probes along the longer side


def read_split(name: str) -> tuple[str, ...]:
    """The scene ids of a split: train, valid (MegaDepth-1500), test (CoAM's pairs) or imc."""
    if name not in SPLITS:
        raise ConfigError(f"no MegaDepth split {name!r}; use one of: {', '.join(SPLITS)}")
    text = (resources.files("coam.data") / "splits" / f"megadepth_{name}.txt").read_text()
    return tuple(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))


@dataclass(frozen=True)
class MegaDepthChoice:
    """Which pairs are used and how often."""

    min_overlap: float = 0.2  # shared 3D points over those of the photo that has fewer
    max_overlap: float = 1.0
    max_angle: float = 80.0  # degrees between the principal axes
    scene_power: float = 0.0  # scenes weigh as (number of pairs) ** scene_power: 0 all alike


DEFAULT_CHOICE = MegaDepthChoice()


@dataclass(frozen=True)
class Scene:
    """The usable photos and pairs of one scene_info file."""

    name: str
    photos: npt.NDArray[Any]  # (n,) path or None
    depths: npt.NDArray[Any]  # (n,) path or None
    intrinsics: npt.NDArray[Any]  # (n,) of (3, 3) in COLMAP's pixels of the depth map
    poses: npt.NDArray[Any]  # (n,) of (4, 4) camera-from-world
    pairs: npt.NDArray[np.int64]  # (P, 2)

    def camera(self, index: int, scale: tuple[float, float] = (1.0, 1.0)) -> Tensor:
        """Camera matrix (1, 3, 3) of a photo, in our pixels; scale: of what it was resized by in x and y."""
        matrix = np.diag([*scale, 1.0]) @ np.array(self.intrinsics[index], dtype=np.float64)
        matrix[:2, 2] = from_colmap(matrix[:2, 2])
        return torch.from_numpy(matrix).float()[None]


class MegaDepthSource(Generic[AnyBatch], ABC):
    """Batches of single pairs that are read from MegaDepth on disk; they arrive on `device`."""

    recordable = False

    def __init__(
        self,
        root: str | Path,
        device: torch.device | str,
        scenes: str | Sequence[str],
        scene_info: str | Path,
        choice: MegaDepthChoice,
        workers: int,
    ) -> None:
        """`root`: the folder that the paths in scene_info start from; `scenes`: a split or scene ids."""
        self.root, self.device = Path(root), torch.device(device)
        self.scenes = read_scenes(self.root / scene_info, scenes, choice)
        counts = torch.tensor([len(scene.pairs) for scene in self.scenes], dtype=torch.float64)
        self._cumulative = (counts**choice.scene_power).cumsum(0)
        self._pool = ThreadPoolExecutor(max(1, workers))

    def __len__(self) -> int:
        return sum(len(scene.pairs) for scene in self.scenes)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> AnyBatch:
        """`batch_size` pairs of `size` x `size` crops with `points` points each."""
        seeds = torch.randint(2**62, (batch_size,), generator=generator, device=generator.device).tolist()
        draws = [Draw(torch.Generator().manual_seed(seed), 1) for seed in seeds]
        singles = list(self._pool.map(lambda draw: self.sample_one(draw, size, points), draws))
        return concatenate(singles).to(self.device)

    def draw_pair(self, draw: Draw) -> tuple[Scene, tuple[int, int]]:
        """A scene, and two of its photos in random order."""
        scene = self.scenes[int(draw.weighted(self._cumulative))]
        first, second = scene.pairs[int(draw.unit() * len(scene.pairs))].tolist()
        return scene, (first, second) if float(draw.unit()) < 0.5 else (second, first)

    @abstractmethod
    def sample_one(self, draw: Draw, size: int, points: int) -> AnyBatch:
        """A batch of one pair, on the host."""


class MegaDepthPairs(MegaDepthSource[PairBatch]):
    """`PairSource` from MegaDepth's photos and depth maps."""

    def __init__(
        self,
        root: str | Path,
        scenes: str | Sequence[str] = "train",
        device: torch.device | str = "cpu",
        scene_info: str | Path = "scene_info",
        crop: CropOptions = DEFAULT_CROP,
        choice: MegaDepthChoice = DEFAULT_CHOICE,
        depth: DepthOptions = DEFAULT_DEPTH,
        tolerance: float = 1.0,
        workers: int = 4,
        cache: str | Path | None = None,
        cache_side: int = 640,
    ) -> None:
        """`tolerance`: pixels of the photo, as it is read, by which depth and poses may be off.

        cache: folder (below `root`, or a whole path) in which decoded photos are kept, with a longer side of
        at most `cache_side` pixels; None: every photo is decoded each time.
        """
        super().__init__(root, device, scenes, scene_info, choice, workers)
        self.crop, self.depth, self.tolerance = crop, depth, tolerance
        self.cache = None if cache is None else ViewCache(self.root / cache, cache_side)

    def sample_one(self, draw: Draw, size: int, points: int) -> PairBatch:
        """A batch of one pair, on the host."""
        for _ in range(_MOST_ATTEMPTS):
            scene, order = self.draw_pair(draw)
            (photo0, view0), (photo1, view1) = (read_view(self.root, scene, k, self.cache) for k in order)
            step = max(1, max(view0.depth.shape) // _PROBES)
            positions, valid = common_probes(view0, view1, step, self.depth)
            common = positions[valid]
            if len(common) >= _MIN_COMMON:
                pair = PairTable(torch.tensor([[0, 1]]), common[None], torch.tensor([len(common)]))
                found = partial(
                    dense_correspondences,
                    view0,
                    view1,
                    size=size,
                    points=points,
                    draw=draw,
                    options=self.depth,
                )
                photos = HostPhotos([photo0, photo1])
                return cut_pairs(photos, pair, self.crop, size, draw, found, self.tolerance)
        raise DataError(
            f"{_MOST_ATTEMPTS} pairs in a row had no common depth; check the depth maps in {self.root}"
        )


def read_scenes(folder: Path, scenes: str | Sequence[str], choice: MegaDepthChoice) -> list[Scene]:
    """The scenes of a split, or of these ids, that have a pair, from a folder of D2-Net's scene_info."""
    wanted = read_split(scenes) if isinstance(scenes, str) else tuple(scenes)
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder; put D2-Net's scene_info files there")
    files = [p for p in sorted(folder.glob("*.npz")) if p.name.split(".")[0] in wanted]
    read = (_read_scene(path, choice) for path in files)
    found = [scene for scene in read if len(scene.pairs) > 0]
    if not found:
        raise DataError(
            f"{folder} holds no pair of the wanted scenes with overlap {choice.min_overlap:g} or more"
        )
    return found


def read_view(
    root: Path, scene: Scene, index: int, cache: ViewCache | None = None
) -> tuple[npt.NDArray[np.uint8], DepthViews]:
    """A photo and, in its size, its depth map, camera and pose."""

    def decode() -> DecodedView:
        depth = _read_depth(root / str(scene.depths[index]))
        return DecodedView(
            _read_photo(root / str(scene.photos[index]), (depth.shape[1], depth.shape[0])), depth
        )

    view = decode() if cache is None else cache.get(str(scene.photos[index]), decode)
    pose = torch.from_numpy(np.array(scene.poses[index], dtype=np.float64).reshape(4, 4)[:3])
    depth = torch.from_numpy(np.ascontiguousarray(view.depth))[None]
    return view.photo, DepthViews(depth, scene.camera(index, view.scale), pose.float()[None])


def _read_scene(path: Path, choice: MegaDepthChoice) -> Scene:
    names = ("image_paths", "depth_paths", "intrinsics", "poses", "overlap_matrix", "angles")
    data = read_npz(path, names)
    usable = np.array(
        [
            p is not None and d is not None
            for p, d in zip(data["image_paths"], data["depth_paths"], strict=True)
        ]
    )
    overlap = data["overlap_matrix"]
    good = (overlap >= choice.min_overlap) & (overlap <= choice.max_overlap)
    good &= data["angles"] <= choice.max_angle
    good &= usable[:, None] & usable[None, :]
    return Scene(
        name=path.stem,
        photos=data["image_paths"],
        depths=data["depth_paths"],
        intrinsics=data["intrinsics"],
        poses=data["poses"],
        pairs=np.argwhere(np.triu(good, 1)),
    )


def _read_depth(path: Path) -> npt.NDArray[np.float32]:
    import h5py

    try:
        with h5py.File(path, "r") as file:
            depth = np.asarray(file["depth"], dtype=np.float32)
    except (OSError, KeyError) as error:
        raise DataError(f"cannot read the depth map {path}: {error}") from error
    if depth.ndim != 2:
        raise DataError(f"{path} does not hold a depth map (height x width)")
    return depth


def _read_photo(path: Path, size: tuple[int, int]) -> npt.NDArray[np.uint8]:
    """The photo in the size (width, height) of its depth map: scene_info's cameras belong to that size."""
    from PIL import Image

    rgb = Image.fromarray(read_stored_rgb(path))
    if abs(rgb.width * size[1] / (rgb.height * size[0]) - 1) > 0.03:
        raise DataError(f"{path} does not have the shape of its depth map; use the undistorted photos")
    return np.asarray(rgb if rgb.size == size else rgb.resize(size, Image.Resampling.LANCZOS))

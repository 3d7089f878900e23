"""MegaDepth in its published layout (D2-Net): scene_info/NNNN.K.npz, photos, and depth maps as .h5 files.

Photos are too many to stay on the device: a sample reads its two photos and depth maps in a thread of its
own, with a generator of its own, so the result depends on the seed only and not on the number of workers.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.data.depth import DepthOptions, DepthView, dense_correspondences
from coam.data.resident import ResidentPhotos
from coam.data.rgbd import probe_grid
from coam.data.sample import PairBatch
from coam.data.scene_info import read_npz
from coam.data.windows import CropOptions, Draw, enlargement, place_windows
from coam.errors import ConfigError, DataError
from coam.geometry.coordinates import from_colmap
from coam.geometry.depth import project_by_depth, relative_pose

SPLITS = ("train", "valid", "test", "imc")
DEFAULT_CROP = CropOptions()
DEFAULT_DEPTH = DepthOptions()
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
class _Scene:
    """The usable photos and pairs of one scene_info file."""

    name: str
    photos: npt.NDArray[Any]  # (n,) path or None
    depths: npt.NDArray[Any]  # (n,) path or None
    intrinsics: npt.NDArray[Any]  # (n,) of (3, 3) in COLMAP's pixels of the depth map
    poses: npt.NDArray[Any]  # (n,) of (4, 4) camera-from-world
    pairs: npt.NDArray[np.int64]  # (P, 2)


@dataclass(frozen=True)
class _View:
    photo: npt.NDArray[np.uint8]  # (H, W, 3)
    depth: Tensor  # (1, H, W)
    intrinsics: Tensor  # (1, 3, 3)
    pose: Tensor  # (1, 3, 4)

    @property
    def size(self) -> Tensor:
        return torch.tensor([[self.depth.shape[2], self.depth.shape[1]]], dtype=torch.float32)


class MegaDepthPairs:
    """`PairSource` from MegaDepth on disk; batches arrive on `device`."""

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
    ) -> None:
        """`root`: the folder that the paths in scene_info start from; `scenes`: a split or scene ids.

        `tolerance`: pixels of the photo by which depth and poses may be off.
        """
        self.root, self.device, self.crop, self.depth = Path(root), torch.device(device), crop, depth
        self.tolerance = tolerance
        wanted = read_split(scenes) if isinstance(scenes, str) else tuple(scenes)
        folder = self.root / scene_info
        if not folder.is_dir():
            raise DataError(f"{folder} is not a folder; put D2-Net's scene_info files there")
        files = [p for p in sorted(folder.glob("*.npz")) if p.name.split(".")[0] in wanted]
        read = (_read_scene(path, choice) for path in files)
        self.scenes = [scene for scene in read if len(scene.pairs) > 0]
        if not self.scenes:
            raise DataError(
                f"{folder} holds no pair of the wanted scenes with overlap {choice.min_overlap:g} or more"
            )
        counts = torch.tensor([len(scene.pairs) for scene in self.scenes], dtype=torch.float64)
        self._cumulative = (counts**choice.scene_power).cumsum(0)
        self._pool = ThreadPoolExecutor(max(1, workers))

    def __len__(self) -> int:
        return sum(len(scene.pairs) for scene in self.scenes)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        """`batch_size` pairs of `size` x `size` crops with `points` points each."""
        seeds = torch.randint(2**62, (batch_size,), generator=generator, device=generator.device).tolist()
        singles = list(self._pool.map(lambda seed: self._sample_one(seed, size, points), seeds))
        given = [f.name for f in fields(PairBatch) if getattr(singles[0], f.name) is not None]
        together = {name: torch.cat([getattr(one, name) for one in singles]) for name in given}
        return replace(singles[0], **{name: value.to(self.device) for name, value in together.items()})

    def _sample_one(self, seed: int, size: int, points: int) -> PairBatch:
        draw = Draw(torch.Generator().manual_seed(seed))
        for _ in range(_MOST_ATTEMPTS):
            scene = self.scenes[int(draw.weighted(self._cumulative, 1))]
            pair = scene.pairs[int(draw.uniform(1) * len(scene.pairs))]
            order = pair if float(draw.uniform(1)) < 0.5 else pair[::-1]
            views = [self._read_view(scene, int(k)) for k in order]
            common = _common_points(views[0], views[1], self.depth)
            if len(common) >= _MIN_COMMON:
                return self._cut(views, common, size, points, draw)
        raise DataError(
            f"{_MOST_ATTEMPTS} pairs in a row had no common depth; check the depth maps in {self.root}"
        )

    def _cut(self, views: list[_View], common: Tensor, size: int, points: int, draw: Draw) -> PairBatch:
        count = torch.tensor([len(common)])
        maps = place_windows((views[0].size, views[1].size), common[None], count, size, self.crop, draw)
        sides = [DepthView(v.depth, v.intrinsics, m) for v, m in zip(views, maps, strict=True)]
        motion = relative_pose(views[0].pose, views[1].pose)
        found = dense_correspondences(sides[0], sides[1], motion, size, points, draw, self.depth)
        first = torch.zeros(1, dtype=torch.int64)
        images = [ResidentPhotos([v.photo]).crop(first, m, size) for v, m in zip(views, maps, strict=True)]
        return PairBatch(
            image0=images[0],
            image1=images[1],
            **found._asdict(),
            tolerance=self.tolerance * torch.maximum(enlargement(maps[0]), enlargement(maps[1])),
        )

    def _read_view(self, scene: _Scene, index: int) -> _View:
        depth = _read_depth(self.root / str(scene.depths[index]))
        photo = _read_photo(self.root / str(scene.photos[index]), (depth.shape[1], depth.shape[0]))
        intrinsics = np.array(scene.intrinsics[index], dtype=np.float64)
        intrinsics[:2, 2] = from_colmap(intrinsics[:2, 2])
        pose = np.array(scene.poses[index], dtype=np.float64).reshape(4, 4)[:3]
        return _View(
            photo,
            torch.from_numpy(depth)[None],
            torch.from_numpy(intrinsics).float()[None],
            torch.from_numpy(pose).float()[None],
        )


def _read_scene(path: Path, choice: MegaDepthChoice) -> _Scene:
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
    return _Scene(
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

    try:
        with Image.open(path) as image:
            rgb = image.convert("RGB")
    except OSError as error:
        raise DataError(f"cannot read the photo {path}: {error}") from error
    if abs(rgb.width * size[1] / (rgb.height * size[0]) - 1) > 0.03:
        raise DataError(f"{path} does not have the shape of its depth map; use the undistorted photos")
    return np.asarray(rgb if rgb.size == size else rgb.resize(size, Image.Resampling.LANCZOS))


def _common_points(view0: _View, view1: _View, options: DepthOptions) -> Tensor:
    """Points (K, 4) of a coarse grid of photo 0 that photo 1 sees too."""
    height, width = view0.depth.shape[1:]
    start = probe_grid(width, height, max(1, max(width, height) // _PROBES))[None]
    found = project_by_depth(
        start,
        view0.depth,
        view0.intrinsics,
        view1.depth,
        view1.intrinsics,
        relative_pose(view0.pose, view1.pose),
        options.relative_tolerance,
        options.edge,
    )
    return torch.cat([start, found.points1], dim=-1)[0][found.valid[0]]

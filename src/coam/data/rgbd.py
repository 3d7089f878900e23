"""Training pairs from RGB-D frames: dense correspondences by depth, and points that have no partner."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.data.depth import DepthOptions, DepthView, dense_correspondences
from coam.data.packed import PackedRgbd
from coam.data.resident import ResidentPhotos
from coam.data.sample import PairBatch
from coam.data.windows import CropOptions, Draw, enlargement, pair_weights, place_windows
from coam.errors import DataError
from coam.geometry.depth import intrinsics_matrix, project_by_depth, relative_pose

DEFAULT_CROP = CropOptions()
DEFAULT_DEPTH = DepthOptions()


@dataclass(frozen=True)
class RgbdChoice:
    """Which pairs are used and how often."""

    min_shared: float = 0.2  # share of the first frame that the second one sees
    max_angle: float = 90.0  # degrees
    easy_weight: float = 0.35  # how often a pair at 0 degrees is drawn against one at 10 degrees or more
    scene_power: float = 0.5  # scenes weigh as (number of pairs) ** scene_power


DEFAULT_CHOICE = RgbdChoice()


class RgbdPairs:
    """`PairSource` from packed RGB-D frames (all of one size); photos and depth stay on `device`."""

    recordable = True

    def __init__(
        self,
        packed: PackedRgbd | str | Path,
        device: torch.device | str = "cpu",
        crop: CropOptions = DEFAULT_CROP,
        choice: RgbdChoice = DEFAULT_CHOICE,
        depth: DepthOptions = DEFAULT_DEPTH,
        tolerance: float = 2.0,
    ) -> None:
        """`tolerance`: pixels of the photo by which depth and poses may be off."""
        packed = packed if isinstance(packed, PackedRgbd) else PackedRgbd.load(packed)
        if len(np.unique(packed.sizes, axis=0)) > 1:
            raise DataError("the packed frames differ in size; pack frames of one size per file")
        self.device, self.crop, self.depth, self.tolerance = torch.device(device), crop, depth, tolerance
        kept = np.flatnonzero(
            (packed.pair_shared >= choice.min_shared) & (packed.pair_angle <= choice.max_angle)
        )
        if len(kept) == 0:
            raise DataError(
                f"no two frames share {choice.min_shared:.0%} of their view; pack frames that overlap"
            )
        count = len(packed.names)
        self.photos = ResidentPhotos((packed.photo(k) for k in range(count)), self.device)
        self._depth = torch.from_numpy(np.stack([packed.depth(k) for k in range(count)])).to(self.device)
        self._intrinsics = intrinsics_matrix(torch.from_numpy(packed.intrinsics)).float().to(self.device)
        self._poses = torch.from_numpy(packed.poses).float().to(self.device)
        self._pairs = torch.from_numpy(packed.pairs[kept].astype(np.int64)).to(self.device)
        self._positions, self._count = self._common_points()
        scene = packed.image_scene[packed.pairs[kept, 0]]
        weights = pair_weights(packed.pair_angle[kept], scene, choice.easy_weight, choice.scene_power)
        # Frames whose common part is too thin for the grid of probes cannot place their windows.
        usable = torch.from_numpy(weights).to(self.device) * (self._count > 0)
        self._cumulative = usable.cumsum(0)

    def __len__(self) -> int:
        return len(self._pairs)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        """`batch_size` pairs of `size` x `size` crops with `points` points each."""
        draw = Draw(generator)
        pair = draw.weighted(self._cumulative, batch_size)
        swap = (draw.uniform(batch_size) < 0.5).view(-1, 1)
        frames = torch.where(swap, self._pairs[pair].flip(-1), self._pairs[pair])
        positions = self._positions[pair]
        positions = torch.where(swap.unsqueeze(-1), positions.roll(2, -1), positions)
        sizes = self.photos.sizes[frames].float()
        maps = place_windows((sizes[:, 0], sizes[:, 1]), positions, self._count[pair], size, self.crop, draw)
        views = [
            DepthView(self._depth[frames[:, k]], self._intrinsics[frames[:, k]], maps[k]) for k in range(2)
        ]
        motion = relative_pose(self._poses[frames[:, 0]], self._poses[frames[:, 1]])
        found = dense_correspondences(views[0], views[1], motion, size, points, draw, self.depth)
        seen = self.photos.original_or_copy(frames, draw.uniform(batch_size, 2))
        return PairBatch(
            image0=self.photos.crop(seen[:, 0], maps[0], size),
            image1=self.photos.crop(seen[:, 1], maps[1], size),
            **found._asdict(),
            tolerance=self.tolerance * torch.maximum(enlargement(maps[0]), enlargement(maps[1])),
        )

    def _common_points(self, step: int = 24, at_once: int = 64) -> tuple[Tensor, Tensor]:
        """A coarse grid of common points (P, K, 4) of every pair, found ones first, and their number (P,)."""
        height, width = self._depth.shape[-2:]
        probes = probe_grid(width, height, step).to(self.device)
        tables, counts = [], []
        for begin in range(0, len(self), at_once):
            part = self._pairs[begin : begin + at_once]
            first, second = part.unbind(1)
            start = probes.expand(len(part), -1, -1)
            found = project_by_depth(
                start,
                self._depth[first],
                self._intrinsics[first],
                self._depth[second],
                self._intrinsics[second],
                relative_pose(self._poses[first], self._poses[second]),
                self.depth.relative_tolerance,
                self.depth.edge,
            )
            order = found.valid.float().argsort(dim=1, descending=True, stable=True).unsqueeze(-1)
            table = torch.cat([start, found.points1], dim=-1).gather(1, order.expand(-1, -1, 4))
            tables.append(table)
            counts.append(found.valid.sum(1))
        count = torch.cat(counts)
        positions = torch.cat(tables)[:, : max(int(count.max()), 1)]
        known = torch.arange(positions.shape[1], device=self.device) < count.unsqueeze(1)
        return torch.where(known.unsqueeze(-1), positions, torch.zeros_like(positions)), count


def probe_grid(width: int, height: int, step: int) -> Tensor:
    """Pixel positions (n, 2) every `step` pixels, half a step from the border."""
    x = torch.arange(step // 2, width, step, dtype=torch.float32)
    y = torch.arange(step // 2, height, step, dtype=torch.float32)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)


def register_depth(
    depth: npt.NDArray[np.float32],
    depth_camera: npt.NDArray[np.float64],
    color_camera: npt.NDArray[np.float64],
    color_from_depth: npt.NDArray[np.float64],
    color_size: tuple[int, int],
) -> npt.NDArray[np.float32]:
    """A depth map (H, W) as the colour camera sees it, in `color_size` = (width, height).

    Cameras are (3, 3), `color_from_depth` (4, 4). Where two depths fall on one pixel the nearer one stays.
    """
    row, column = np.nonzero(depth > 0)
    z = depth[row, column].astype(np.float64)
    rays = np.linalg.inv(depth_camera) @ np.stack([column, row, np.ones(len(row))])
    points = color_from_depth[:3, :3] @ (rays * z) + color_from_depth[:3, 3:]
    ahead = points[2] > 1e-6
    pixels = color_camera @ points[:, ahead]
    x, y = (np.rint(pixels[k] / pixels[2]).astype(np.int64) for k in range(2))
    width, height = color_size
    inside = (x >= 0) & (y >= 0) & (x < width) & (y < height)
    registered = np.full(width * height, np.inf)
    np.minimum.at(registered, y[inside] * width + x[inside], points[2, ahead][inside])
    registered[~np.isfinite(registered)] = 0
    return registered.reshape(height, width).astype(np.float32)

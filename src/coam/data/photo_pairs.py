"""Pairs of photos in device memory: drawn by weight, and cut where the two photos overlap.

`TrackPairs` take the 3D points of a COLMAP model that two photos share. No depth is needed; what a sparse
model does not say is which points have NO partner, so `unmatched` is never set. `RgbdPairs` find dense
correspondences by depth, and points that have no partner. Everything that `sample` does happens on the
device, for the whole batch at once and without synchronisation.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from coam.data.depth import DEFAULT_DEPTH, DepthOptions, DepthViews, common_probes, dense_correspondences
from coam.data.device_photos import DevicePhotos
from coam.data.host_photos import HostPhotos
from coam.data.packed import PackedRgbd, PackedTracks, PairChoice
from coam.data.sample import Correspondences, Draw, PairBatch
from coam.data.windows import (
    DEFAULT_CROP,
    CropOptions,
    apply_affine,
    choose_true,
    enlargement,
    inside_crop,
    invert_affine,
    pick,
    place_windows,
)
from coam.errors import DataError
from coam.geometry.depth import intrinsics_matrix

Photos = DevicePhotos | HostPhotos
Maps = tuple[Tensor, Tensor]  # (B, 2, 3) each: crop to photo pixels, of the first and of the second photo


@dataclass(frozen=True)
class PairTable:
    """P pairs of photos, and places that both show."""

    images: Tensor  # (P, 2) int64: which photos
    common: Tensor  # (P, K, 4) x0, y0, x1, y1 in photo pixels, filled from the front
    count: Tensor  # (P,) int64: how many common places there are

    def rows(self, index: Tensor) -> PairTable:
        """The pairs `index` (B,)."""
        return PairTable(self.images[index], self.common[index], self.count[index])

    def swapped_where(self, swap: Tensor) -> PairTable:
        """The pairs, some of them (`swap` (P,)) the other way round."""
        images = torch.where(swap.view(-1, 1), self.images.flip(-1), self.images)
        common = torch.where(swap.view(-1, 1, 1), self.common.roll(2, -1), self.common)
        return PairTable(images, common, self.count)

    def known(self) -> Tensor:
        """Which common places (P, K) are real ones."""
        return torch.arange(self.common.shape[1], device=self.common.device) < self.count.unsqueeze(1)

    def place_windows(self, photos: Photos, size: int, crop: CropOptions, draw: Draw) -> Maps:
        """Crop-to-photo maps of both photos."""
        sizes = photos.sizes[self.images].float()  # (P, 2, 2)
        return place_windows((sizes[:, 0], sizes[:, 1]), self.common, self.count, size, crop, draw)

    def cut(self, photos: Photos, maps: Maps, size: int, draw: Draw) -> tuple[Tensor, Tensor]:
        """Crops (P, 3, size, size) of both photos, each of the photo itself or of its changed copy."""
        seen = photos.original_or_copy(self.images, draw.unit(2))
        return photos.crop(seen[:, 0], maps[0], size), photos.crop(seen[:, 1], maps[1], size)


def cut_pairs(
    photos: Photos,
    pairs: PairTable,
    crop: CropOptions,
    size: int,
    draw: Draw,
    correspondences: Callable[[Maps], Correspondences],
    tolerance: float,
) -> PairBatch:
    """Crops where the photos of each pair overlap; the truth may be off by `tolerance` photo pixels."""
    maps = pairs.place_windows(photos, size, crop, draw)
    found = correspondences(maps)._asdict()
    image0, image1 = pairs.cut(photos, maps, size, draw)
    off = tolerance * torch.maximum(enlargement(maps[0]), enlargement(maps[1]))
    return PairBatch(image0=image0, image1=image1, **found, tolerance=off)


class PhotoPairs(ABC):
    """`PairSource` of photos in device memory; a subclass fills the table and says what corresponds."""

    recordable = True
    photos: DevicePhotos
    pairs: PairTable
    cumulative: Tensor  # (P,) float64: running sum of how often each pair is drawn
    crop: CropOptions
    tolerance: float = 1.0  # pixels of the photo by which the truth may be off

    def __len__(self) -> int:
        return len(self.pairs.images)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        """`batch_size` pairs of `size` x `size` crops with `points` points each."""
        draw = Draw(generator, batch_size)
        pairs = self.pairs.rows(draw.weighted(self.cumulative)).swapped_where(draw.chance(0.5))
        found = partial(self.correspondences, pairs, size=size, points=points, draw=draw)
        return cut_pairs(self.photos, pairs, self.crop, size, draw, found, self.tolerance)

    @abstractmethod
    def correspondences(
        self, pairs: PairTable, maps: Maps, size: int, points: int, draw: Draw
    ) -> Correspondences:
        """`points` points of each pair of crops."""


def load_used_photos(
    photo: Callable[[int], npt.NDArray[np.uint8]], pairs: npt.NDArray[np.integer], device: torch.device
) -> tuple[DevicePhotos, Tensor]:
    """The photos that `pairs` (P, 2) use, in device memory, and the pairs as indices of them (P, 2)."""
    used, compact = np.unique(pairs, return_inverse=True)
    with ThreadPoolExecutor() as pool:  # decoding is most of the start-up time
        photos = DevicePhotos(pool.map(photo, used.tolist()), device)
    return photos, torch.from_numpy(compact.reshape(-1, 2).astype(np.int64)).to(device)


TRACK_CHOICE = PairChoice()


class TrackPairs(PhotoPairs):
    """`PairSource` from packed tracks; photos stay in the memory of `device` as bytes."""

    def __init__(
        self,
        packed: PackedTracks | str | Path,
        device: torch.device | str = "cpu",
        scenes: Sequence[str] | None = None,
        crop: CropOptions = DEFAULT_CROP,
        choice: PairChoice = TRACK_CHOICE,
        points_per_pair: int = 512,
        seed: int = 0,
    ) -> None:
        """`scenes`: only these (default all); `points_per_pair`: more common points are thinned at random."""
        packed = PackedTracks.load(packed)
        self.device, self.crop = torch.device(device), crop
        index = packed.chosen(choice, scenes)
        if len(index) == 0:
            raise DataError(
                f"no pair shares {choice.min_shared} points below {choice.max_angle:g} degrees; add photos"
            )
        self.photos, images = load_used_photos(packed.photo, packed.pairs[index], self.device)
        common, count = _shared_table(packed, index, points_per_pair, np.random.default_rng(seed))
        tables = (torch.from_numpy(table).to(self.device) for table in (common, count))
        self.pairs = PairTable(images, *tables)
        self.cumulative = torch.from_numpy(packed.weights_of(index, choice)).cumsum(0).to(self.device)

    def correspondences(
        self, pairs: PairTable, maps: Maps, size: int, points: int, draw: Draw
    ) -> Correspondences:
        """Up to `points` common points that both crops show (the rest is invalid)."""
        cropped = [
            apply_affine(invert_affine(m), pairs.common[..., 2 * k : 2 * k + 2]) for k, m in enumerate(maps)
        ]
        seen = pairs.known() & inside_crop(cropped[0], size) & inside_crop(cropped[1], size)
        chosen, valid = choose_true(seen, points, draw)
        nothing = torch.zeros_like(valid)
        return Correspondences(
            points0=pick(cropped[0], chosen).clamp(0, size - 1),
            points1=pick(cropped[1], chosen).clamp(0, size - 1),
            valid=valid,
            unmatched0=nothing,
            unmatched1=nothing.clone(),
        )


def _shared_table(
    packed: PackedTracks, index: npt.NDArray[np.int64], most: int, random: np.random.Generator
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Shared positions (P, most, 4), filled from the front, and how many there are (P,)."""
    table = np.zeros((len(index), most, 4), dtype=np.float32)
    count = np.zeros(len(index), dtype=np.int64)
    for row, pair in enumerate(index):
        xy = np.concatenate(packed.shared_points(int(pair)), axis=1)
        if len(xy) > most:
            xy = xy[random.choice(len(xy), most, replace=False)]
        table[row, : len(xy)] = xy
        count[row] = len(xy)
    return table, count


@dataclass(frozen=True)
class RgbdChoice(PairChoice):
    """Which pairs are used and how often."""

    min_shared: float = 0.2  # share of the first frame that the second one sees


RGBD_CHOICE = RgbdChoice()
PROBE_STEP = 24  # pixels between the places at which it is asked what two frames have in common
PAIRS_AT_ONCE = 64


class RgbdPairs(PhotoPairs):
    """`PairSource` from packed RGB-D frames (all of one size), which stay in the memory of `device`."""

    def __init__(
        self,
        packed: PackedRgbd | str | Path,
        device: torch.device | str = "cpu",
        crop: CropOptions = DEFAULT_CROP,
        choice: RgbdChoice = RGBD_CHOICE,
        depth: DepthOptions = DEFAULT_DEPTH,
        tolerance: float = 2.0,
    ) -> None:
        """`tolerance`: pixels of the photo by which depth and poses may be off."""
        packed = PackedRgbd.load(packed)
        if len(np.unique(packed.sizes, axis=0)) > 1:
            raise DataError("the packed frames differ in size; pack frames of one size per file")
        self.device, self.crop, self.depth, self.tolerance = torch.device(device), crop, depth, tolerance
        index = packed.chosen(choice)
        if len(index) == 0:
            raise DataError(
                f"no two frames share {choice.min_shared:.0%} of their view; pack frames that overlap"
            )
        count = len(packed.names)
        self.photos = DevicePhotos((packed.photo(k) for k in range(count)), self.device)
        self._frames = DepthViews(
            torch.from_numpy(np.stack([packed.depth(k) for k in range(count)])).to(self.device),
            intrinsics_matrix(torch.from_numpy(packed.intrinsics)).float().to(self.device),
            torch.from_numpy(packed.poses).float().to(self.device),
        )
        frames = torch.from_numpy(packed.pairs[index].astype(np.int64)).to(self.device)
        self.pairs = PairTable(frames, *self._common_points(frames))
        weights = torch.from_numpy(packed.weights_of(index, choice))
        # Frames whose common part is too thin for the grid of probes cannot place their windows.
        self.cumulative = (weights.to(self.device) * (self.pairs.count > 0)).cumsum(0)

    def correspondences(
        self, pairs: PairTable, maps: Maps, size: int, points: int, draw: Draw
    ) -> Correspondences:
        """Random points of the crops: partners by depth, and points that have none."""
        view0, view1 = (self._frames[index] for index in pairs.images.unbind(1))
        return dense_correspondences(view0, view1, maps, size, points, draw, self.depth)

    def _common_points(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Common points (P, K, 4) of pairs (P, 2) on a coarse grid, found ones first; their number (P,)."""
        tables, counts = [], []
        for part in torch.split(pairs, PAIRS_AT_ONCE):
            view0, view1 = (self._frames[index] for index in part.unbind(1))
            table, valid = common_probes(view0, view1, PROBE_STEP, self.depth)
            order = valid.float().argsort(dim=1, descending=True, stable=True).unsqueeze(-1)
            tables.append(table.gather(1, order.expand(-1, -1, 4)))
            counts.append(valid.sum(1))
        count = torch.cat(counts)
        positions = torch.cat(tables)[:, : max(int(count.max()), 1)]
        known = torch.arange(positions.shape[1], device=self.device) < count.unsqueeze(1)
        return torch.where(known.unsqueeze(-1), positions, torch.zeros_like(positions)), count

"""Training pairs from a COLMAP model: the 3D points that two photos share are the correspondences.

No depth is needed. What a sparse model does not say is which points have NO partner, so `unmatched` is never
set. Everything that `sample` does happens on the device, for the whole batch at once and without
synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from coam.data.packed import PackedTracks
from coam.data.resident import ResidentPhotos, apply_affine, invert_affine
from coam.data.sample import PairBatch
from coam.data.windows import (
    CropOptions,
    Draw,
    choose_true,
    enlargement,
    inside_crop,
    pair_weights,
    pick,
    place_windows,
)
from coam.errors import ConfigError, DataError

DEFAULT_CROP = CropOptions()


@dataclass(frozen=True)
class PairChoice:
    """Which pairs are used and how often."""

    min_shared: int = 30  # points that both photos observe
    max_angle: float = 90.0  # degrees of triangulation angle above which a pair is left out
    easy_weight: float = 0.35  # how often a pair at 0 degrees is drawn against one at 10 degrees or more
    scene_power: float = 0.5  # scenes weigh as (number of pairs) ** scene_power: 0 all alike, 1 by pairs


DEFAULT_CHOICE = PairChoice()


class TrackPairs:
    """`PairSource` from packed tracks; photos stay on `device` as uint8."""

    recordable = True

    def __init__(
        self,
        packed: PackedTracks | str | Path,
        device: torch.device | str = "cpu",
        scenes: Sequence[str] | None = None,
        crop: CropOptions = DEFAULT_CROP,
        choice: PairChoice = DEFAULT_CHOICE,
        points_per_pair: int = 512,
        seed: int = 0,
    ) -> None:
        """`scenes`: only these (default all); `points_per_pair`: more common points are thinned at random."""
        packed = packed if isinstance(packed, PackedTracks) else PackedTracks.load(packed)
        self.device, self.crop = torch.device(device), crop
        kept = _kept_pairs(packed, scenes, choice)
        used, compact = np.unique(packed.pairs[kept], return_inverse=True)
        with ThreadPoolExecutor() as pool:  # decoding is most of the start-up time
            self.photos = ResidentPhotos(pool.map(packed.photo, used.tolist()), self.device)
        self._images = torch.from_numpy(compact.reshape(-1, 2).astype(np.int64)).to(self.device)  # (P, 2)
        positions, count = _shared_table(packed, kept, points_per_pair, np.random.default_rng(seed))
        self._positions = torch.from_numpy(positions).to(self.device)  # (P, K, 4): x0, y0, x1, y1
        self._count = torch.from_numpy(count).to(self.device)  # (P,)
        scene = packed.image_scene[packed.pairs[kept, 0]]
        weights = pair_weights(packed.pair_angle[kept], scene, choice.easy_weight, choice.scene_power)
        self._cumulative = torch.from_numpy(weights).cumsum(0).to(self.device)

    def __len__(self) -> int:
        return len(self._images)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        """`batch_size` pairs of `size` x `size` crops, up to `points` common points each (rest invalid)."""
        draw = Draw(generator)
        pair = draw.weighted(self._cumulative, batch_size)
        swap = draw.uniform(batch_size) < 0.5
        images = torch.where(swap.view(-1, 1), self._images[pair].flip(-1), self._images[pair])
        positions = self._positions[pair]
        positions = torch.where(swap.view(-1, 1, 1), positions.roll(2, -1), positions)
        count = self._count[pair]
        sizes = self.photos.sizes[images].float()  # (B, 2, 2)
        maps = place_windows((sizes[:, 0], sizes[:, 1]), positions, count, size, self.crop, draw)
        cropped = [
            apply_affine(invert_affine(m), positions[..., 2 * k : 2 * k + 2]) for k, m in enumerate(maps)
        ]
        known = torch.arange(positions.shape[1], device=self.device) < count.unsqueeze(1)
        chosen, valid = choose_true(
            known & inside_crop(cropped[0], size) & inside_crop(cropped[1], size), points, draw
        )
        nothing = torch.zeros_like(valid)
        seen = self.photos.original_or_copy(images, draw.uniform(batch_size, 2))
        return PairBatch(
            image0=self.photos.crop(seen[:, 0], maps[0], size),
            image1=self.photos.crop(seen[:, 1], maps[1], size),
            points0=pick(cropped[0], chosen).clamp(0, size - 1),
            points1=pick(cropped[1], chosen).clamp(0, size - 1),
            valid=valid,
            unmatched0=nothing,
            unmatched1=nothing.clone(),
            tolerance=torch.maximum(enlargement(maps[0]), enlargement(maps[1])),  # one pixel of the photo
        )


def _kept_pairs(
    packed: PackedTracks, scenes: Sequence[str] | None, choice: PairChoice
) -> npt.NDArray[np.int64]:
    kept = (packed.pair_shared >= choice.min_shared) & (packed.pair_angle <= choice.max_angle)
    if scenes is not None:
        unknown = sorted(set(scenes) - set(packed.scenes))
        if unknown:
            raise ConfigError(f"no scene {unknown[0]!r}; the file has: {', '.join(packed.scenes)}")
        wanted = np.array([name in scenes for name in packed.scenes])
        kept &= wanted[packed.image_scene[packed.pairs[:, 0]]]
    index = np.flatnonzero(kept)
    if len(index) == 0:
        raise DataError(
            f"no pair shares {choice.min_shared} points below {choice.max_angle:g} degrees; add photos"
        )
    return index


def _shared_table(
    packed: PackedTracks, kept: npt.NDArray[np.int64], most: int, random: np.random.Generator
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Shared positions (P, most, 4), filled from the front, and how many there are (P,)."""
    table = np.zeros((len(kept), most, 4), dtype=np.float32)
    count = np.zeros(len(kept), dtype=np.int64)
    for row, pair in enumerate(kept):
        xy = np.concatenate(packed.shared_points(int(pair)), axis=1)
        if len(xy) > most:
            xy = xy[random.choice(len(xy), most, replace=False)]
        table[row, : len(xy)] = xy
        count[row] = len(xy)
    return table, count

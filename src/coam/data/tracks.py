"""Training pairs from a COLMAP model: the 3D points that two photos share are the correspondences.

No depth is needed. What a sparse model does not say is which points have NO partner, so `unmatched` is never set.
Everything that `sample` does happens on the device, for the whole batch at once and without synchronisation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from coam.data.packed import PackedTracks
from coam.data.resident import ResidentPhotos, apply_affine, invert_affine, square_window
from coam.data.sample import PairBatch
from coam.errors import ConfigError, DataError


@dataclass(frozen=True)
class CropOptions:
    """How windows are cut out of the two photos of a pair."""

    zoom: tuple[float, float] = (0.5, 1.25)  # side of the window over the shorter side of the photo, log-uniform
    max_rotation: float = 20.0  # degrees either way, each photo on its own
    shift: float = 0.2  # random shift of the window over its side
    candidates: int = 4  # placements tried per pair; the one with most common points is taken

    def __post_init__(self) -> None:
        if not 0 < self.zoom[0] <= self.zoom[1]:
            raise ConfigError(f"zoom is {self.zoom}; give two positive numbers, the smaller one first")


@dataclass(frozen=True)
class PairChoice:
    """Which pairs are used and how often."""

    min_shared: int = 30  # points that both photos observe
    max_angle: float = 90.0  # degrees of triangulation angle above which a pair is left out
    easy_weight: float = 0.35  # how often a pair at 0 degrees is drawn against one at 10 degrees or more
    scene_power: float = 0.5  # scenes weigh as (number of pairs) ** scene_power: 0 all alike, 1 by their pairs


class TrackPairs:
    """`PairSource` from packed tracks; photos stay on `device` as uint8."""

    def __init__(
        self,
        packed: PackedTracks | str | Path,
        device: torch.device | str = "cpu",
        scenes: Sequence[str] | None = None,
        crop: CropOptions = CropOptions(),
        choice: PairChoice = PairChoice(),
        points_per_pair: int = 512,
        seed: int = 0,
    ) -> None:
        """`scenes`: use these only (default all); `points_per_pair`: more shared points are thinned at random."""
        packed = packed if isinstance(packed, PackedTracks) else PackedTracks.load(packed)
        self.device, self.crop = torch.device(device), crop
        kept = _kept_pairs(packed, scenes, choice)
        used, compact = np.unique(packed.pairs[kept], return_inverse=True)
        self.photos = ResidentPhotos((packed.photo(int(i)) for i in used), self.device)
        self._images = torch.from_numpy(compact.reshape(-1, 2).astype(np.int64)).to(self.device)  # (P, 2)
        positions, count = _shared_table(packed, kept, points_per_pair, np.random.default_rng(seed))
        self._positions = torch.from_numpy(positions).to(self.device)  # (P, K, 4): x0, y0, x1, y1
        self._count = torch.from_numpy(count).to(self.device)  # (P,)
        weights = torch.from_numpy(pair_weights(packed, kept, choice))
        self._cumulative = weights.cumsum(0).to(self.device)

    def __len__(self) -> int:
        return len(self._images)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        """`batch_size` pairs of `size` x `size` crops with up to `points` common points each (the rest invalid)."""
        draw = _Draw(self.device, generator)
        pair = torch.searchsorted(self._cumulative, draw.uniform(batch_size, double=True) * self._cumulative[-1])
        pair = pair.clamp(max=len(self) - 1)
        images, positions = self._images[pair], self._positions[pair]
        swap = draw.uniform(batch_size) < 0.5
        images = torch.where(swap.view(-1, 1), images.flip(-1), images)
        positions = torch.where(swap.view(-1, 1, 1), positions.roll(2, -1), positions)
        known = torch.arange(positions.shape[1], device=self.device) < self._count[pair].unsqueeze(1)
        maps = self._place_windows(images, positions, self._count[pair], known, size, draw)
        cropped = [apply_affine(invert_affine(m), positions[..., 2 * k : 2 * k + 2]) for k, m in enumerate(maps)]
        visible = known & _inside(cropped[0], size) & _inside(cropped[1], size)
        chosen, valid = _choose(visible, points, draw)
        points0, points1 = (
            p.gather(1, chosen.unsqueeze(-1).expand(-1, -1, 2)).clamp(0, size - 1) for p in cropped
        )
        enlarged = torch.stack([1.0 / m[:, :, 0].norm(dim=-1) for m in maps]).amax(0)
        none = torch.zeros_like(valid)
        return PairBatch(
            image0=self.photos.crop(images[:, 0], maps[0], size),
            image1=self.photos.crop(images[:, 1], maps[1], size),
            points0=points0,
            points1=points1,
            valid=valid,
            unmatched0=none,
            unmatched1=none.clone(),
            tolerance=enlarged,  # tracks are good to about one pixel of the photo
        )

    def _place_windows(
        self, images: Tensor, positions: Tensor, count: Tensor, known: Tensor, size: int, draw: _Draw
    ) -> tuple[Tensor, Tensor]:
        """Crop-to-photo maps (B, 2, 3) of both photos: of several placements the one that shows most points."""
        batch, tries, crop = len(images), self.crop.candidates, self.crop
        # Both windows are placed around the same 3D point, drawn towards the middle of the common points.
        index = (draw.uniform(batch, tries) * count.unsqueeze(1)).long()
        anchor = positions.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))  # (B, T, 4)
        middle = (positions * known.unsqueeze(-1)).sum(1) / count.view(-1, 1)
        anchor = torch.lerp(middle.unsqueeze(1), anchor, draw.uniform(batch, tries, 1))
        maps, seen = [], known.unsqueeze(1)
        for k in range(2):
            photo = self.photos.sizes[images[:, k]].float()  # (B, 2)
            low, high = np.log(crop.zoom[0]), np.log(crop.zoom[1])
            side = torch.exp(low + (high - low) * draw.uniform(batch)) * photo.amin(-1)
            angle = (2 * draw.uniform(batch) - 1) * np.radians(crop.max_rotation)
            shift = (2 * draw.uniform(batch, tries, 2) - 1) * crop.shift * side.view(-1, 1, 1)
            centre = keep_in_photo(anchor[..., 2 * k : 2 * k + 2] + shift, side, photo)
            flat = square_window(
                centre.flatten(0, 1), side.repeat_interleave(tries), angle.repeat_interleave(tries), size
            )
            repeated = positions[..., 2 * k : 2 * k + 2].repeat_interleave(tries, dim=0)
            inside = _inside(apply_affine(invert_affine(flat), repeated), size)
            seen = seen & inside.view(batch, tries, -1)
            maps.append(flat.view(batch, tries, 2, 3))
        best = seen.sum(-1).argmax(-1).view(-1, 1, 1, 1).expand(-1, 1, 2, 3)
        return maps[0].gather(1, best).squeeze(1), maps[1].gather(1, best).squeeze(1)


class _Draw:
    """Uniform numbers from one generator."""

    def __init__(self, device: torch.device, generator: torch.Generator) -> None:
        self._device, self._generator = device, generator

    def uniform(self, *shape: int, double: bool = False) -> Tensor:
        kind = torch.float64 if double else torch.float32
        return torch.rand(*shape, generator=self._generator, device=self._device, dtype=kind)


def keep_in_photo(centre: Tensor, side: Tensor, photo: Tensor) -> Tensor:
    """Centres (B, T, 2) moved so that windows of `side` (B,) stay in photos of size (B, 2) (width, height).

    Along an axis where the window is larger than the photo, the photo is centred in it.
    """
    half = torch.minimum(side.view(-1, 1), photo) / 2
    lowest, highest = (half - 0.5).unsqueeze(1), (photo - half - 0.5).unsqueeze(1)
    return torch.maximum(torch.minimum(centre, highest), lowest)


def pair_weights(packed: PackedTracks, kept: np.ndarray, choice: PairChoice) -> np.ndarray:
    """How often (P,) each kept pair is drawn, relative: wide angles more, large scenes less than by their pairs."""
    angle = packed.pair_angle[kept].astype(np.float64)
    weight = choice.easy_weight + (1 - choice.easy_weight) * np.clip(angle / 10.0, 0, 1)
    scene = packed.image_scene[packed.pairs[kept, 0]]
    total = np.bincount(scene, weights=weight)
    count = np.bincount(scene).astype(np.float64)
    balanced: np.ndarray = weight * count[scene] ** choice.scene_power / total[scene]
    return balanced / balanced.sum()


def _kept_pairs(packed: PackedTracks, scenes: Sequence[str] | None, choice: PairChoice) -> np.ndarray:
    kept = (packed.pair_shared >= choice.min_shared) & (packed.pair_angle <= choice.max_angle)
    if scenes is not None:
        unknown = sorted(set(scenes) - set(packed.scenes))
        if unknown:
            raise ConfigError(f"no scene {unknown[0]!r}; the file has: {', '.join(packed.scenes)}")
        wanted = np.array([name in scenes for name in packed.scenes])
        kept &= wanted[packed.image_scene[packed.pairs[:, 0]]]
    index = np.flatnonzero(kept)
    if len(index) == 0:
        raise DataError(f"no pair shares {choice.min_shared} points below {choice.max_angle:g} degrees; add photos")
    return index


def _shared_table(
    packed: PackedTracks, kept: np.ndarray, most: int, random: np.random.Generator
) -> tuple[np.ndarray, np.ndarray]:
    """Shared positions (P, most, 4) float32, filled from the front, and how many there are (P,)."""
    table = np.zeros((len(kept), most, 4), dtype=np.float32)
    count = np.zeros(len(kept), dtype=np.int64)
    for row, pair in enumerate(kept):
        xy = np.concatenate(packed.shared_points(int(pair)), axis=1)
        if len(xy) > most:
            xy = xy[random.choice(len(xy), most, replace=False)]
        table[row, : len(xy)] = xy
        count[row] = len(xy)
    return table, count


def _inside(points: Tensor, size: int) -> Tensor:
    return ((points >= 0) & (points <= size - 1)).all(-1)


def _choose(visible: Tensor, points: int, draw: _Draw) -> tuple[Tensor, Tensor]:
    """Indices (B, points) of a random subset of the visible points, and which of them are visible."""
    rank = visible.float() + draw.uniform(*visible.shape) * 0.5  # visible ones come first, in random order
    order = rank.argsort(dim=1, descending=True)[:, :points]
    order = torch.nn.functional.pad(order, (0, points - order.shape[1]))
    valid = visible.gather(1, order)
    valid[:, visible.shape[1] :] = False  # the padding repeats index 0
    return order, valid

"""The photo bank: square photos in device memory as bytes, sampled like textures.

Training must never wait for photos: all of them lie on the device as one flat array of packed RGBX texels
with two smaller copies (mipmaps), and a warped view is one gather away.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image, ImageOps
from torch import Tensor

from coam.errors import DataError
from coam.images.folder import PHOTO_ENDINGS, list_photos
from coam.images.limits import opened_picture

LEVELS = 3
CHANGED_AT_ONCE = 16  # photos


@dataclass(frozen=True)
class BankPart:
    """Photos of one origin, and what is common to them."""

    photos: Tensor  # (N, 3, S, S) uint8, S divisible by four
    groups: list[list[int]]  # photos of one group show the same place pixel by pixel; one alone is a group
    tolerance: float = 0.0  # misalignment within a group, as a share of the side
    light: float = 1.0  # how strongly the light may be changed on top
    other_member: float = 1.0  # how often two views show different members of a group


@dataclass(frozen=True)
class PhotoBank:
    """N square photos of `side` pixels in G groups."""

    texels: Tensor  # (T,) int32: RGBX of all photos at full size, then at half, then at a quarter
    count: int  # N
    side: int
    offsets: Tensor  # (3,) int64: where each size begins in `texels`
    groups: Tensor  # (G, M) int64: members of each group, repeated to fill the row
    sizes: Tensor  # (G,) int64: how many different members each group has
    tolerance: Tensor  # (G,) as in BankPart, and so are the next two
    light: Tensor  # (G,)
    other_member: Tensor  # (G,)

    @property
    def device(self) -> torch.device:
        """Where the photos lie."""
        return self.texels.device

    def sample(self, index: Tensor, u: Tensor, v: Tensor, level: Tensor) -> Tensor:
        """Bilinear colours (..., 3) in [0, 1] of photos `index` at (u, v) in [0, 1], mirrored beyond.

        index, level (...) int64, u, v (...) float; level 0 is full size, each next one half of it.
        """
        side = torch.div(self.side, 2**level, rounding_mode="floor")
        offset = self.offsets[level]
        x, y = _mirror(u) * side - 0.5, _mirror(v) * side - 0.5
        x, y = x.clamp(min=0), y.clamp(min=0)
        last = side - 1
        left, top = x.floor(), y.floor()
        fx, fy = (x - left).unsqueeze(-1), (y - top).unsqueeze(-1)
        left, top = torch.minimum(left.long(), last), torch.minimum(top.long(), last)
        right, bottom = torch.minimum(left + 1, last), torch.minimum(top + 1, last)
        first = offset + index * side * side
        upper = torch.lerp(
            self._colour(first + top * side + left), self._colour(first + top * side + right), fx
        )
        lower = torch.lerp(
            self._colour(first + bottom * side + left), self._colour(first + bottom * side + right), fx
        )
        return torch.lerp(upper, lower, fy)

    def _colour(self, address: Tensor) -> Tensor:
        packed = self.texels[address].unsqueeze(-1).view(torch.uint8)
        return packed[..., :3].float() / 255.0


def _mirror(coordinate: Tensor) -> Tensor:
    """Fold any coordinate into [0, 1], reflecting at the borders."""
    return 1.0 - (torch.remainder(coordinate, 2.0) - 1.0).abs()


def pack_bank(parts: Sequence[BankPart]) -> PhotoBank:
    """One bank of several parts, whose groups follow each other in the order of the parts."""
    photos = [photo for part in parts for photo in part.photos]
    side, device, total = photos[0].shape[-1], photos[0].device, len(photos)
    if side % 4:
        raise DataError(f"photos in a bank have a side divisible by 4, not {side}")
    lengths = [total * (side >> level) ** 2 for level in range(LEVELS)]
    groups, first = [], 0
    for part in parts:
        groups += [[first + member for member in group] for group in part.groups]
        first += len(part.photos)
    width = max(len(group) for group in groups)

    def per_group(name: str) -> Tensor:
        return torch.tensor([getattr(part, name) for part in parts for _ in part.groups], device=device)

    return PhotoBank(
        texels=_texels(photos, sum(lengths)),
        count=total,
        side=side,
        offsets=torch.tensor([0, lengths[0], lengths[0] + lengths[1]], device=device),
        groups=torch.tensor([[g[k % len(g)] for k in range(width)] for g in groups], device=device),
        sizes=torch.tensor([len(group) for group in groups], device=device),
        tolerance=per_group("tolerance"),
        light=per_group("light"),
        other_member=per_group("other_member"),
    )


def _texels(photos: Sequence[Tensor], length: int) -> Tensor:
    """All photos as RGBX words (length,), level after level."""
    texels = torch.empty(length, dtype=torch.int32, device=photos[0].device)
    start = 0
    for level in range(LEVELS):
        for photo in photos:  # one by one: a float copy of all would not fit everywhere
            small = photo if level == 0 else F.avg_pool2d(photo.float(), 2**level).round().to(torch.uint8)
            rgbx = F.pad(small.permute(1, 2, 0), (0, 1)).contiguous().view(torch.int32).flatten()
            texels[start : start + len(rgbx)] = rgbx
            start += len(rgbx)
    return texels


def read_square(path: Path, side: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    """A photo, upright, squashed to (3, side, side); its proportions are given back by the warp."""
    with opened_picture(path) as opened:
        upright = ImageOps.exif_transpose(opened) or opened
        small = upright.convert("RGB").resize((side, side), Image.Resampling.BICUBIC, reducing_gap=3.0)
    return np.asarray(small).transpose(2, 0, 1)


def photos_below(folder: Path) -> list[Path]:
    """All photos below `folder`, sorted; at least one."""
    found = list_photos(folder)
    if not found:
        raise DataError(f"{folder}: no photos found (looked for {', '.join(sorted(PHOTO_ENDINGS))})")
    return found


def load_part(
    folder: Path,
    side: int,
    device: torch.device,
    *,
    aligned: bool = False,
    max_groups: int | None = None,
    tolerance: float = 0.0,
    light: float = 1.0,
) -> BankPart:
    """All photos below a folder as a part of a bank; see `aligned_groups` and `evenly_chosen`."""
    groups = aligned_groups(folder) if aligned else [[path] for path in photos_below(folder)]
    groups = evenly_chosen(groups, max_groups)
    paths = [path for group in groups for path in group]
    with ThreadPoolExecutor() as pool:
        photos = np.stack(list(pool.map(lambda path: read_square(path, side), paths)))
    numbers = count()
    table = [[next(numbers) for _ in group] for group in groups]
    return BankPart(torch.from_numpy(photos).to(device), table, tolerance, light)


def change_photos(photos: Tensor, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Photos (N, 3, S, S) uint8 after a change of pictures (B, 3, S, S) in [0, 1]."""
    changed = torch.empty_like(photos)
    for start in range(0, len(photos), CHANGED_AT_ONCE):
        some = slice(start, start + CHANGED_AT_ONCE)
        changed[some] = (change(photos[some].float() / 255) * 255).round().to(torch.uint8)
    return changed


def add_copies(part: BankPart, change: Callable[[Tensor], Tensor], share: float) -> BankPart:
    """Every photo gets a changed copy in its group; two views differ in `share` of the cases."""
    photos = torch.cat([part.photos, change_photos(part.photos, change)])
    groups = [[*group, *(len(part.photos) + member for member in group)] for group in part.groups]
    return replace(part, photos=photos, groups=groups, other_member=share)


def evenly_chosen(groups: list[list[Path]], most: int | None) -> list[list[Path]]:
    """At most `most` groups, spread over the whole list."""
    if most is None or len(groups) <= most:
        return groups
    return [groups[i * len(groups) // most] for i in range(most)]


def aligned_groups(folder: Path) -> list[list[Path]]:
    """Photos of one folder are one group: FOLDER/GROUP/*.jpg."""
    table: dict[Path, list[Path]] = {}
    for path in photos_below(folder):
        table.setdefault(path.parent, []).append(path)
    groups = [group for group in table.values() if len(group) > 1]
    if not groups:
        raise DataError(f"{folder}: no sub-folder holds two or more photos; expected {folder}/GROUP/*.jpg")
    return groups

"""Random crop windows of a pair: around the same place, each with its own zoom, rotation and shift."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from coam.data.sample import Draw
from coam.errors import ConfigError


@dataclass(frozen=True)
class CropOptions:
    """How windows are cut out of the two photos of a pair."""

    zoom: tuple[float, float] = (0.5, 1.25)  # window side over the photo's shorter side, log-uniform
    max_rotation: float = 20.0  # degrees either way, each photo on its own
    shift: float = 0.2  # random shift of the window over its side
    squash: bool = (
        False  # instead: the whole photo, squashed to a square (as the paper's published code does)
    )
    candidates: int = 4  # placements tried per pair; the one with most common points is taken

    def __post_init__(self) -> None:
        if not 0 < self.zoom[0] <= self.zoom[1]:
            raise ConfigError(f"zoom is {self.zoom}; give two positive numbers, the smaller one first")


DEFAULT_CROP = CropOptions()


def whole_photo(photo: Tensor, size: int) -> Tensor:
    """The map (B, 2, 3) from a `size` x `size` crop to the whole of photos of size (B, 2) (width, height)."""
    step = photo / size
    linear = torch.diag_embed(step)
    return torch.cat([linear, (linear.sum(-1) / 2 - 0.5).unsqueeze(-1)], dim=-1)


def apply_affine(matrix: Tensor, points: Tensor) -> Tensor:
    """Points (B, n, 2) through affine maps (B, 2, 3)."""
    return points @ matrix[:, :, :2].transpose(1, 2) + matrix[:, None, :, 2]


def invert_affine(matrix: Tensor) -> Tensor:
    """The inverse (B, 2, 3) of affine maps (B, 2, 3), written out: no solver, no synchronisation."""
    a, b, c, d = matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 0], matrix[:, 1, 1]
    determinant = a * d - b * c
    linear = torch.stack([d, -b, -c, a], dim=-1).reshape(-1, 2, 2) / determinant.view(-1, 1, 1)
    return torch.cat([linear, -linear @ matrix[:, :, 2:]], dim=-1)


def square_window(centre: Tensor, side: Tensor, angle: Tensor, size: int) -> Tensor:
    """The map (B, 2, 3) from a `size` x `size` crop to a turned square window of the photo.

    `centre` (B, 2) and `side` (B,) are in photo pixels, `angle` (B,) in radians (positive turns x towards y).
    """
    step = side / size
    cosine, sine = step * angle.cos(), step * angle.sin()
    linear = torch.stack([cosine, -sine, sine, cosine], dim=-1).reshape(-1, 2, 2)
    offset = centre - linear.sum(-1) * ((size - 1) / 2)
    return torch.cat([linear, offset.unsqueeze(-1)], dim=-1)


def place_windows(
    photo_sizes: tuple[Tensor, Tensor],
    positions: Tensor,
    count: Tensor,
    size: int,
    crop: CropOptions,
    draw: Draw,
) -> tuple[Tensor, Tensor]:
    """Crop-to-photo maps (B, 2, 3) of both photos; of several placements the one with most common points.

    `photo_sizes` are (B, 2) width, height; `positions` (B, K, 4) common points x0, y0, x1, y1, of which the
    first `count` (B,) are real; crops are `size` x `size`.
    """
    if crop.squash:
        return whole_photo(photo_sizes[0], size), whole_photo(photo_sizes[1], size)
    batch, tries = len(positions), crop.candidates
    known = torch.arange(positions.shape[1], device=positions.device) < count.unsqueeze(1)
    # Both windows are placed around the same 3D point, drawn towards the middle of the common points.
    index = (draw.unit(tries) * count.unsqueeze(1)).long()
    anchor = positions.gather(1, index.unsqueeze(-1).expand(-1, -1, 4))  # (B, T, 4)
    middle = (positions * known.unsqueeze(-1)).sum(1) / count.clamp(min=1).view(-1, 1)
    anchor = torch.lerp(middle.unsqueeze(1), anchor, draw.unit(tries, 1))
    low, high = math.log(crop.zoom[0]), math.log(crop.zoom[1])
    maps, seen = [], known.unsqueeze(1)
    for k, photo in enumerate(photo_sizes):
        part = slice(2 * k, 2 * k + 2)
        side = torch.exp(low + (high - low) * draw.unit()) * photo.amin(-1)
        angle = (2 * draw.unit() - 1) * math.radians(crop.max_rotation)
        shift = (2 * draw.unit(tries, 2) - 1) * crop.shift * side.view(-1, 1, 1)
        centre = keep_in_photo(anchor[..., part] + shift, side, photo)
        flat = square_window(
            centre.flatten(0, 1), side.repeat_interleave(tries), angle.repeat_interleave(tries), size
        )
        repeated = positions[..., part].repeat_interleave(tries, dim=0)
        inside = inside_crop(apply_affine(invert_affine(flat), repeated), size)
        seen = seen & inside.view(batch, tries, -1)
        maps.append(flat.view(batch, tries, 2, 3))
    best = seen.sum(-1).argmax(-1).view(-1, 1, 1, 1).expand(-1, 1, 2, 3)
    return maps[0].gather(1, best).squeeze(1), maps[1].gather(1, best).squeeze(1)


def keep_in_photo(centre: Tensor, side: Tensor, photo: Tensor) -> Tensor:
    """Centres (B, T, 2) moved so that windows of `side` (B,) stay in photos of size (B, 2) (width, height).

    Along an axis where the window is larger than the photo, the photo is centred in it.
    """
    half = torch.minimum(side.view(-1, 1), photo) / 2
    lowest, highest = (half - 0.5).unsqueeze(1), (photo - half - 0.5).unsqueeze(1)
    return torch.maximum(torch.minimum(centre, highest), lowest)


def inside_crop(points: Tensor, size: int, margin: float = 0.0) -> Tensor:
    """Which points (..., 2) lie between the outermost pixel centres of a crop grown by `margin` pixels."""
    inside: Tensor = ((points >= -margin) & (points <= size - 1 + margin)).all(-1)
    return inside


def enlargement(source_from_crop: Tensor) -> Tensor:
    """How many crop pixels a photo pixel is, (B,), for maps (B, 2, 3); along the axis where that is most."""
    photo_pixels_per_crop_pixel: Tensor = torch.linalg.vector_norm(source_from_crop[:, :, :2], dim=1)
    return 1.0 / photo_pixels_per_crop_pixel.amin(-1)


def choose_true(wanted: Tensor, count: int, draw: Draw) -> tuple[Tensor, Tensor]:
    """Indices (B, count) of random true entries of `wanted` (B, K), and which of them are true."""
    rank = wanted.float() + draw.unit(wanted.shape[1]) * 0.5  # true entries come first, in random order
    order = rank.argsort(dim=1, descending=True)[:, :count]
    order = torch.nn.functional.pad(order, (0, count - order.shape[1]))
    chosen: Tensor = wanted.gather(1, order)
    chosen[:, wanted.shape[1] :] = False  # the padding repeats index 0
    return order, chosen


def pick(points: Tensor, index: Tensor) -> Tensor:
    """Rows `index` (B, n) of points (B, K, 2)."""
    return points.gather(1, index.unsqueeze(-1).expand(-1, -1, points.shape[-1]))

"""Photos of any size in device memory with image pyramids, and crops taken from them on the device.

Photos of any size lie one after the other in one flat tensor, each with its half-size copies (a pyramid
against aliasing when a crop shrinks the photo) and perhaps a changed copy: the same view in another light. A
crop reads its four neighbours per pixel by index, so nothing is padded, no photo is converted as a whole, and
no value travels to the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from coam.data.windows import apply_affine
from coam.geometry.coordinates import cell_centres

_LEVELS = 4  # full size, and 1/2, 1/4, 1/8


class DevicePhotos:
    """N photos of any size as bytes in the memory of one device."""

    def __init__(self, photos: Iterable[npt.NDArray[np.uint8]], device: torch.device | str = "cpu") -> None:
        """`photos`: arrays (height, width, 3) RGB, taken one at a time."""
        pyramids = [_half_sizes(torch.from_numpy(np.array(photo))) for photo in photos]
        self.device = torch.device(device)
        self._pixels = _flat(pyramids).to(self.device)  # (all pixels of all levels, 3)
        sizes = [[(level.shape[1], level.shape[0]) for level in levels] for levels in pyramids]
        self._sizes = torch.tensor(sizes, device=self.device)  # (N, levels, 2) width, height
        areas = self._sizes.prod(-1).flatten()
        self._starts = (areas.cumsum(0) - areas).reshape(len(sizes), _LEVELS)
        self.sizes = self._sizes[:, 0]  # (N, 2) width, height
        self.copies_share = 0.0  # how often `original_or_copy` gives the changed copy

    def __len__(self) -> int:
        return len(self.sizes)

    def add_copies(self, change: Callable[[Tensor], Tensor], share: float) -> None:
        """Add a changed copy of every photo, for `original_or_copy`.

        `change` takes and gives a picture (1, 3, H, W) in [0, 1].
        """
        copies = []
        for index, (width, height) in enumerate(self.sizes.tolist()):
            start = int(self._starts[index, 0])
            photo = self._pixels[start : start + width * height].reshape(height, width, 3)
            changed = change(photo.permute(2, 0, 1).unsqueeze(0).float() / 255)[0].permute(1, 2, 0)
            copies.append(_half_sizes((changed.clamp(0, 1) * 255).round().to(torch.uint8)))
        self._starts = torch.cat([self._starts, self._starts + len(self._pixels)])
        self._sizes = torch.cat([self._sizes, self._sizes])
        self._pixels = torch.cat([self._pixels, _flat(copies)])
        self.copies_share = share

    def original_or_copy(self, index: Tensor, uniform: Tensor) -> Tensor:
        """Which pixels to crop for the photos `index`: where `uniform` falls below the share, the copy's."""
        return index + len(self) * (uniform < self.copies_share)

    def crop(self, index: Tensor, source_from_crop: Tensor, size: int) -> Tensor:
        """Crops (B, 3, size, size) in [0, 1] of the photos `index` (B,).

        `source_from_crop` (B, 2, 3) maps crop pixels to photo pixels. Pixels whose source is outside the
        photo are black.
        """
        a = source_from_crop  # its determinant by hand: a library solver would wait for the device
        shrink = (a[:, 0, 0] * a[:, 1, 1] - a[:, 0, 1] * a[:, 1, 0]).abs().sqrt()
        level = shrink.clamp(min=1e-6).log2().round().long().clamp(0, _LEVELS - 1)  # (B,)
        target = cell_centres(size, size, 1, self.device)  # (size * size, 2)
        source = apply_affine(source_from_crop, target.expand(len(index), -1, -1))
        width_height = self._sizes[index, 0].unsqueeze(1)
        inside = ((source > -0.5) & (source < width_height - 0.5)).all(-1)  # (B, size * size)
        source = (source + 0.5) * 0.5 ** level.view(-1, 1, 1) - 0.5  # `resize_points`, one scale per photo
        colour = self._bilinear(index, level, source) * inside.unsqueeze(-1)
        return colour.reshape(len(index), size, size, 3).permute(0, 3, 1, 2).contiguous()

    def _bilinear(self, index: Tensor, level: Tensor, source: Tensor) -> Tensor:
        """Colours (B, n, 3) in [0, 1] at positions (B, n, 2) of one pyramid level per photo; edges repeat."""
        size = self._sizes[index, level].unsqueeze(1)  # (B, 1, 2)
        start = self._starts[index, level].unsqueeze(1)  # (B, 1)
        source = torch.minimum(source.clamp(min=0), (size - 1).to(source.dtype))
        low = source.floor().long()
        high = torch.minimum(low + 1, size - 1)
        weight = (source - low).unsqueeze(-1)  # (B, n, 2, 1)
        row_low, row_high = start + low[..., 1] * size[..., 0], start + high[..., 1] * size[..., 0]

        def row(begin: Tensor) -> Tensor:
            left, right = (
                self._pixels[begin + low[..., 0]].float(),
                self._pixels[begin + high[..., 0]].float(),
            )
            return torch.lerp(left, right, weight[..., 0, :])

        return torch.lerp(row(row_low), row(row_high), weight[..., 1, :]) / 255.0


def _flat(pyramids: list[list[Tensor]]) -> Tensor:
    """All pixels (n, 3) of all levels of all photos, one after the other."""
    return torch.cat([level.reshape(-1, 3) for levels in pyramids for level in levels])


def _half_sizes(photo: Tensor) -> list[Tensor]:
    """The photo (H, W, 3) uint8 and its halves; an odd last row or column is dropped: steps are exactly 2."""
    levels = [photo]
    current = photo.permute(2, 0, 1).float().unsqueeze(0)
    for _ in range(_LEVELS - 1):
        height, width = current.shape[-2:]
        kernel = (min(2, height), min(2, width))
        current = functional.avg_pool2d(current, kernel, stride=kernel)
        levels.append(current[0].permute(1, 2, 0).round().to(torch.uint8))
    return levels

"""Propagation: each cell of a dense flow tries how its neighbours move, and keeps what looks most alike.

Descriptors see far: beside something near, the background is found to move with it. A few pixels of the
photos and the fine features see less far, so they tell apart two motions that neighbours propose, up to a few
pixels from the edge between them. (As in PatchMatch, Barnes et al. 2009, with a fixed set of proposals.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.geometry.coordinates import cell_centres

_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class PropagationOptions:
    """Which motions are tried and how they are judged.

    Compared on the bundled stereo pair, checked on ten pairs of the courtyard and of made worlds: the same
    pairs that docs/warp.md reports, so its figures are not held out. A debt.
    """

    steps: tuple[int, ...] = (
        8,
        4,
        2,
        1,
    )  # flow cells to the left, right, above and below that propose, in turn
    patch: int = 5  # pixels, squared, that are compared around a place
    # Of a patch, root mean square in [0, 1], that counts as much as noise: flat patches tell little
    least_contrast: float = 0.03
    patch_weight: float = 1.0  # of the patches' correlation against the fine features' difference
    around: int = 3  # flow cells, squared, over which the likeness of a motion is averaged


DEFAULT_PROPAGATION = PropagationOptions()


class Likeness:
    """How alike cells of photo 0 look to places in photo 1, by fine features and patches; one pair."""

    def __init__(
        self,
        fine0: Tensor,
        fine1: Tensor,
        stride: int,
        photo0: Tensor,
        photo1: Tensor,
        options: PropagationOptions = DEFAULT_PROPAGATION,
    ) -> None:
        """Fine maps (F, h, w) at an even stride of photos (3, H, W) in [0, 1]."""
        self.options, self.stride = options, stride
        self.shape, self._fine_shape1 = fine0.shape[-2:], fine1.shape[-2:]
        self.own = cell_centres(self.shape[1], self.shape[0], stride, fine0.device)
        self._fine0, self._fine1 = _rows(fine0), _rows(fine1)
        patches0, corners0 = patch_vectors(photo0, options.patch, options.least_contrast)
        self._patches0 = patches0[_nearest(self.own, 1, 0.5, corners0)]
        self._patches1, self._corners1 = patch_vectors(photo1, options.patch, options.least_contrast)

    def __call__(self, places: Tensor) -> Tensor:
        """How alike (N,) the cells of photo 0 look to places (N, 2) of photo 1; higher is better."""
        there = _nearest(places, self.stride, (self.stride - 1) / 2, self._fine_shape1)
        apart = (self._fine1.index_select(0, there) - self._fine0).square().mean(dim=1).sqrt()
        corner = _nearest(places, 1, 0.5, self._corners1)
        correlation = (self._patches1.index_select(0, corner) * self._patches0).sum(dim=1)
        alike = self.options.patch_weight * correlation - apart
        return mean_around(alike.view(1, 1, *self.shape), self.options.around).flatten()


@torch.no_grad()
def propagate(points: Tensor, likeness: Likeness) -> Tensor:
    """Places (h, w, 2) in photo 1 of the cells of `likeness`, after neighbours' shifts were tried."""
    rows, columns = likeness.shape
    own = likeness.own.view(rows, columns, 2)
    shift = points - own
    best = likeness(points.reshape(-1, 2)).view(rows, columns)
    row, column = (torch.arange(n, device=points.device) for n in (rows, columns))
    for step in likeness.options.steps:
        for down, right in ((0, step), (0, -step), (step, 0), (-step, 0)):
            proposed = shift[(row + down).clamp(0, rows - 1)][:, (column + right).clamp(0, columns - 1)]
            found = likeness((own + proposed).view(-1, 2)).view(rows, columns)
            better = found > best
            best = torch.where(better, found, best)
            shift = torch.where(better.unsqueeze(2), proposed, shift)
    return own + shift


def patch_vectors(photo: Tensor, side: int, least_contrast: float) -> tuple[Tensor, tuple[int, int]]:
    """Normalised grey patches (H' W', side * side) around the corners between pixels of a photo (3, H, W).

    Row r, column c of the H' x W' = H - 1 x W - 1 corners stands for (c + 0.5, r + 0.5): the centres of the
    cells of maps of stride 2. Products of two vectors are their correlation, less where both are flat.
    """
    weight = photo.new_tensor(_GREY).view(3, 1, 1)
    grey = F.avg_pool2d((photo.float() * weight).sum(dim=0)[None, None], 2, stride=1)
    shape = (grey.shape[-2], grey.shape[-1])
    padded = F.pad(grey, (side // 2,) * 4, mode="replicate")
    vectors = F.unfold(padded, side)[0].t().contiguous()
    vectors -= vectors.mean(dim=1, keepdim=True)
    floor = (least_contrast * side) ** 2
    return vectors.div_((vectors.square().sum(dim=1, keepdim=True) + floor).sqrt_()), shape


def mean_around(values: Tensor, side: int) -> Tensor:
    """Mean (B, C, h, w) over side x side cells, side odd; beyond the border there are none."""
    for window in ((side, 1), (1, side)):
        padding = (window[0] // 2, window[1] // 2)
        values = F.avg_pool2d(values, window, stride=1, padding=padding, count_include_pad=False)
    return values


def _rows(feature_map: Tensor) -> Tensor:
    """(H * W, C) of a map (C, H, W): a feature vector in one piece."""
    return feature_map.float().flatten(1).t().contiguous()


def _nearest(places: Tensor, stride: float, first: float, shape: torch.Size | tuple[int, int]) -> Tensor:
    """Row-major index (N,) of the cell nearest to places (N, 2); `first`: where the first cell is."""
    cell = ((places - first) / stride).round().long()
    return cell[:, 1].clamp(0, shape[0] - 1) * shape[1] + cell[:, 0].clamp(0, shape[1] - 1)

"""Dense correspondences between two crops whose photos have depth maps, cameras and poses."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from coam.data.resident import apply_affine, invert_affine
from coam.data.windows import Draw, choose_true, enlargement, inside_crop, pick
from coam.geometry.depth import DepthProjection, project_by_depth

_CANDIDATES_PER_POINT = 4  # positions drawn for each point that is wanted; many have no partner


@dataclass(frozen=True)
class DepthOptions:
    """How depth becomes correspondences."""

    relative_tolerance: float = 0.03  # two depths of one place may differ by this share
    edge: float = 0.05  # depth steps larger than this share are edges: nothing is claimed there
    unmatched_share: float = 0.25  # share of the points that are reserved for points without partner
    margin: float = 8.0  # crop pixels by which a point must miss the other crop to count as without partner


@dataclass(frozen=True)
class DepthView:
    """One side of B pairs."""

    depth: Tensor  # (B, H, W), 0 where unknown
    intrinsics: Tensor  # (B, 3, 3) of the photo
    source_from_crop: Tensor  # (B, 2, 3) crop pixels to photo pixels


class Correspondences(NamedTuple):
    """As in `PairBatch`: points (B, L, 2), masks (B, L)."""

    points0: Tensor
    points1: Tensor
    valid: Tensor
    unmatched0: Tensor
    unmatched1: Tensor


def dense_correspondences(
    view0: DepthView,
    view1: DepthView,
    transform_0to1: Tensor,
    size: int,
    points: int,
    draw: Draw,
    options: DepthOptions,
) -> Correspondences:
    """Random points of two `size` x `size` crops: partners by depth, and points that certainly have none.

    `transform_0to1` is (B, 4, 4). The first rows hold pairs of points, the last `unmatched_share` of them
    independent points of either crop without partner in the other one.
    """
    alone = int(points * options.unmatched_share)
    paired = points - alone
    start = _random_pixels(view0, paired * _CANDIDATES_PER_POINT, size, draw)
    forward, landed = _into_other_crop(start, view0, view1, transform_0to1, options)
    index, valid = choose_true(forward.valid & inside_crop(landed, size), paired, draw)
    points0, points1 = pick(start, index), pick(landed, index)
    absent0 = _certainly_absent(forward, landed, view1, size, options)
    alone0, unmatched0 = choose_true(absent0, alone, draw)
    back_start = _random_pixels(view1, max(alone, 1) * _CANDIDATES_PER_POINT, size, draw)
    backward, back_landed = _into_other_crop(back_start, view1, view0, _invert_rigid(transform_0to1), options)
    absent1 = _certainly_absent(backward, back_landed, view0, size, options)
    alone1, unmatched1 = choose_true(absent1, alone, draw)
    nothing_paired, nothing_alone = torch.zeros_like(valid), torch.zeros_like(unmatched0)
    return Correspondences(
        points0=torch.cat([points0, pick(start, alone0)], dim=1).clamp(0, size - 1),
        points1=torch.cat([points1, pick(back_start, alone1)], dim=1).nan_to_num().clamp(0, size - 1),
        valid=torch.cat([valid, nothing_alone], dim=1),
        unmatched0=torch.cat([nothing_paired, unmatched0], dim=1),
        unmatched1=torch.cat([nothing_paired, unmatched1], dim=1),
    )


def _random_pixels(view: DepthView, count: int, size: int, draw: Draw) -> Tensor:
    """Positions (B, count, 2) in the crop, not only at pixel centres."""
    return draw.uniform(len(view.depth), count, 2) * (size - 1)


def _into_other_crop(
    points: Tensor, view: DepthView, other: DepthView, transform: Tensor, options: DepthOptions
) -> tuple[DepthProjection, Tensor]:
    """Crop points (B, n, 2) of `view` in the photo of `other`, and in its crop."""
    projection = project_by_depth(
        apply_affine(view.source_from_crop, points),
        view.depth,
        view.intrinsics,
        other.depth,
        other.intrinsics,
        transform,
        options.relative_tolerance,
        options.edge,
    )
    return projection, apply_affine(invert_affine(other.source_from_crop), projection.points1)


def _certainly_absent(
    projection: DepthProjection, landed: Tensor, other: DepthView, size: int, options: DepthOptions
) -> Tensor:
    """Points (B, n) hidden, behind the other camera, or beyond the other crop or photo by the margin."""
    height, width = other.depth.shape[-2:]
    slack = (options.margin / enlargement(other.source_from_crop)).view(-1, 1)  # the margin in photo pixels
    x, y = projection.points1.unbind(-1)
    in_photo = (x > -slack) & (y > -slack) & (x < width - 1 + slack) & (y < height - 1 + slack)
    near = in_photo & inside_crop(landed, size, options.margin)
    behind = projection.outside & ~projection.known
    return projection.occluded | behind | (projection.known & ~near)


def _invert_rigid(transform: Tensor) -> Tensor:
    """The inverse (B, 4, 4) of rotations with translation (B, 4, 4)."""
    rotation = transform[:, :3, :3].transpose(1, 2)
    inverse: Tensor = transform.clone()
    inverse[:, :3, :3] = rotation
    inverse[:, :3, 3:] = -rotation @ transform[:, :3, 3:]
    return inverse

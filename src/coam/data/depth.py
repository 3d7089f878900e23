"""Dense correspondences between two crops whose photos have depth maps, cameras and poses."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from coam.data.sample import Correspondences, Draw
from coam.data.windows import apply_affine, choose_true, enlargement, inside_crop, invert_affine, pick
from coam.geometry.depth import DepthProjection, project_by_depth, relative_pose

_CANDIDATES_PER_POINT = 4  # positions drawn for each point that is wanted; many have no partner


@dataclass(frozen=True)
class DepthOptions:
    """How depth becomes correspondences."""

    relative_tolerance: float = 0.03  # two depths of one place may differ by this share
    edge: float = 0.05  # depth steps larger than this share are edges: nothing is claimed there
    unmatched_share: float = 0.25  # share of the points that are reserved for points without partner
    margin: float = 8.0  # crop pixels by which a point must miss the other crop to count as without partner


DEFAULT_DEPTH = DepthOptions()


@dataclass(frozen=True)
class DepthViews:
    """B photos with depth, camera and pose."""

    depth: Tensor  # (B, H, W), 0 where unknown
    intrinsics: Tensor  # (B, 3, 3)
    poses: Tensor  # (B, 3, 4) camera-from-world

    def __getitem__(self, index: Tensor) -> DepthViews:
        return DepthViews(self.depth[index], self.intrinsics[index], self.poses[index])

    def project(
        self, points: Tensor, other: DepthViews, motion: Tensor, options: DepthOptions
    ) -> DepthProjection:
        """Pixels (B, n, 2) of these photos in the `other` ones; `motion` (B, 4, 4) leads to their cameras."""
        return project_by_depth(
            points,
            self.depth,
            self.intrinsics,
            other.depth,
            other.intrinsics,
            motion,
            options.relative_tolerance,
            options.edge,
        )


def probe_grid(width: int, height: int, step: int) -> Tensor:
    """Pixel positions (n, 2) every `step` pixels, half a step from the border."""
    x = torch.arange(step // 2, width, step, dtype=torch.float32)
    y = torch.arange(step // 2, height, step, dtype=torch.float32)
    return torch.stack(torch.meshgrid(x, y, indexing="xy"), dim=-1).reshape(-1, 2)


def common_probes(
    view0: DepthViews, view1: DepthViews, step: int, options: DepthOptions
) -> tuple[Tensor, Tensor]:
    """Positions (B, n, 4) x0, y0, x1, y1 of a grid of photo 0 in photo 1, and which (B, n) both show."""
    height, width = view0.depth.shape[-2:]
    probes = probe_grid(width, height, step).to(view0.depth.device).expand(len(view0.depth), -1, -1)
    found = view0.project(probes, view1, relative_pose(view0.poses, view1.poses), options)
    return torch.cat([probes, found.points1], dim=-1), found.valid


def dense_correspondences(
    view0: DepthViews,
    view1: DepthViews,
    maps: tuple[Tensor, Tensor],
    size: int,
    points: int,
    draw: Draw,
    options: DepthOptions,
) -> Correspondences:
    """Random points of two `size` x `size` crops: partners by depth, and points that certainly have none.

    `maps` (B, 2, 3) lead from crop to photo pixels. The first rows hold pairs of points, the last
    `unmatched_share` of them independent points of either crop without partner in the other one.
    """
    alone = int(points * options.unmatched_share)
    paired = points - alone
    forth, back = zip((view0, view1), maps, strict=True)
    motion = relative_pose(view0.poses, view1.poses)
    # Positions anywhere in the crop, not only at pixel centres.
    start = draw.unit(paired * _CANDIDATES_PER_POINT, 2) * (size - 1)
    landed, visible, absent = _into_other_crop(start, forth, back, motion, size, options)
    index, valid = choose_true(visible & inside_crop(landed, size), paired, draw)
    points0, points1 = pick(start, index), pick(landed, index)
    alone0, unmatched0 = choose_true(absent, alone, draw)
    back_start = draw.unit(max(alone, 1) * _CANDIDATES_PER_POINT, 2) * (size - 1)
    _, _, absent = _into_other_crop(back_start, back, forth, _invert_rigid(motion), size, options)
    alone1, unmatched1 = choose_true(absent, alone, draw)
    nothing_paired, nothing_alone = torch.zeros_like(valid), torch.zeros_like(unmatched0)
    return Correspondences(
        points0=torch.cat([points0, pick(start, alone0)], dim=1).clamp(0, size - 1),
        points1=torch.cat([points1, pick(back_start, alone1)], dim=1).nan_to_num().clamp(0, size - 1),
        valid=torch.cat([valid, nothing_alone], dim=1),
        unmatched0=torch.cat([nothing_paired, unmatched0], dim=1),
        unmatched1=torch.cat([nothing_paired, unmatched1], dim=1),
    )


def _into_other_crop(
    points: Tensor,
    crop: tuple[DepthViews, Tensor],
    other: tuple[DepthViews, Tensor],
    motion: Tensor,
    size: int,
    options: DepthOptions,
) -> tuple[Tensor, Tensor, Tensor]:
    """Points (B, n, 2) of a crop (a photo, and the map that leads to it) in the other crop.

    Returns where they land there, which are visible in its photo, and which are certainly absent from the
    crop: hidden, behind its camera, or beyond crop or photo by the margin.
    """
    (view, to_photo), (other_view, to_other_photo) = crop, other
    found = view.project(apply_affine(to_photo, points), other_view, motion, options)
    landed = apply_affine(invert_affine(to_other_photo), found.points1)
    height, width = other_view.depth.shape[-2:]
    slack = (options.margin / enlargement(to_other_photo)).view(-1, 1)  # the margin in photo pixels
    x, y = found.points1.unbind(-1)
    in_photo = (x > -slack) & (y > -slack) & (x < width - 1 + slack) & (y < height - 1 + slack)
    near = in_photo & inside_crop(landed, size, options.margin)
    behind = found.outside & ~found.known
    return landed, found.valid, found.occluded | behind | (found.known & ~near)


def _invert_rigid(transform: Tensor) -> Tensor:
    """The inverse (B, 4, 4) of rotations with translation (B, 4, 4)."""
    rotation = transform[:, :3, :3].transpose(1, 2)
    inverse: Tensor = transform.clone()
    inverse[:, :3, :3] = rotation
    inverse[:, :3, 3:] = -rotation @ transform[:, :3, 3:]
    return inverse

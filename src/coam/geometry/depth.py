"""Correspondence by depth and pose, with an occlusion check.

Depth is the z coordinate in the camera, 0 (or less, or not finite) where it is unknown. Between the four
neighbours of a position the INVERSE depth is interpolated: that is exact on planes. Where the neighbours
differ too much the position sits on a depth edge and nothing is claimed about it.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from coam.tensors import constant


class DepthProjection(NamedTuple):
    """What is known about points of image 0 in image 1; all (B, N) bool but `points1`."""

    points1: Tensor  # (B, N, 2) pixels of image 1 where `known`
    valid: Tensor  # seen in image 1 at `points1`
    occluded: Tensor  # certainly hidden in image 1 by something nearer
    outside: Tensor  # certainly not in image 1: behind its camera or beyond its frame
    known: Tensor  # depth is known and the point is in front of camera 1, in its frame or not


class SampledDepth(NamedTuple):
    """Depth at positions that lie between pixels; all (B, N)."""

    depth: Tensor  # interpolated; 0 where `known` is false
    known: Tensor  # bool: all four neighbours have depth and no edge runs between them
    nearest: Tensor  # smallest of the neighbours' depths
    farthest: Tensor  # largest of the neighbours' depths
    complete: Tensor  # bool: all four neighbours have depth (an edge may run between them)


def sample_depth(depth: Tensor, points: Tensor, edge: float = 0.05) -> SampledDepth:
    """Depth maps (B, H, W) at pixel positions (B, N, 2).

    An edge is where the farthest of the four neighbours is more than `edge` (relative) behind the nearest
    one. Positions outside the map are unknown.
    """
    height, width = depth.shape[-2:]
    x, y = points.unbind(-1)
    inside = (x >= 0) & (y >= 0) & (x <= width - 1) & (y <= height - 1)
    left = x.floor().nan_to_num().clamp(0, max(width - 2, 0)).long()
    top = y.floor().nan_to_num().clamp(0, max(height - 2, 0)).long()
    right, bottom = (left + 1).clamp(max=width - 1), (top + 1).clamp(max=height - 1)
    flat = depth.flatten(1)
    corners = torch.stack(
        [flat.gather(1, row * width + column) for row in (top, bottom) for column in (left, right)], dim=-1
    )  # (B, N, 4)
    usable = corners.isfinite() & (corners > 0)
    complete = usable.all(-1) & inside
    safe = torch.where(usable, corners, torch.ones_like(corners))
    nearest, farthest = safe.amin(-1), safe.amax(-1)
    known = complete & (farthest <= nearest * (1 + edge))
    fx, fy = (x - left).clamp(0, 1), (y - top).clamp(0, 1)
    weight = torch.stack([(1 - fx) * (1 - fy), fx * (1 - fy), (1 - fx) * fy, fx * fy], dim=-1)
    value = 1.0 / (weight / safe).sum(-1)
    return SampledDepth(
        torch.where(known, value, torch.zeros_like(value)), known, nearest, farthest, complete
    )


def back_project(points: Tensor, depth: Tensor, intrinsics: Tensor) -> Tensor:
    """Camera coordinates (B, N, 3) of pixels (B, N, 2) at depth (B, N), with camera matrices (B, 3, 3)."""
    fx, fy, skew, cx, cy = _entries(intrinsics)
    y = (points[..., 1] - cy) / fy
    x = (points[..., 0] - cx - skew * y) / fx
    return torch.stack([x * depth, y * depth, depth], dim=-1)


def project(points: Tensor, intrinsics: Tensor) -> Tensor:
    """Pixels (B, N, 2) of camera coordinates (B, N, 3); without meaning behind the camera."""
    fx, fy, skew, cx, cy = _entries(intrinsics)
    z = torch.where(points[..., 2].abs() < 1e-9, torch.full_like(points[..., 2], 1e-9), points[..., 2])
    x, y = points[..., 0] / z, points[..., 1] / z
    return torch.stack([fx * x + skew * y + cx, fy * y + cy], dim=-1)


def project_by_depth(
    points0: Tensor,
    depth0: Tensor,
    intrinsics0: Tensor,
    depth1: Tensor,
    intrinsics1: Tensor,
    transform_0to1: Tensor,
    relative_tolerance: float = 0.03,
    edge: float = 0.05,
) -> DepthProjection:
    """Where points (B, N, 2) of image 0 are in image 1: depth (B, H, W), cameras (B, 3, 3), pose (B, 4, 4).

    A point is valid when its depth in camera 1 agrees with depth map 1 within `relative_tolerance`, occluded
    when all of the map's neighbours are nearer than it by more than that.
    """
    start = sample_depth(depth0, points0, edge)
    moved = back_project(points0, start.depth, intrinsics0) @ transform_0to1[:, :3, :3].transpose(1, 2)
    moved = moved + transform_0to1[:, None, :3, 3]
    points1, z = project(moved, intrinsics1), moved[..., 2]
    height, width = depth1.shape[-2:]
    in_front = z > 1e-6
    x, y = points1.unbind(-1)
    in_frame = in_front & (x >= -0.5) & (y >= -0.5) & (x <= width - 0.5) & (y <= height - 0.5)
    end = sample_depth(depth1, points1, edge)
    seen = start.known & in_frame
    agrees = (z - end.depth).abs() <= relative_tolerance * end.depth
    return DepthProjection(
        points1=points1,
        valid=seen & end.known & agrees,
        occluded=seen & end.complete & (z > end.farthest * (1 + relative_tolerance)),
        outside=start.known & ~in_frame,
        known=start.known & in_front,
    )


def intrinsics_matrix(fx_fy_cx_cy: Tensor) -> Tensor:
    """Camera matrices (B, 3, 3) from (B, 4)."""
    fx, fy, cx, cy = fx_fy_cx_cy.unbind(-1)
    zero, one = torch.zeros_like(fx), torch.ones_like(fx)
    return torch.stack([fx, zero, cx, zero, fy, cy, zero, zero, one], dim=-1).reshape(-1, 3, 3)


def relative_pose(pose0: Tensor, pose1: Tensor) -> Tensor:
    """The transform (B, 4, 4) from camera 0 to camera 1 of camera-from-world poses (B, 3, 4)."""
    rotation = pose1[:, :, :3] @ pose0[:, :, :3].transpose(1, 2)
    translation = pose1[:, :, 3:] - rotation @ pose0[:, :, 3:]
    last = constant((0.0, 0.0, 0.0, 1.0), pose0.device, pose0.dtype).expand(len(pose0), 1, 4)
    return torch.cat([torch.cat([rotation, translation], dim=-1), last], dim=1)


def _entries(intrinsics: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    matrix = intrinsics.unsqueeze(1)
    return matrix[..., 0, 0], matrix[..., 1, 1], matrix[..., 0, 1], matrix[..., 0, 2], matrix[..., 1, 2]

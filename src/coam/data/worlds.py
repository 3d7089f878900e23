"""Planar worlds: textured rectangles in 3D seen by two cameras, with exact correspondences.

A world of one plane is a homography of a photo. Worlds of several planes have parallax and occlusion. Each
plane carries one photo for the first camera and one for the second: the same one, or another of its aligned
group, so that real changes of light and season are seen under any change of viewpoint. Everything is batched
tensor work.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.data.photo_bank import LEVELS, PhotoBank
from coam.data.sample import Draw, PairBatch
from coam.data.windows import inside_crop
from coam.geometry.coordinates import cell_centres, to_unit
from coam.geometry.depth import intrinsics_matrix
from coam.tensors import constant

Scene = Literal["plane", "world"]
GRID_STRIDE = 4  # points are drawn at the grid positions of the default model


@dataclass(frozen=True)
class WorldConfig:
    """How far the two views may differ. Angles in degrees."""

    scene: Scene = "plane"  # one plane (a homography) or several (parallax, occlusion)
    tilt: float = 45.0  # "plane": largest angle between the plane's normal and each camera
    zoom: float = 2.3  # largest ratio of the two views' scales
    roll: float = 12.0  # usual in-plane rotation of each camera (standard deviation)
    strong_roll: float = 30.0  # largest in-plane rotation of each camera in the share below
    strong_roll_share: float = 0.25  # how many cameras are rolled strongly
    yaw: float = 28.0  # "world": how far each camera walks around the scene, to either side
    objects: int = 6  # "world": rectangles besides background and ground
    elastic: float = 0.02  # amplitude of a smooth bend of view 0, as a share of the image side
    elastic_share: float = 0.3  # how many pairs are bent


@dataclass(frozen=True)
class World:
    """B worlds of P planes and two cameras. A plane point is o + a u + b v with a, b in [-1, 1]."""

    image_from_plane: Tensor  # (2, B, P, 3, 3): (a, b, 1) -> depth * (x, y, 1) in pixels
    plane_from_image: Tensor  # (2, B, P, 3, 3): its inverse
    photo: Tensor  # (2, B, P) int64: what each camera sees on each plane
    reach: Tensor  # (B, P): the plane ends at |a|, |b| = reach; beyond 1 the photo is mirrored
    scale: Tensor  # (B, P): plane units per photo side
    bend: Tensor  # (B, 2, h, w): shift of view 0, in pixels
    cameras: tuple[Camera, Camera]


class WorldPairs:
    """A `PairSource` of rendered worlds; `weight` (G,) says how often each group of the bank is chosen."""

    recordable = True

    def __init__(
        self, bank: PhotoBank, config: WorldConfig | None = None, weight: Tensor | None = None
    ) -> None:
        self.bank, self.config = bank, config or WorldConfig()
        weight = (torch.ones(len(bank.groups)) if weight is None else weight).to(bank.device).double()
        self._cumulative = (weight.cumsum(0) / weight.sum()).float()

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PairBatch:
        """See `PairSource`."""
        world, group = self.build(batch_size, size, generator)
        points0 = random_cells(batch_size, size, points, generator)
        found, visible, gone = follow(world, points0, size, 0)
        back = random_cells(batch_size, size, points, generator)
        _, _, gone_back = follow(world, back, size, 1)
        return PairBatch(
            image0=render(world, self.bank, size, 0),
            image1=render(world, self.bank, size, 1),
            points0=points0,
            points1=torch.where(visible.unsqueeze(-1), found, back),
            valid=visible,
            unmatched0=gone,
            unmatched1=gone_back & ~visible,
            tolerance=self.bank.tolerance[group].amax(dim=1) * size,
            light=self.bank.light[group].mean(dim=1),
        )

    def build(self, batch: int, size: int, generator: torch.Generator) -> tuple[World, Tensor]:
        """A batch of worlds, and the group (B, P) on each of their planes."""
        draw = Draw(generator, batch)
        if self.config.scene == "plane":
            origin, u, v, reach = _one_plane(draw)
            cameras = [_camera_over_plane(draw, self.config, size) for _ in range(2)]
        else:
            origin, u, v, reach = _many_planes(draw, self.config.objects)
            cameras = [_camera_around(draw, self.config, size) for _ in range(2)]
        forward = torch.stack([_image_from_plane(camera, origin, u, v) for camera in cameras])
        group = torch.searchsorted(self._cumulative, draw.unit(origin.shape[1]))
        group = group.clamp(max=len(self.bank.groups) - 1)
        world = World(
            image_from_plane=forward,
            plane_from_image=inverse(forward),
            photo=self._choose_photos(draw, group),
            reach=reach,
            scale=2.0 * torch.minimum(u.norm(dim=-1), v.norm(dim=-1)),
            bend=_bend(draw, self.config, size),
            cameras=(cameras[0], cameras[1]),
        )
        return world, group

    def _choose_photos(self, draw: Draw, group: Tensor) -> Tensor:
        """What the cameras see on each plane, (2, B, P): two members of its group, or one of them twice."""
        planes = group.shape[1]
        size = self.bank.sizes[group]
        first = (draw.unit(planes) * size).long()
        step = 1 + (draw.unit(planes) * (size - 1)).long()
        changed = draw.unit(planes) < self.bank.other_member[group]
        second = (first + step * changed) % size
        return torch.stack([self.bank.groups[group, first], self.bank.groups[group, second]])


def random_cells(batch: int, size: int, points: int, generator: torch.Generator) -> Tensor:
    """`points` grid positions (B, L, 2) of a size x size image, all different as far as there are so many."""
    side = size // GRID_STRIDE
    cells = cell_centres(side, side, GRID_STRIDE, generator.device)
    order = torch.rand(batch, len(cells), generator=generator, device=generator.device)
    chosen = order.topk(min(points, len(cells)), dim=1).indices
    return cells[chosen.repeat(1, -(-points // chosen.shape[1]))[:, :points]]


# ---- scenes


Planes = tuple[Tensor, Tensor, Tensor, Tensor]  # origin, u, v (B, P, 3) and reach (B, P) of `World`
ENDLESS = 1e3  # reach of a plane whose photo is mirrored beyond its border


def _one_plane(draw: Draw) -> Planes:
    """One photo of random proportions that fills the view: what lies beyond its border is mirrored."""
    aspect = draw.uniform(-0.3, 0.3).exp()
    zero = torch.zeros_like(aspect)
    u = torch.stack([aspect.sqrt(), zero, zero], dim=-1).unsqueeze(1)
    v = torch.stack([zero, aspect.rsqrt(), zero], dim=-1).unsqueeze(1)
    return torch.zeros_like(u), u, v, torch.full_like(u[..., 0], ENDLESS)


def _many_planes(draw: Draw, objects: int) -> Planes:
    """Background, ground and `objects` rectangles, some of them joined to box corners."""
    batch, device = draw.batch, draw.device
    yaw, pitch = draw.uniform(-1.0, 1.0, objects), draw.uniform(-0.4, 0.4, objects)
    turn = rotation(yaw, pitch, draw.normal(objects) * 0.2)
    half = draw.uniform(0.35, 1.1, objects, 2)
    u, v = turn[..., 0] * half[..., :1], turn[..., 1] * half[..., 1:]
    centre = _in_box(draw, (-1.9, 1.9), (-1.1, 1.0), (1.8, 4.5), objects)
    # Every second rectangle may become the side face of the one before it, which makes a box corner.
    join = (draw.chance(0.5, objects) & (torch.arange(objects, device=device) % 2 == 1)).unsqueeze(-1)
    depth = turn[..., 2] * half[..., 1:]
    centre, u, v = (
        torch.where(join, torch.roll(side, 1, dims=1), own)
        for own, side in ((centre, centre + u + depth), (u, depth), (v, v))
    )
    back_turn = rotation(
        draw.uniform(-0.35, 0.35), draw.uniform(-0.1, 0.1), torch.zeros(batch, device=device)
    )
    back_centre = _in_box(draw, (-0.5, 0.5), (-0.8, 0.3), (4.5, 7.5))
    reach_back = draw.uniform(2.8, 4.5, 1)
    back_u, back_v = back_turn[..., 0] * reach_back, back_turn[..., 1] * reach_back * 0.75
    ground_centre = _in_box(draw, (-0.5, 0.5), (0.7, 1.6), (3.0, 4.0))
    ground_u = constant((2.5, 0.0, 0.0), device).expand(batch, 3)
    ground_v = constant((0.0, 0.0, 2.5), device).expand(batch, 3)
    origin, u, v = (
        torch.cat([torch.stack([back, ground], dim=1), others], dim=1)
        for back, ground, others in (
            (back_centre, ground_centre, centre),
            (back_u, ground_u, u),
            (back_v, ground_v, v),
        )
    )
    reach = torch.ones(batch, 2 + objects, device=device)
    reach[:, :2].fill_(ENDLESS)
    return origin, u, v, reach


def _in_box(
    draw: Draw, x: tuple[float, float], y: tuple[float, float], z: tuple[float, float], *shape: int
) -> Tensor:
    """Points (B, *shape, 3), each coordinate uniform in its range."""
    return torch.stack([draw.uniform(*bounds, *shape) for bounds in (x, y, z)], dim=-1)


@dataclass(frozen=True)
class Camera:
    """B pinhole cameras: world point X is seen at pixels ~ intrinsics @ (rotation @ (X - centre))."""

    intrinsics: Tensor  # (B, 3, 3)
    rotation: Tensor  # (B, 3, 3) camera-from-world
    centre: Tensor  # (B, 3)


def _camera_over_plane(draw: Draw, config: WorldConfig, size: int) -> Camera:
    azimuth, tilt = draw.uniform(0.0, 2 * math.pi), torch.deg2rad(draw.uniform(0.0, config.tilt))
    away = torch.stack([tilt.sin() * azimuth.cos(), tilt.sin() * azimuth.sin(), -tilt.cos()], dim=-1)
    focal = size * draw.uniform(0.8, 1.6)
    widest = 1.05
    seen = torch.exp(draw.uniform(math.log(widest / config.zoom), math.log(widest)))
    target = F.pad(draw.uniform(-1.0, 1.0, 2) * (1.1 - seen.unsqueeze(-1)).clamp(min=0.1), (0, 1))
    centre = target + away * (seen * 2 * focal / size).unsqueeze(-1)
    return _looking_at(centre, target, _roll(draw, config), focal, size)


def _camera_around(draw: Draw, config: WorldConfig, size: int) -> Camera:
    yaw = torch.deg2rad(draw.uniform(-config.yaw, config.yaw))
    pitch = torch.deg2rad(draw.uniform(-10.0, 6.0))
    spread = 0.5 * math.log(config.zoom)
    distance = 3.2 * torch.exp(draw.uniform(-spread, spread) * 0.8)
    pivot = constant((0.0, 0.0, 3.2), draw.device) + draw.normal(3) * 0.25
    away = torch.stack([yaw.sin() * pitch.cos(), pitch.sin(), -yaw.cos() * pitch.cos()], dim=-1)
    focal = size * torch.exp(draw.uniform(math.log(0.8), math.log(1.4)))
    return _looking_at(pivot + away * distance.unsqueeze(-1), pivot, _roll(draw, config), focal, size)


def _roll(draw: Draw, config: WorldConfig) -> Tensor:
    usual = draw.normal() * config.roll
    strong = draw.uniform(-config.strong_roll, config.strong_roll)
    return torch.deg2rad(torch.where(draw.chance(config.strong_roll_share), strong, usual))


def _looking_at(centre: Tensor, target: Tensor, roll: Tensor, focal: Tensor, size: int) -> Camera:
    forward = F.normalize(target - centre, dim=-1)
    # y runs down, so the world's "down" is +y; a camera that looks straight down takes another reference.
    down = constant((0.0, 1.0, 0.0), centre.device).expand_as(forward)
    right = F.normalize(torch.linalg.cross(down, forward), dim=-1)
    below = torch.linalg.cross(forward, right)
    upright = torch.stack([right, below, forward], dim=1)
    middle = torch.full_like(focal, (size - 1) / 2)
    intrinsics = intrinsics_matrix(torch.stack([focal, focal, middle, middle], dim=-1))
    return Camera(intrinsics, _about_z(roll) @ upright, centre)


def _matrices(*entries: Tensor | float) -> Tensor:
    """Matrices (..., 3, 3) from their nine entries row by row, some of them tensors (...)."""
    like = next(entry for entry in entries if isinstance(entry, Tensor))
    full = [e if isinstance(e, Tensor) else torch.full_like(like, e) for e in entries]
    return torch.stack(full, dim=-1).reshape(*like.shape, 3, 3)


def _about_z(roll: Tensor) -> Tensor:
    return _matrices(roll.cos(), -roll.sin(), 0.0, roll.sin(), roll.cos(), 0.0, 0.0, 0.0, 1.0)


def rotation(yaw: Tensor, pitch: Tensor, roll: Tensor) -> Tensor:
    """Rotation matrices (..., 3, 3): about y, then x, then z."""
    about_y = _matrices(yaw.cos(), 0.0, yaw.sin(), 0.0, 1.0, 0.0, -yaw.sin(), 0.0, yaw.cos())
    about_x = _matrices(1.0, 0.0, 0.0, 0.0, pitch.cos(), -pitch.sin(), 0.0, pitch.sin(), pitch.cos())
    return about_y @ about_x @ _about_z(roll)


def inverse(matrix: Tensor) -> Tensor:
    """Inverse of matrices (..., 3, 3) by cross products of columns; library solvers wait for the device."""
    a, b, c = matrix.unbind(dim=-1)
    rows = [torch.linalg.cross(b, c), torch.linalg.cross(c, a), torch.linalg.cross(a, b)]
    determinant = (a * rows[0]).sum(dim=-1)
    safe = torch.where(determinant.abs() < 1e-12, torch.full_like(determinant, 1e-12), determinant)
    return torch.stack(rows, dim=-2) / safe[..., None, None]


def _image_from_plane(camera: Camera, origin: Tensor, u: Tensor, v: Tensor) -> Tensor:
    axes = torch.stack([u, v, origin - camera.centre.unsqueeze(1)], dim=-1)
    return camera.intrinsics.unsqueeze(1) @ camera.rotation.unsqueeze(1) @ axes


def _bend(draw: Draw, config: WorldConfig, size: int) -> Tensor:
    """A smooth random shift of view 0, (B, 2, size / 4, size / 4), in pixels; zero for most pairs."""
    knots = draw.normal(2, 5, 5) * (config.elastic * size * 0.5)
    field = F.interpolate(knots, size=(size // 4, size // 4), mode="bicubic", align_corners=False)
    return field * draw.chance(config.elastic_share).view(-1, 1, 1, 1)


# ---- rays


def _bent(world: World, points: Tensor, size: int, view: int) -> Tensor:
    """Where pixel positions (B, N, 2) of a bent view lie in the straight one."""
    if view == 1:
        return points
    unit = to_unit(points, size, size).unsqueeze(1)
    shift = F.grid_sample(world.bend, unit, align_corners=False, padding_mode="border")
    return points + shift[:, :, 0].transpose(1, 2)


def first_plane(world: World, points: Tensor, view: int) -> tuple[Tensor, Tensor, Tensor]:
    """What rays through pixels (B, N, 2) of a straight view meet first.

    Returns the plane (B, N) int64, (a, b) on it (B, N, 2), and the depth (B, N), infinite where none is.
    """
    homogeneous = F.pad(points, (0, 1), value=1.0)
    q = torch.einsum("bpij,bnj->bpni", world.plane_from_image[view], homogeneous)
    inverse_depth = q[..., 2]
    coordinates = q[..., :2] / inverse_depth.unsqueeze(-1)
    inside = coordinates.abs().amax(dim=-1) <= world.reach.unsqueeze(-1)
    nearest = torch.where(inside & (inverse_depth > 1e-4), inverse_depth, torch.zeros_like(inverse_depth))
    best, plane = nearest.max(dim=1)
    chosen = coordinates.gather(1, plane[:, None, :, None].expand(-1, 1, -1, 2)).squeeze(1)
    return plane, chosen, torch.where(best > 0, 1.0 / best, torch.inf)


def follow(world: World, points: Tensor, size: int, view: int) -> tuple[Tensor, Tensor, Tensor]:
    """Follow pixels (B, N, 2) of one view into the other.

    Returns positions (B, N, 2), `visible` (B, N): the same surface point is seen there, and `gone` (B, N): it
    is certainly not seen (hidden, or outside the frame). Points on the mirrored part of a photo are neither.
    """
    plane, coordinates, depth = first_plane(world, _bent(world, points, size, view), view)
    other = 1 - view
    known = depth.isfinite() & (coordinates.abs().amax(dim=-1) <= 1.0)
    homography = world.image_from_plane[other].gather(1, plane[:, :, None, None].expand(-1, -1, 3, 3))
    projected = (homography @ F.pad(coordinates, (0, 1), value=1.0).unsqueeze(-1)).squeeze(-1)
    in_front = projected[..., 2] > 1e-4
    straight = projected[..., :2] / projected[..., 2:].clamp(min=1e-4)
    seen_plane, _, _ = first_plane(world, straight, other)
    position = straight
    if other == 0:  # undo the bend by a few fixed-point steps
        for _ in range(3):
            position = straight - (_bent(world, position, size, 0) - position)
    margin = 2.0
    in_frame = inside_crop(position, size, -margin) & in_front
    outside = ~inside_crop(position, size, margin) | ~in_front
    hidden = in_frame & (seen_plane != plane)
    return position, known & in_frame & ~hidden, known & (outside | hidden)


def render(world: World, bank: PhotoBank, size: int, view: int) -> Tensor:
    """The picture (B, 3, size, size) one camera takes; four samples per pixel against aliasing."""
    batch = len(world.reach)
    samples = cell_centres(2 * size, 2 * size, 0.5, bank.device).expand(batch, -1, -1)
    plane, coordinates, depth = first_plane(world, _bent(world, samples, size, view), view)
    photo = world.photo[view].gather(1, plane)
    # Texels per pixel grow with the distance; the mipmap level follows.
    side = world.scale.gather(1, plane)
    density = depth.clamp(max=100.0) * bank.side / (side * size * 1.2)
    level = (density / 1.5).clamp(min=1.0).log2().floor().clamp(0, LEVELS - 1).long()
    uv = coordinates.clamp(-1e3, 1e3) / 2 + 0.5
    colours = bank.sample(photo, uv[..., 0], uv[..., 1], level)
    return F.avg_pool2d(colours.transpose(1, 2).reshape(batch, 3, 2 * size, 2 * size), 2)

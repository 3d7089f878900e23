"""Training pairs of known relative pose: cameras and their epipolar geometry, no depth, no correspondences.

Every source gives one `PosedBatch`: two pictures, query points in each (keypoints and random ones), and the
fundamental matrix. Which queries can have a partner at all follows from the cameras: the epipolar segment of
a point, from a near depth to infinity, must cross the other picture. Nothing here waits for the device.
Products of 3x3 matrices are written out: the fast modes of GPUs round matrix products to ten bits.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.data.photo_bank import PhotoBank
from coam.data.photometric import GREY
from coam.data.sample import Batch, BatchSource
from coam.data.worlds import WorldConfig, WorldPairs, inverse, render
from coam.tensors import constant, times

if TYPE_CHECKING:
    from typing import Self  # Python 3.11


@dataclass(frozen=True, kw_only=True)
class PosedBatch(Batch):
    """Pairs with query points in each picture: points0 and points1 do NOT correspond."""

    valid0: Tensor  # (B, L) bool: the query lies in the photo, and its epipolar segment crosses image1
    valid1: Tensor  # (B, L) bool: the same for points1 and image0
    fundamental: Tensor  # (B, 3, 3), x1^T F x0 = 0

    def swapped(self) -> Self:
        """The same pairs the other way round."""
        return replace(
            super().swapped(),
            valid0=self.valid1,
            valid1=self.valid0,
            fundamental=self.fundamental.transpose(1, 2),
        )


PosedSource = BatchSource[PosedBatch]


@dataclass(frozen=True)
class QueryOptions:
    """Where matches are asked for."""

    keypoints: float = 0.9  # share of the queries that are keypoints; the others are random
    nearest: float = 0.5  # smallest depth that is thought possible, over the distance of the cameras
    probes: int = 33  # positions along the epipolar segment at which it may cross the other picture


DEFAULT_QUERIES = QueryOptions()


@dataclass(frozen=True)
class Views:
    """The cameras of B pairs of pictures. A point X of camera 0 is R X + t in camera 1."""

    camera0: Tensor  # (B, 3, 3): X is seen at pixel ~ camera0 @ X; last row (0, 0, 1)
    camera1: Tensor  # (B, 3, 3)
    transform: Tensor  # (B, 4, 4) camera 0 -> camera 1

    def swapped(self) -> Views:
        """The same pairs the other way round."""
        back = self.transform[:, :3, :3].transpose(1, 2)
        shift = -times(back, self.transform[:, :3, 3:])
        upper = torch.cat([back, shift], dim=2)
        return Views(self.camera1, self.camera0, torch.cat([upper, self.transform[:, 3:]], dim=1))


def fundamental_matrix(views: Views) -> Tensor:
    """Fundamental matrices (B, 3, 3) of unit length: x1^T F x0 = 0 for pixels x0, x1."""
    x, y, z = views.transform[:, :3, 3].unbind(-1)
    zero = torch.zeros_like(x)
    cross = torch.stack([zero, -z, y, z, zero, -x, -y, x, zero], dim=-1).reshape(-1, 3, 3)
    essential = times(cross, views.transform[:, :3, :3])
    matrix = times(times(inverse(views.camera1).transpose(1, 2), essential), inverse(views.camera0))
    length: Tensor = torch.linalg.vector_norm(matrix, dim=(1, 2), keepdim=True)
    return matrix / length.clamp(min=1e-20)


def can_be_seen(points: Tensor, views: Views, size: int, options: QueryOptions = DEFAULT_QUERIES) -> Tensor:
    """Which (B, L) of points (B, L, 2) of picture 0 may be in picture 1 (`size` x `size`) at some depth."""
    rays = times(inverse(views.camera0).unsqueeze(1), F.pad(points, (0, 1), value=1.0).unsqueeze(-1))
    rotation, shift = views.transform[:, :3, :3], views.transform[:, :3, 3]
    turned = times(rotation.unsqueeze(1), rays).squeeze(-1).unsqueeze(2)  # (B, L, 1, 3)
    # In inverse depth, infinity is 0 and the steps along the line are even.
    steps = torch.linspace(0, 1, options.probes, device=points.device).view(1, 1, -1, 1)
    baseline = shift.norm(dim=-1).clamp(min=1e-12).view(-1, 1, 1, 1)
    direction = turned + shift.view(-1, 1, 1, 3) / (baseline * options.nearest) * steps
    seen = times(views.camera1.view(-1, 1, 1, 3, 3), direction.unsqueeze(-1)).squeeze(-1)
    ahead = seen[..., 2] > 1e-6
    pixel = seen[..., :2] / seen[..., 2:].clamp(min=1e-6)
    inside = ((pixel >= 0) & (pixel <= size - 1)).all(dim=-1)
    return (inside & ahead).any(dim=-1)


def keypoint_response(images: Tensor) -> Tensor:
    """How keypoint-like each pixel is, (B, H, W): peaks of the difference of Gaussians (SIFT's detector).

    Two octave parts; zero where a pixel is no peak of its 3 x 3 neighbours.
    """
    grey = (images * constant(GREY, images.device).view(1, 3, 1, 1)).sum(dim=1, keepdim=True)
    blurred = [_blurred(grey, sigma) for sigma in (1.0, 1.6, 2.6)]
    response = torch.zeros_like(grey)
    for sharper, softer in pairwise(blurred):
        difference = (sharper - softer).abs()
        peak = difference == F.max_pool2d(difference, 3, 1, 1)
        response = torch.maximum(response, difference * peak)
    return response.squeeze(1)


def _blurred(images: Tensor, sigma: float) -> Tensor:
    radius = round(3 * sigma)
    offsets = torch.arange(-radius, radius + 1, device=images.device, dtype=torch.float32)
    kernel = torch.exp(-offsets.square() / (2 * sigma**2))
    kernel = kernel / kernel.sum()
    padded = F.pad(images, (radius,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(padded, kernel.view(1, 1, 1, -1)), kernel.view(1, 1, -1, 1))


def draw_queries(
    images: Tensor, count: int, generator: torch.Generator, options: QueryOptions = DEFAULT_QUERIES
) -> Tensor:
    """Query pixels (B, count, 2): keypoints, drawn in proportion to their strength, and random positions."""
    batch, _, height, width = images.shape
    random = count - round(count * options.keypoints)
    weight = keypoint_response(images).flatten(1) + 1e-7  # where keypoints run out, any pixel will do
    noise = torch.rand(weight.shape, generator=generator, device=images.device).clamp(1e-7, 1 - 1e-7)
    # The largest of log weight + Gumbel noise are a draw without repetition.
    chosen = (weight.log() - (-noise.log()).log()).topk(count - random, dim=1, sorted=False).indices
    keypoints = torch.stack([chosen % width, torch.div(chosen, width, rounding_mode="floor")], dim=-1)
    spread = torch.rand(batch, random, 2, generator=generator, device=images.device)
    anywhere = spread * constant((width - 1.0, height - 1.0), images.device)
    return torch.cat([keypoints.float(), anywhere], dim=1)


def posed_batch(
    image0: Tensor,
    image1: Tensor,
    views: Views,
    points: int,
    generator: torch.Generator,
    options: QueryOptions = DEFAULT_QUERIES,
) -> PosedBatch:
    """Queries and geometry of two batches of square pictures (B, 3, S, S)."""
    size = image0.shape[-1]
    points0, points1 = (draw_queries(image, points, generator, options) for image in (image0, image1))
    return PosedBatch(
        image0=image0,
        image1=image1,
        points0=points0,
        points1=points1,
        valid0=can_be_seen(points0, views, size, options),
        valid1=can_be_seen(points1, views.swapped(), size, options),
        fundamental=fundamental_matrix(views),
    )


class WorldPoses:
    """A `PosedSource` of planar worlds, whose cameras are known exactly."""

    recordable = True

    def __init__(
        self, bank: PhotoBank, config: WorldConfig | None = None, weight: Tensor | None = None
    ) -> None:
        """As `WorldPairs`; views are never bent, because a bent view has no epipolar lines."""
        straight = replace(config or WorldConfig(scene="world"), elastic_share=0.0)
        self.worlds = WorldPairs(bank, straight, weight)

    def sample(self, batch_size: int, size: int, points: int, generator: torch.Generator) -> PosedBatch:
        """See `BatchSource`."""
        world, group = self.worlds.build(batch_size, size, generator)
        first, second = world.cameras
        rotation = times(second.rotation, first.rotation.transpose(1, 2))
        shift = times(second.rotation, (first.centre - second.centre).unsqueeze(-1))
        last = constant((0.0, 0.0, 0.0, 1.0), rotation.device).expand(batch_size, 1, 4)
        transform = torch.cat([torch.cat([rotation, shift], dim=2), last], dim=1)
        views = Views(first.intrinsics, second.intrinsics, transform)
        bank = self.worlds.bank
        image0, image1 = (render(world, bank, size, view) for view in range(2))
        batch = posed_batch(image0, image1, views, points, generator)
        return replace(batch, light=bank.light[group].mean(dim=1))

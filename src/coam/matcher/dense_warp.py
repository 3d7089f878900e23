"""The dense warp of two photos: the flow both ways, what they agree on, and how certain it is."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor

from coam.errors import ConfigError
from coam.geometry.coordinates import resize_points, to_unit
from coam.images.mask import usable_at
from coam.matching.certainty import DEFAULT_CERTAINTY, CertaintyOptions, certainty_of
from coam.matching.flow import DEFAULT_FLOW, DenseFlow, FlowOptions, find_flow_both_ways, round_trip
from coam.models.outputs import DenseDescriptors
from coam.tensors import as_array
from coam.types import Size
from coam.warp import WarpField
from coam.warp.field import map_positions

if TYPE_CHECKING:
    from coam.matcher.matcher import PreparedImage

LARGEST_SIDE = 16_384  # pixels: a map of this side squared takes three gigabytes


@dataclass(frozen=True)
class WarpOptions:
    """How the two ways are put together."""

    flow: FlowOptions = DEFAULT_FLOW
    certainty: CertaintyOptions = DEFAULT_CERTAINTY
    # Network pixels: a round trip that misses by less is a small error of both ways, and each takes its half
    shared_error: float = 3.0


DEFAULT_WARP = WarpOptions()


@dataclass(frozen=True)
class DenseWarp:
    """The flow of one pair both ways, with certainties (1, h, w), in pixels of the resized photos."""

    forward: DenseFlow
    backward: DenseFlow
    certainty0: Tensor
    certainty1: Tensor


def find_warp(
    dense0: DenseDescriptors,
    dense1: DenseDescriptors,
    logit_scale: float,
    options: WarpOptions = DEFAULT_WARP,
    photos: tuple[Tensor, Tensor] | None = None,
) -> DenseWarp:
    """The dense warp of a pair, at the network's resolution; `photos` as in `find_flow_both_ways`."""
    forward, backward = find_flow_both_ways(dense0, dense1, logit_scale, options.flow, photos)
    certainty0 = certainty_of(forward, backward, options.certainty)
    certainty1 = certainty_of(backward, forward, options.certainty)
    shared = options.shared_error
    return DenseWarp(
        _met_halfway(forward, backward, shared),
        _met_halfway(backward, forward, shared),
        certainty0,
        certainty1,
    )


def _met_halfway(flow: DenseFlow, back: DenseFlow, shared_error: float) -> DenseFlow:
    """The flow, moved by half of what its round trip misses, where that is little."""
    missed = round_trip(flow, back)
    small = missed.norm(dim=-1, keepdim=True) < shared_error
    return replace(flow, points=flow.points - torch.where(small, missed / 2, 0.0))


def warp_field(
    flow: DenseFlow, certainty: Tensor, photo: PreparedImage, other: PreparedImage, map_size: Size
) -> WarpField:
    """A flow of the resized photos as a map of `map_size` (width, height), in original pixels."""
    positions = torch.from_numpy(map_positions(map_size, photo.image.size)).to(certainty.device)[None]
    inside = resize_points(positions, photo.resized.scale)
    found = flow.at(inside)
    scale = other.resized.scale
    points = resize_points(found, (1 / scale[0], 1 / scale[1]))
    last = torch.tensor([other.image.size[0] - 1.0, other.image.size[1] - 1.0], device=points.device)
    points = torch.minimum(points.clamp(min=0), last)
    height, width = certainty.shape[-2:]
    unit = to_unit(resize_points(inside, (1 / flow.stride, 1 / flow.stride)), width, height)
    sure = F.grid_sample(certainty.unsqueeze(1), unit, padding_mode="border", align_corners=False)
    certain, places = as_array(sure[0, 0].clamp(0, 1)), as_array(points[0])
    for mask, seen in ((photo.mask, as_array(positions[0])), (other.mask, places)):
        if mask is not None:
            certain = certain * usable_at(mask, seen.reshape(-1, 2)).reshape(certain.shape)
    return WarpField(places, certain, photo.image.size, other.image.size)


def checked_map_size(size: Size, longest: int | None, resolution: int) -> Size:
    """(width, height) of the map of a photo of `size`: its long side is `longest`.

    None: the photo's own size, but no larger than the network sees it (`resolution`), as there is no more to
    know between its pixels.
    """
    if longest is not None and (
        isinstance(longest, bool) or not isinstance(longest, int) or not 1 <= longest <= LARGEST_SIDE
    ):
        raise ConfigError(f"size must be a whole number from 1 to {LARGEST_SIDE}, not {longest!r}")
    side = min(max(size), resolution) if longest is None else longest
    scale = side / max(size)
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))

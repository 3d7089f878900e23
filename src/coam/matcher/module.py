"""The matcher as a `torch.nn.Module`, in the convention of kornia's `LoFTR`: batches of tensors."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from coam.backends.batches import split_dense
from coam.errors import ConfigError, ImageError
from coam.images.mask import usable_at
from coam.matching.dense import CROWDING_CELLS, DenseMatching
from coam.matching.selection import choose_spread
from coam.matching.settings import MatcherConfig
from coam.models.network import DescriptorNetwork
from coam.models.outputs import DenseDescriptors
from coam.models.registry import DEFAULT_MODEL, load_model

if TYPE_CHECKING:
    from typing_extensions import Unpack  # in `typing` from Python 3.11 on

    from coam.matching.settings import MatcherOptions

NOT_FOR_TENSORS = (
    "resolution",
    "squash",
    "looks",
    "effort",
    "alignment",
    "cached_images",
)  # options of `Matcher` alone


class CoAM(nn.Module):
    """Matches of batches of image tensors; weights, device and mode are those of any module.

        module = coam.CoAM().eval().to("cuda")
        out = module({"image0": image0, "image1": image1})
        out["keypoints0"][out["batch_indexes"] == 3]  # points of the fourth pair, in pixels of image0

    Images are matched at the size they have (about 800 pixels a side are best) and looked at once; nothing
    leaves their device. To train, take `describe`, or in train mode `out["dense0"]` and `out["dense1"]`.
    """

    def __init__(self, model: str | Path = DEFAULT_MODEL, **options: Unpack[MatcherOptions]) -> None:
        """model: a name or .safetensors file; options: fields of `MatcherConfig` that choose matches."""
        super().__init__()
        for name in options:
            if name not in MatcherConfig.__dataclass_fields__ or name in NOT_FOR_TENSORS:
                known = [n for n in MatcherConfig.__dataclass_fields__ if n not in NOT_FOR_TENSORS]
                raise ConfigError(f"the module has no option {name!r}; it has {', '.join(known)}")
        network = load_model(model).model
        self.network: DescriptorNetwork = network
        self.config = MatcherConfig(**options).for_network(network.capabilities)

    def extra_repr(self) -> str:
        """The settings that choose matches."""
        config = self.config
        return f"max_matches={config.max_matches}, min_score={config.min_score:g}, ranking={config.ranking!r}"

    def describe(self, image0: Tensor, image1: Tensor) -> tuple[DenseDescriptors, DenseDescriptors]:
        """Dense descriptors of images (B, 3, H, W) and (B, 3, H', W'), each conditioned on the other.

        Differentiable: the losses of `coam.losses` on samples of them (`coam.matching.grid.sample_map`) train
        the network.
        """
        image0, image1 = _as_floats(image0, "image0"), _as_floats(image1, "image1")
        if len(image0) != len(image1):
            raise ImageError(
                f"image0 has {len(image0)} images and image1 {len(image1)}; give as many of both"
            )
        dense: tuple[DenseDescriptors, DenseDescriptors] = self.network(image0, image1)
        return dense

    def forward(self, data: dict[str, Tensor]) -> dict[str, Any]:
        """Matches of a batch of pairs.

        data: `image0` (B, 3, H, W) and `image1` (B, 3, H', W'), RGB (or grey, one channel), floats in [0, 1]
        or uint8; optionally `mask0` (B, H, W) or (B, 1, H, W) and `mask1`, nonzero where it may be used.

        Gives `keypoints0` and `keypoints1` (N, 2) as (x, y), the centre of the first pixel being (0, 0);
        `confidence` (N,) in [0, 1]; `batch_indexes` (N,) int64, the pair each match belongs to; best first
        in each pair. In train mode also `dense0` and `dense1`, what `describe` gives, with gradients; the
        choice of matches itself has none.
        """
        for name in ("image0", "image1"):
            if name not in data:
                raise ImageError(f"the batch has no {name!r}; give image0 and image1, (B, 3, H, W)")
        both = self.describe(data["image0"], data["image1"])
        matching = DenseMatching(self.config, float(self.network.logit_scale.detach()))
        masks = [_as_masks(data.get(f"mask{side}"), image, f"mask{side}") for side, image in enumerate(both)]
        found = [
            self._between(matching, pair, [None if mask is None else mask[k] for mask in masks])
            for k, pair in enumerate(zip(*map(split_dense, both), strict=True))
        ]
        points0, points1, scores = zip(*found, strict=True)
        counts = torch.tensor([len(score) for score in scores], device=both[0].score.device)
        pairs = torch.arange(len(found), device=counts.device)
        out: dict[str, Any] = {
            "keypoints0": torch.cat(points0),
            "keypoints1": torch.cat(points1),
            "confidence": torch.cat(scores),
            "batch_indexes": torch.repeat_interleave(pairs, counts),
        }
        return out | ({"dense0": both[0], "dense1": both[1]} if self.training else {})

    @torch.no_grad()
    def _between(
        self, matching: DenseMatching, pair: tuple[DenseDescriptors, ...], masks: list[Tensor | None]
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Points (N, 2) in both images, on usable pixels, and scores (N,), of one pair."""
        share = math.prod(float(mask.float().mean()) for mask in masks if mask is not None)
        found = (matching if share == 1 else matching.before_masks(share)).between(*pair)
        points0, points1 = (
            points.clamp(points.new_zeros(2), points.new_tensor((image.size[1] - 1, image.size[0] - 1)))
            for points, image in zip((found.points0, found.points1), pair, strict=True)
        )
        kept = torch.ones_like(found.score, dtype=torch.bool)
        for mask, points in zip(masks, (points0, points1), strict=True):
            if mask is not None:
                kept &= usable_at(mask, points)
        points0, points1, score = points0[kept], points1[kept], found.score[kept]
        cell = max(pair[0].size) / CROWDING_CELLS
        chosen = choose_spread(points0, score, self.config.max_matches, cell, self.config.crowding)
        return points0[chosen], points1[chosen], score[chosen]


def _as_floats(image: Tensor, name: str) -> Tensor:
    """Images (B, 3, H, W) in [0, 1] of a batch of any accepted type."""
    if not isinstance(image, Tensor) or image.ndim != 4 or image.shape[1] not in (1, 3):
        shape = tuple(image.shape) if isinstance(image, Tensor) else type(image).__name__
        raise ImageError(f"{name}: has shape {shape}; give a tensor (B, 3, H, W) or (B, 1, H, W)")
    if image.dtype == torch.uint8:
        image = image.float() / 255
    if not image.is_floating_point():
        raise ImageError(f"{name}: has values of type {image.dtype}; give uint8 or floats in [0, 1]")
    return image.expand(-1, 3, -1, -1)


def _as_masks(masks: Tensor | None, image: DenseDescriptors, name: str) -> Tensor | None:
    """Usable pixels (B, H, W) of the images of a batch."""
    if masks is None:
        return None
    wanted = (len(image.score), *image.size)
    if masks.ndim == 4 and masks.shape[1] == 1:
        masks = masks[:, 0]
    if tuple(masks.shape) != wanted:
        raise ImageError(
            f"{name}: has shape {tuple(masks.shape)}; give {wanted}, nonzero where it may be used"
        )
    return masks.to(image.score.device) != 0
